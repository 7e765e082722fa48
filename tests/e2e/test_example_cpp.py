"""The examples and the README's C++, compiled and linked as a user would, and run without a GPU.

The headers are CUDA's own. To run the programs, the CUDA runtime API is replaced by `fake_cudart.c` over
the fake driver: the archive is opened and loaded and every launch is checked against it, but no
kernel runs, so the example must call every result wrong.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from aotc import cli
from aotc.package.manifest import read as manifest
from tests.support import fake_gpu

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "cpp"
RUNTIME = ROOT / "runtime_c"
CC = os.environ.get("CC", "cc")
CXX = os.environ.get("CXX", "c++")
CMAKE = shutil.which("cmake")
DEBUG = "-DCMAKE_BUILD_TYPE=Debug"  # compiled in half the time; one test has the default
CPP = [CXX, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow"]

# The kernel reads nothing here, so any 16-byte aligned addresses will do.
NORM_MAIN = """
#include <cuda_runtime_api.h>
int main() {
    cudaSetDevice(0);
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    alignas(16) static const char memory[64] = {};
    alignas(16) static char out[64];
    return server().normalise(stream, memory, memory, out, 2, 4096);
}
"""


def run(command: list[str | Path], *, expect: int = 0, **environment: str) -> str:
    """Run a command and return its output."""
    process = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False,
        timeout=600, env={**os.environ, **environment},
    )  # fmt: skip
    text = process.stdout + process.stderr
    assert process.returncode == expect, f"{command[0]} exited with {process.returncode}:\n{text}"
    return text


@dataclass(frozen=True)
class Toolkit:
    """A folder in the layout of a CUDA toolkit, with the fake runtime library."""

    root: Path
    zstd: Path
    libzstd: Path

    @property
    def includes(self) -> list[str]:
        """The include flags for CUDA, aotc and zstd."""
        folders = (self.root / "include", RUNTIME / "include", self.zstd)
        return ["-isystem", str(folders[0]), *(f"-I{folder}" for folder in folders[1:])]

    @property
    def library(self) -> Path:
        """The runtime library to link."""
        return self.root / "lib64" / "libcudart.so"

    @property
    def search_path(self) -> str:
        """The folder of the fake libraries, for the dynamic linker."""
        return str(self.root / "lib64")


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    root = tmp_path_factory.mktemp("toolkit")
    files = importlib.metadata.files("nvidia-cuda-runtime")
    assert files is not None
    header = next(file for file in files if file.name == "cuda_runtime_api.h")
    include = Path(str(header.locate())).resolve().parent
    (root / "include").symlink_to(include)
    (root / "bin").symlink_to(include.parent / "bin")  # CMake asks nvcc for the version
    (root / "lib64").mkdir()
    # Decompression needs the library alone, shipped with most compilers; its header is not.
    libzstd = Path(run([CC, "-print-file-name=libzstd.so.1"]).strip())
    if not libzstd.is_absolute():
        pytest.skip("archives are zstd-compressed, and there is no libzstd.so.1 to link")
    zstd = tmp_path_factory.mktemp("zstd")
    (zstd / "zstd.h").write_text(
        "#include <stddef.h>\ntypedef struct ZSTD_DCtx_s ZSTD_DCtx;\n"
        "ZSTD_DCtx *ZSTD_createDCtx(void);\nsize_t ZSTD_freeDCtx(ZSTD_DCtx *);\n"
        "size_t ZSTD_decompressDCtx(ZSTD_DCtx *, void *, size_t, const void *, size_t);\n"
    )
    driver = fake_gpu.build(root / "lib64")
    kit = Toolkit(root, zstd, libzstd)
    shared = [CC, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    headers = [*kit.includes, f"-I{fake_gpu.TESTS / 'fake_cuda'}"]
    source = Path(__file__).parent / "fake_cudart.c"
    run([*shared, *headers, source, driver, "-Wl,-rpath,$ORIGIN", "-o", kit.library])
    return kit


@pytest.fixture(scope="module")
def runtime(toolkit: Toolkit, tmp_path_factory: pytest.TempPathFactory) -> list[str | Path]:
    """The runtime's objects, and the libraries to link."""
    folder = tmp_path_factory.mktemp("runtime")
    sources = sorted((RUNTIME / "src").glob("*.c"))
    flags = ["-std=c11", "-O0", "-DAOTC_WITH_ZSTD", *toolkit.includes]
    subprocess.run([CC, *flags, "-c", *map(str, sources)], cwd=folder, check=True, timeout=300)
    return [*sorted(folder.glob("*.o")), toolkit.libzstd, "-ldl", "-pthread"]


def build(manifest_path: Path, folder: Path) -> Path:
    """Build a manifest for the fake driver's GPU."""
    assert cli.run(["build", str(manifest_path), "-o", str(folder), "--target", "sm_90a"]) == 0
    return folder


