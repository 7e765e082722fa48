"""The CMake package: found in a moved prefix, vendored in another project, and building archives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "runtime_c"
CC = os.environ.get("CC", "cc")
CMAKE = shutil.which("cmake") or "cmake"
GENERATORS = [
    "Unix Makefiles",
    pytest.param("Ninja", marks=pytest.mark.skipif(not shutil.which("ninja"), reason="no ninja")),
]

pytestmark = pytest.mark.skipif(not shutil.which("cmake"), reason="the CMake package needs CMake")

MANIFEST = """\
[package]
name = "llm"
version = "0.1.0"
targets = ["sm_80", "sm_90a"]

[[kernel]]
source = "kernels/scale.py:scale"
grid = ["cdiv(n, BLOCK)"]
[kernel.signature]
x_ptr = "*fp32"
n = "i32"
[kernel.constants]
BLOCK = 128
"""
KERNEL = """\
import triton
import triton.language as tl
from factor import FACTOR

@triton.jit
def scale(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(x_ptr + at, x * FACTOR, mask=at < n)
"""
LISTS = """\
cmake_minimum_required(VERSION 3.18)
project(server LANGUAGES C)
find_package(aotc 0.1 REQUIRED)
aotc_add_archive(llm MANIFEST llm.toml TARGETS sm_90a)
add_executable(server main.c)
target_link_libraries(server PRIVATE llm)
"""
MAIN = """\
#include <stdio.h>
#include "llm.h"
int main(void) {
    aotc_archive *archive = NULL;
    aotc_error error = AOTC_ERROR_INIT;
    if (llm_open(NULL, &archive, &error) != AOTC_OK) {
        return 1;
    }
    aotc_release(archive);
    return fwrite(llm_archive, 1, llm_archive_size, stdout) == llm_archive_size ? 0 : 2;
}
"""


def run(*command: str | Path, expect: int = 0, **environment: str) -> str:
    """Run a command and return its output."""
    process = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=600,
        env={**os.environ, **environment},
    )
    text = process.stdout + process.stderr
    assert (process.returncode != 0) == (expect != 0), f"{command}: {process.returncode}\n{text}"
    return text


@pytest.fixture(scope="module")
def zstd(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that give CMake a libzstd: compilers bring the library, but not its header."""
    library = run(CC, "-print-file-name=libzstd.so.1").strip()
    if not Path(library).is_absolute():
        pytest.skip("there is no libzstd.so.1 to link")
    folder = tmp_path_factory.mktemp("zstd")
    (folder / "zstd.h").write_text(
        "#include <stddef.h>\ntypedef struct ZSTD_DCtx_s ZSTD_DCtx;\n"
        "ZSTD_DCtx *ZSTD_createDCtx(void);\nsize_t ZSTD_freeDCtx(ZSTD_DCtx *);\n"
        "size_t ZSTD_decompressDCtx(ZSTD_DCtx *, void *, size_t, const void *, size_t);\n"
    )
    return [f"-DZSTD_INCLUDE_DIR={folder}", f"-DZSTD_LIBRARY={library}"]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory, zstd: list[str]) -> Path:
    """An installation, moved after `cmake --install`."""
    folder = tmp_path_factory.mktemp("runtime")
    out, installed = folder / "out", folder / "installed"
    options = [*zstd, "-DAOTC_WITH_ZSTD=ON", "-DCMAKE_INSTALL_LIBDIR=lib"]
    run(CMAKE, "-S", RUNTIME, "-B", out, *options)
    run(CMAKE, "--build", out, "-j", "2")
    run(CMAKE, "--install", out, "--prefix", installed)
    shutil.rmtree(out)
    return installed.rename(folder / "moved prefix")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `aotc` of this source tree, with a cache of its own."""
    folder = tmp_path_factory.mktemp("program")
    path = folder / "aotc"
    exports = f'export PYTHONPATH="{ROOT}" XDG_CACHE_HOME="{folder}/cache"'
    path.write_text(f'#!/bin/sh\n{exports}\nexec "{sys.executable}" -m aotc "$@"\n')
    path.chmod(0o755)
    return path


class Project:
    """A server in a folder with a space in its path, built by CMake."""

    def __init__(self, folder: Path, prefix: Path, program: Path, zstd: list[str]) -> None:
        self.folder = folder / "my server"
        self.out = folder / "out folder"
        self.options = [
            f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DAOTC_EXECUTABLE={program}",
            *zstd,
        ]
        (self.folder / "kernels").mkdir(parents=True)
        self.write("llm.toml", MANIFEST)
        self.write("kernels/scale.py", KERNEL)
        self.write(
            "kernels/factor.py", "import triton.language as tl\nFACTOR = tl.constexpr(2.0)\n"
        )
        self.write("CMakeLists.txt", LISTS)
        self.write("main.c", MAIN)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def configure(self, generator: str, *options: str, expect: int = 0) -> str:
        arguments = ["-G", generator, *self.options, *options]
        return run(CMAKE, "-S", self.folder, "-B", self.out, *arguments, expect=expect)

    def build(self, expect: int = 0) -> str:
        return run(CMAKE, "--build", self.out, expect=expect)

    def archive(self) -> bytes:
        """Return the archive in the program."""
        process = subprocess.run([self.out / "server"], capture_output=True, check=True, timeout=60)
        archive = (self.out / "aotc" / "llm" / "llm.aotc").read_bytes()
        assert process.stdout == archive
        return archive


@pytest.fixture
def project(tmp_path: Path, prefix: Path, program: Path, zstd: list[str]) -> Project:
    return Project(tmp_path, prefix, program, zstd)


def test_no_exported_file_has_an_absolute_path(prefix: Path) -> None:
    files = [*prefix.rglob("*.cmake"), *prefix.rglob("*.pc")]
    assert {"aotcConfig.cmake", "aotcTargets.cmake", "aotcAddArchive.cmake", "aotc.pc"} <= {
        path.name for path in files
    }
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.partition("#")[0]
            absolute = re.findall(r"(?:^|[\s\"';:=])/[\w.]+", code)
            assert not absolute, f"{path.name}:{number}: {line}"
            assert "libzstd.so" not in code


@pytest.mark.slow
@pytest.mark.parametrize("generator", GENERATORS)
def test_an_archive_follows_its_inputs(project: Project, generator: str) -> None:
    project.configure(generator)
    project.build()
    first = project.archive()
    assert b"sm_80" not in first  # TARGETS
    assert "Building the archive" not in project.build()
    linked = (project.out / "server").stat().st_mtime_ns

    project.write("llm.toml", f"# No kernel changes.\n{MANIFEST}")
    assert "Building the archive" in project.build()
    assert project.archive() == first
    assert "Building the archive" not in project.build()
    assert (project.out / "server").stat().st_mtime_ns == linked

    project.write("kernels/scale.py", KERNEL.replace("x * FACTOR", "x + FACTOR"))
    project.build()
    by_kernel = project.archive()
    assert by_kernel != first
    project.write("kernels/factor.py", "import triton.language as tl\nFACTOR = tl.constexpr(3.0)\n")
    project.build()
    by_import = project.archive()
    assert by_import not in (first, by_kernel)
    project.write("llm.toml", MANIFEST.replace("128", "256"))
    project.build()
    by_manifest = project.archive()
    assert by_manifest not in (first, by_kernel, by_import)

    # A deleted import is aotc's error, not Make's; a table that appears is an input.
    (project.folder / "kernels" / "factor.py").unlink()
    assert "factor" in project.build(expect=1)
    project.write("kernels/factor.py", "import triton.language as tl\nFACTOR = tl.constexpr(3.0)\n")
    project.build()
    project.write("llm.tuning.toml", "[[tuning]]\nkernel = 1\n")
    assert "llm.tuning.toml:" in project.build(expect=1)


def test_mistakes_are_told_when_cmake_runs(project: Project) -> None:
    for lists, message in (
        (LISTS.replace("archive(llm ", "archive(other "), "is called llm: call both the same"),
        (LISTS.replace("llm.toml", "llm.tml"), "there is no MANIFEST"),
        (LISTS.replace("TARGETS", "FOR"), "unknown arguments FOR;sm_90a"),
    ):
        project.write("CMakeLists.txt", lists)
        text = project.configure("Unix Makefiles", expect=1)
        assert message in " ".join(text.split()), text


@pytest.mark.slow
def test_two_archives_of_one_name_do_not_link(project: Project, program: Path) -> None:
    """Nor does a program with the header of one build and the library of another."""
    project.write("other.toml", MANIFEST.replace("0.1.0", "0.2.0"))
    other = project.folder / "other"
    run(program, "build", project.folder / "other.toml", "-o", other, "--target", "sm_90a")
    project.write(
        "second.c", '#include "llm.h"\nconst void *second(void) { return llm_archive; }\n'
    )
    project.write(
        "main.c", f"const void *second(void);\n{MAIN}".replace("NULL;", "(void *)second();")
    )
    second = """
