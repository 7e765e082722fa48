"""Build and run the whole example on this host: archive, C++ program, Python program, sanitizer.

    python examples/multi_gpu/run.py [--launches N] [-o FOLDER]

It compiles the C++ program with CMake where there are CMake and a CUDA toolkit, otherwise with the C++
compiler alone and the CUDA headers and library of Python's `nvidia-cuda-runtime`. What is missing is
said, and left out; the exit status is 0 if all that ran was right, and something did.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ZSTD = "#include <stddef.h>\nsize_t ZSTD_decompress(void *, size_t, const void *, size_t);\n"


def run(*command: str | Path, **environment: str) -> bool:
    """Run a command in sight of the user; return whether it succeeded."""
    words = [str(word) for word in command]
    print("+", " ".join(words), flush=True)
    done = subprocess.run(words, check=False, env={**os.environ, **environment})
    return done.returncode == 0


def find_cuda() -> tuple[Path, Path] | None:
    """The folder of cuda_runtime_api.h, and libcudart."""
    packages = Path(sysconfig.get_path("purelib"))
    homes = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))]
    homes += sorted(packages.glob("nvidia/cu*"))
    for home in homes:
        libraries = [*home.glob("lib64/libcudart.so*"), *home.glob("lib/libcudart.so*")]
        if (home / "include" / "cuda_runtime_api.h").exists() and libraries:
            return home / "include", libraries[0]
    return None


def compile_with_cmake(folder: Path) -> Path | None:
    if shutil.which("cmake") is None or shutil.which("nvcc") is None:
        return None
    configured = run("cmake", "-S", HERE, "-B", folder)
    built = configured and run("cmake", "--build", folder, "-j", str(os.cpu_count() or 1))
    return folder / "multi_gpu" if built else None


def compile_alone(folder: Path) -> Path | None:
    """What CMake would do, by hand."""
    cuda = find_cuda()
    cc, cxx = os.environ.get("CC", "cc"), os.environ.get("CXX", "c++")
    if cuda is None or shutil.which(cc) is None or shutil.which(cxx) is None:
        return None
    include, library = cuda
    folder.mkdir(parents=True, exist_ok=True)
    found = subprocess.run(
        [cc, "-print-file-name=libzstd.so.1"], capture_output=True, text=True, check=True
    )
    zstd = found.stdout.strip()
    if not Path(zstd).is_absolute():
        print("there is no libzstd.so.1 to link", flush=True)
        return None
    (folder / "zstd.h").write_text(ZSTD)
    sources = sorted((ROOT / "runtime_c" / "src").glob("*.c"))
    flags = ["-O2", f"-I{ROOT / 'runtime_c' / 'include'}", f"-I{folder}", "-isystem", include]
    objects: list[Path] = []
    for source in sources:
        target = folder / f"{source.stem}.o"
        if not run(cc, "-std=c11", "-DAOTC_WITH_ZSTD", *flags, "-c", source, "-o", target):
            return None
        objects.append(target)
    program = folder / "multi_gpu"
    link = [zstd, library, f"-Wl,-rpath,{library.parent}", "-ldl", "-pthread"]
    built = run(cxx, "-std=c++17", *flags, HERE / "main.cpp", *objects, *link, "-o", program)
    return program if built else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", default="1000000")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build" / "multi_gpu")
    given = parser.parse_args()
    manifest, dist = HERE / "multi_gpu.toml", given.output / "dist"
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    aotc = [sys.executable, "-m", "aotc"]
    if not run(*aotc, "build", manifest, "-o", dist, **environment):
        return 1
    archive = dist / "multi_gpu.aotc"
    ran: dict[str, bool] = {}
    program = compile_with_cmake(given.output / "cmake") or compile_alone(given.output / "alone")
    if program is None:
        print(
            "not run: the C++ program needs a C++ compiler and CUDA's runtime library", flush=True
        )
    else:
        ran["C++"] = run(program, archive, "--launches", given.launches)
        sanitizer = shutil.which("compute-sanitizer")
        if sanitizer is None:
            print("not run: compute-sanitizer is not installed", flush=True)
        else:
            few = ["--launches", "2000"]
            # Not errors of the API: the loader asks for a parameter after the last one, to know
            # that a cubin has as many as the archive says, and is refused.
            options = ["--error-exitcode", "9", "--report-api-errors", "no"]
            ran["sanitizer"] = run(sanitizer, *options, program, archive, *few)
    try:
        import torch  # noqa: F401, PLC0415 - only to know
    except ImportError:
        print("not run: the Python program needs torch", flush=True)
    else:
        python = [sys.executable, HERE / "multi_gpu.py", archive]
        ran["Python"] = run(*python, "--launches", given.launches, **environment)
    for name, right in ran.items():
        print(f"{name}: {'right' if right else 'WRONG'}")
    return 0 if ran and all(ran.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