@pytest.fixture(scope="module")
def kernels_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT / "kernels.toml", tmp_path_factory.mktemp("kernels"))


def check_that_all_is_launched_and_refused(program: Path, toolkit: Toolkit) -> None:
    text = run([program], expect=1, LD_LIBRARY_PATH=toolkit.search_path)
    kernels = {spec.name for spec in manifest.load(str(ROOT / "kernels.toml")).kernels}
    assert set(re.findall(r"^(\w+) +WRONG +\w", text, re.MULTILINE)) == kernels
    assert re.search(r"^by name +WRONG", text, re.MULTILINE)
    assert "right" not in text
    launches = re.search(
        r"^launches: (\d+), live libraries: 0, violation: none$", text, re.MULTILINE
    )
    assert launches, text
    assert int(launches[1]) >= 2 * len(kernels) + 2  # in the stream, in the graph; by name


@pytest.mark.slow
def test_compiles_without_a_build_system(
    tmp_path: Path, toolkit: Toolkit, runtime: list[str | Path], kernels_dir: Path
) -> None:
    compiler = [*CPP, "-Werror", *toolkit.includes, f"-I{kernels_dir}"]
    sources = sorted(EXAMPLE.glob("*.cpp"))
    subprocess.run([*compiler, "-c", *map(str, sources)], cwd=tmp_path, check=True, timeout=300)
    objects = {path.stem: path for path in tmp_path.glob("*.o")}
    self_check = objects.pop("reference_test")
    run([CXX, self_check, objects["reference"], "-o", tmp_path / "reference_test"])
    assert "WRONG" not in run([tmp_path / "reference_test"])
    libraries = [kernels_dir / "libkernels.a", *runtime, toolkit.library]
    run([CXX, *objects.values(), *libraries, "-o", tmp_path / "example"])
    check_that_all_is_launched_and_refused(tmp_path / "example", toolkit)


@pytest.mark.slow
@pytest.mark.skipif(CMAKE is None, reason="the CMake project needs CMake")
def test_builds_with_cmake(tmp_path: Path, toolkit: Toolkit, kernels_dir: Path) -> None:
    assert CMAKE is not None
    configure: list[str | Path] = [CMAKE, "-S", EXAMPLE, "-B", tmp_path / "build"]
    configure += [f"-DCUDAToolkit_ROOT={toolkit.root}", "-DWARNINGS_ARE_ERRORS=ON"]
    configure += [f"-DZSTD_INCLUDE_DIR={toolkit.zstd}", f"-DZSTD_LIBRARY={toolkit.libzstd}"]
    message = run([*configure, f"-DKERNELS_DIR={tmp_path / 'elsewhere'}"], expect=1)
    assert "aotc build kernels.toml -o" in " ".join(message.split())
    run([*configure, f"-DKERNELS_DIR={kernels_dir}"])
    run([CMAKE, "--build", tmp_path / "build", "-j", str(os.cpu_count() or 1)])
    assert "WRONG" not in run([tmp_path / "build" / "reference_test"])
    check_that_all_is_launched_and_refused(tmp_path / "build" / "example", toolkit)


MULTI_GPU = ROOT / "examples" / "multi_gpu"


@pytest.fixture(scope="module")
def multi_gpu(
    tmp_path_factory: pytest.TempPathFactory, toolkit: Toolkit, runtime: list[str | Path]
) -> tuple[Path, Path]:
    """The program and its archive."""
    folder = tmp_path_factory.mktemp("multi_gpu")
    dist = build(MULTI_GPU / "multi_gpu.toml", folder / "dist")
    compiler = [*CPP, "-Werror", *toolkit.includes]
    program = folder / "multi_gpu"
    run([*compiler, MULTI_GPU / "main.cpp", *runtime, toolkit.library, "-o", program])
    return program, dist / "multi_gpu.aotc"


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_multi_gpu(multi_gpu: tuple[Path, Path], toolkit: Toolkit, gpus: int) -> None:
    """Every phase runs on each of several GPUs; no kernel does, so every result must be refused."""
    program, archive = multi_gpu
    devices = {"FAKE_CUDA_DEVICES": ",".join(["9.0:232448"] * gpus)}
    launches: list[str | Path] = ["--launches", "2000"]
    text = run(
        [program, archive, *launches],
        expect=1, LD_LIBRARY_PATH=toolkit.search_path, **devices,
    )  # fmt: skip
    phases = dict(re.findall(r"^(\w.*?) +WRONG \((\d+ of \d+)\)$", text, re.MULTILINE))
    assert "right" not in text
    assert phases.pop("a second archive meanwhile").startswith("0 of ")
    # A launch without the loaded archive is refused: the only right result without a GPU.
    assert phases == {
        "a thread for each GPU, streams and graphs": f"0 of {100 * gpus}",
        "one thread on all GPUs in turn": f"0 of {50 * gpus}",
        "each GPU leaves the set and comes back": f"{10 * gpus} of {10 * gpus * (gpus + 1)}",
    }
    assert (
        len(re.findall(r"^GPU \d: \d+ ns a launch alone, \d+ ns with all", text, re.MULTILINE))
        == gpus
    )
    assert re.search(r"^memory after 2000 launches: host .*GPU 0 \+0\.0 MiB", text, re.MULTILINE)
    assert "live libraries: 0, violation: none" in text
    assert "usage: " in run([program], expect=2, LD_LIBRARY_PATH=toolkit.search_path)


