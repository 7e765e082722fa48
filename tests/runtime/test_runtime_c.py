"""The C library: built from source with sanitizers and run on the fake driver, without a GPU.

The tests themselves are C and C++ programs in `runtime_c/tests`; here they are built (by CMake
if available, otherwise by the C compiler alone), given archives from `golden.py`, and run. A
program prints failed checks, and a sanitizer ends it; either way its output is in the failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.fake_gpu import golden

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "runtime_c"
TESTS = RUNTIME / "tests"
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
CC = os.environ.get("CC", "cc")
CXX = os.environ.get("CXX", "c++")
CMAKE = shutil.which("cmake")
PKG_CONFIG = shutil.which("pkg-config")


def _run(command: list[str | Path], **environment: str) -> str:
    """Run a command and return its output; fail with the output if it fails."""
    result = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, **environment},
        timeout=600,
        check=False,
    )
    text = result.stdout + result.stderr
    if result.returncode != 0:
        pytest.fail(
            f"{command[0]} exited with {result.returncode}:\n{text[-20000:]}", pytrace=False
        )
    return text


class Build(NamedTuple):
    """Folder of the test programs and the fake driver, and a function to build a program there."""

    directory: Path
    make: Callable[[str], object]

    def run(self, program: str, archives: Path, **environment: str) -> str:
        self.make(program)
        command: list[str | Path] = [self.directory / program, archives]
        return _run([*command, self.directory / "libcuda.so.1"], **environment)


def _sources(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.c"))


def _build_with_cc(directory: Path, sanitizers: str) -> Build:
    """Build as somebody without CMake would: every source in one go."""
    flags = ["-g", "-O1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    includes = [RUNTIME / "include", RUNTIME / "src", TESTS, TESTS / "fake_cuda"]
    paths = [f"-I{folder}" for folder in includes]
    fake = directory / "libcuda.so.1"
    fake_sources = _sources(TESTS / "fake_cuda")
    shared = ["-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
    _run([CC, *shared, *flags, *paths, *fake_sources, "-o", fake])
    objects: list[str | Path] = []
    for source in [*_sources(RUNTIME / "src"), TESTS / "harness.c", TESTS / "fixture.c"]:
        target = directory / f"{source.stem}.o"
        _run([CC, "-std=c11", *WARNINGS, *flags, *paths, "-c", source, "-o", target])
        objects.append(target)

    def make(program: str) -> None:
        is_cpp = program == "test_wrapper"
        compiler = [CXX, "-std=c++17"] if is_cpp else [CC, "-std=c11"]
        source = TESTS / f"{program}{'.cpp' if is_cpp else '.c'}"
        link = [*objects, fake, f"-Wl,-rpath,{directory}", "-ldl", "-pthread"]
        _run([*compiler, *WARNINGS, *flags, *paths, source, *link, "-o", directory / program])

    return Build(directory, make)


def _build_with_cmake(directory: Path, sanitizers: str) -> Build:
    assert CMAKE is not None
    options = [
        f"-DAOTC_SANITIZERS={sanitizers}",
        "-DAOTC_BUILD_TESTS=ON",
        "-DCMAKE_BUILD_TYPE=None",
    ]
    # Without optimization they compile in half the time; `_build_with_cc` has its warnings.
    strict = ["-DAOTC_WARNINGS_ARE_ERRORS=ON", "-DCMAKE_C_FLAGS=-O0", "-DCMAKE_CXX_FLAGS=-O0"]
    _run([CMAKE, "-S", RUNTIME, "-B", directory, "-DAOTC_WITH_ZSTD=OFF", *options, *strict])
    build = [CMAKE, "--build", directory, "-j", str(os.cpu_count() or 1), "--target"]
    return Build(directory / "tests", lambda program: _run([*build, program]))


_build = _build_with_cmake if CMAKE else _build_with_cc
PROGRAMS = (
    *("test_pieces", "test_open", "test_corrupt", "test_launch", "test_tensor_maps"),
    *("test_persistent", "test_devices", "test_unload", "test_plan", "test_lazy", "test_faults"),
    *("test_memory", "test_selection", "test_wrapper"),
)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the archives for the C tests."""
    directory = tmp_path_factory.mktemp("archives")
    golden().main(directory)
    return directory


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The test programs under the address and undefined-behaviour sanitizers."""
    return _build(tmp_path_factory.mktemp("asan"), "address,undefined")


@pytest.mark.parametrize("program", PROGRAMS)
def test_sanitized(program: str, build: Build, archives: Path) -> None:
    build.run(program, archives, ASAN_OPTIONS="detect_leaks=1:abort_on_error=0")


@pytest.mark.slow
def test_threads_are_ordered(tmp_path: Path, archives: Path) -> None:
    build = _build(tmp_path, "thread")
    for program in ("test_memory", "test_threads"):
        build.run(program, archives, TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1")


@pytest.mark.slow
def test_builds_with_the_compiler_alone(tmp_path: Path, archives: Path) -> None:
    """The sources need no build system, no CUDA and no zstd: the Python extension relies on it."""
    build = _build_with_cc(tmp_path, "undefined")
    for program in ("test_launch", "test_memory"):
        build.run(program, archives)


def test_prints_and_exits_nowhere() -> None:
    """A library must not print, exit, or read the environment."""
    forbidden = ("printf(", "fputs(", "puts(", "exit(", "abort(", "assert(", "getenv(", "stderr")
    allowed = ("snprintf(", "vsnprintf(")
    for source in [*_sources(RUNTIME / "src"), *sorted((RUNTIME / "src").glob("*.h"))]:
        text = source.read_text().replace("format(printf", "").replace("static_assert(", "")
        for name in (*allowed, "_Static_assert("):
            text = text.replace(name, "")
        uses = [name for name in forbidden if name in text]
        assert not uses, f"{source.name} uses {uses}"


@pytest.fixture(scope="module")
def built_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CMake's folder of the library as it is shipped, to be installed anywhere."""
    if CMAKE is None:
        pytest.skip("the CMake package needs CMake")
    folder = tmp_path_factory.mktemp("library")
    options = ["-DCMAKE_INSTALL_LIBDIR=lib"]  # the prefix is chosen when it is installed
    _run([CMAKE, "-S", RUNTIME, "-B", folder, "-DAOTC_WITH_ZSTD=OFF", *options])
    _run([CMAKE, "--build", folder, "-j", str(os.cpu_count() or 1)])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_installed_package(
    tmp_path: Path, built_library: Path, archives: Path, shared: bool
) -> None:
    """find_package finds an installation by `cmake --install`, and it exports only public names."""
    assert CMAKE is not None
    prefix = tmp_path / "prefix"
    switch = f"-DBUILD_SHARED_LIBS={'ON' if shared else 'OFF'}"
    _run([CMAKE, "--install", built_library, "--prefix", prefix])
    consumer = tmp_path / "consumer"
    consumer.mkdir()
    (consumer / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\n"
        "project(consumer CXX C)\n"
        "find_package(aotc 0.1 REQUIRED)\n"
        "add_executable(consumer consumer.cpp)\n"
        "target_compile_features(consumer PRIVATE cxx_std_17)\n"
        "target_link_libraries(consumer PRIVATE aotc::runtime)\n"
    )
    (consumer / "consumer.cpp").write_text(
        "#include <aotc/aotc.hpp>\n"
        "#include <cstring>\n"
        "int main(int, char **argv) {\n"
        "    const auto archive = aotc::archive::open(argv[1]);\n"
        "    try {  // the library was built without zstd, and is given no decompressor\n"
        '        return archive.kernel("add").info().param_count;\n'
        "    } catch (const aotc::error &error) {\n"
        '        return std::strstr(error.what(), "expected a zstd decompressor") ? 0 : 1;\n'
        "    }\n"
        "}\n"
    )
    out = tmp_path / "consumer-build"
    _run([CMAKE, "-S", consumer, "-B", out, f"-DCMAKE_PREFIX_PATH={prefix}", switch])
    _run([CMAKE, "--build", out])
    _run([out / "consumer", archives / "golden.aotc"])
    library = next((prefix / "lib").glob("libaotc.so.0.*"))
    names = _run(["nm", "-D", "--defined-only", library]).split()
    exported = {name.split("@")[0] for name in names if name.startswith("aotc")}
    header = (prefix / "include" / "aotc" / "aotc.h").read_text()
    declared = {
        part.split("(")[0].split()[-1].lstrip("*")
        for part in header.split("AOTC_API ")[1:]
        if "(" in part.split(";")[0] and not part.startswith("__attribute__")
    }
    assert exported == declared
    target = prefix.rename(tmp_path / "moved")
    folder = target / "lib" / "pkgconfig"
    text = (folder / "aotc.pc").read_text()
    assert "prefix=${pcfiledir}/../..\n" in text
    assert "-laotc" in text
    if PKG_CONFIG is not None:
        environment = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
        ran = subprocess.run(
            [PKG_CONFIG, "--cflags", "--libs", "aotc"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        paths = [
            Path(word[2:]).resolve() for word in ran.stdout.split() if word[:2] in ("-I", "-L")
        ]
        assert paths == [target / "include", target / "lib"]