add_library(second OBJECT second.c)
target_include_directories(second PRIVATE other)
target_link_libraries(second PRIVATE aotc::runtime)
target_link_libraries(server PRIVATE second"""
    project.write("CMakeLists.txt", f"{LISTS}{second} ${{CMAKE_SOURCE_DIR}}/other/libllm.a)\n")
    project.configure("Unix Makefiles")
    assert "multiple definition of `llm_archive'" in project.build(expect=1)
    project.write("CMakeLists.txt", f"{LISTS}{second})\n")
    assert re.search(r"undefined reference to `llm_archive_[0-9a-f]{16}'", project.build(expect=1))


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_a_vendored_runtime_builds_one_library(
    project: Project, zstd: list[str], shared: bool
) -> None:
    lists = LISTS.replace("find_package(aotc 0.1 REQUIRED)", f"add_subdirectory({RUNTIME} runtime)")
    project.write("CMakeLists.txt", lists)
    export = "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"
    project.configure("Unix Makefiles", export, f"-DBUILD_SHARED_LIBS={'ON' if shared else 'OFF'}")
    project.build()
    project.archive()
    libraries = {path.name.partition(".so.")[0] for path in project.out.rglob("libaotc*")}
    assert libraries == ({"libaotc.so", "libaotc"} if shared else {"libaotc.a"})
    commands = (project.out / "compile_commands.json").read_text()
    assert re.search(r" -O3 .*launch\.c", commands)
    assert not list(project.out.rglob("aotcConfig.cmake"))
    project.configure("Unix Makefiles", "-DCMAKE_BUILD_TYPE=Debug")
    assert "-O3" not in (project.out / "compile_commands.json").read_text()


@pytest.mark.parametrize("preset", ["release", "tests"])
def test_presets_configure(tmp_path: Path, zstd: list[str], preset: str) -> None:
    text = run(CMAKE, "-S", RUNTIME, "--preset", preset, "-B", tmp_path, *zstd)
    assert "Generating done" in text