@pytest.mark.slow
@pytest.mark.skipif(CMAKE is None, reason="the CMake project needs CMake")
def test_multi_gpu_builds_with_cmake(tmp_path: Path, toolkit: Toolkit) -> None:
    assert CMAKE is not None
    configure: list[str | Path] = [CMAKE, "-S", MULTI_GPU, "-B", tmp_path, DEBUG]
    configure += [f"-DCUDAToolkit_ROOT={toolkit.root}", "-DWARNINGS_ARE_ERRORS=ON"]
    configure += [f"-DZSTD_INCLUDE_DIR={toolkit.zstd}", f"-DZSTD_LIBRARY={toolkit.libzstd}"]
    run(configure)
    run([CMAKE, "--build", tmp_path, "-j", str(os.cpu_count() or 1)])
    usage = run([tmp_path / "multi_gpu"], expect=2, LD_LIBRARY_PATH=toolkit.search_path)
    assert "usage: " in usage


def readme_block(language: str, containing: str) -> str:
    """Return the README's only code block in this language with the given text."""
    blocks = re.findall(
        rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (example,) = (block for block in blocks if containing in block)
    return example


def test_quickstart(tmp_path: Path, toolkit: Toolkit, runtime: list[str | Path]) -> None:
    snippet = readme_block("cpp", "llm.h")
    assert len(snippet.splitlines()) <= 15
    (tmp_path / "norm.py").write_text(readme_block("python", "rmsnorm_kernel"))
    (tmp_path / "llm.toml").write_text(readme_block("toml", "rmsnorm_kernel"))
    dist = build(tmp_path / "llm.toml", tmp_path / "dist")
    (tmp_path / "server.cpp").write_text(snippet + NORM_MAIN)
    program = tmp_path / "server"
    compiler = [*CPP, "-Werror", *toolkit.includes, f"-I{dist}"]
    libraries = [dist / "libllm.a", *runtime, toolkit.library]
    run([*compiler, tmp_path / "server.cpp", *libraries, "-o", program])
    text = run([program], LD_LIBRARY_PATH=toolkit.search_path)
    assert "launches: 1, live libraries: 0, violation: none" in text


@pytest.mark.slow
@pytest.mark.skipif(CMAKE is None, reason="the guide builds with CMake")
def test_the_guide_to_serving(tmp_path: Path, toolkit: Toolkit) -> None:
    """The guide's project, against an installed runtime: a launch, a capture, three replays."""
    assert CMAKE is not None
    guide = (ROOT / "docs" / "guide" / "serving-cpp.md").read_text()
    files: list[tuple[str, str]] = re.findall(
        r"(?ms)^<!-- file: (\S+) -->\n```\w*\n(.*?)^```$", guide
    )
    assert [name for name, _ in files] == ["CMakeLists.txt", "server.cpp", "Dockerfile"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    (tmp_path / "norm.py").write_text(readme_block("python", "rmsnorm_kernel"))
    (tmp_path / "llm.toml").write_text(readme_block("toml", "rmsnorm_kernel"))
    aotc = tmp_path / "aotc"
    aotc.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m aotc "$@"\n')
    aotc.chmod(0o755)

    built, installed = tmp_path / "build" / "runtime", tmp_path / "installed"
    zstd: list[str | Path] = ["-DAOTC_WITH_ZSTD=ON", f"-DZSTD_INCLUDE_DIR={toolkit.zstd}"]
    run([CMAKE, "-S", RUNTIME, "-B", built, DEBUG, *zstd, f"-DZSTD_LIBRARY={toolkit.libzstd}"])
    run([CMAKE, "--build", built, "-j", str(os.cpu_count() or 1)])
    run([CMAKE, "--install", built, "--prefix", installed])

    project = tmp_path / "build" / "server"
    configure: list[str | Path] = [CMAKE, "-S", tmp_path, "-B", project]
    configure += [f"-DCMAKE_PREFIX_PATH={installed}", f"-DCUDAToolkit_ROOT={toolkit.root}"]
    configure += [f"-DAOTC_EXECUTABLE={aotc}", f"-DZSTD_LIBRARY={toolkit.libzstd}"]
    run([*configure, "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"])
    run([CMAKE, "--build", project])
    text = run([project / "server"], LD_LIBRARY_PATH=toolkit.search_path)
    assert text.startswith("served")
    assert "launches: 2, live libraries: 0, violation: none" in text
