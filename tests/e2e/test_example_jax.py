"""examples/jax: compiled as it says, and run on JAX's CPU platform over the fake driver."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aotc import cli
from tests.support import fake_gpu

if importlib.util.find_spec("jax") is None:
    pytest.skip("jax is not installed", allow_module_level=True)

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "jax"
RUNTIME = ROOT / "runtime_c"
CC, CXX = os.environ.get("CC", "cc"), os.environ.get("CXX", "c++")
FLAGS = ["-std=c++17", "-fPIC", "-shared", "-fpermissive", "-Wall", "-Wextra", "-Wconversion"]


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    process = subprocess.run(
        [*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the example's handlers; return the library of the handlers for JAX on a CPU."""
    folder = tmp_path_factory.mktemp("jax")
    libzstd = run(CC, "-print-file-name=libzstd.so.1").strip()
    if not Path(libzstd).is_absolute():
        pytest.skip("archives are zstd-compressed, and there is no libzstd.so.1 to link")
    # Its header may be missing where the library is not.
    (folder / "zstd.h").write_text(
        "#include <stddef.h>\nsize_t ZSTD_decompress(void *, size_t, const void *, size_t);\n"
    )
    arguments = ["build", str(EXAMPLE / "norms.toml"), "-o", str(folder), "--target", "sm_90a"]
    assert cli.run(arguments) == 0
    sources = sorted((RUNTIME / "src").glob("*.c"))
    includes = [f"-I{path}" for path in (RUNTIME / "include", folder, EXAMPLE)]
    run(CC, "-std=c11", "-fPIC", "-DAOTC_WITH_ZSTD", *includes, "-c", *sources, cwd=folder)
    include = run(sys.executable, "-c", "import jax; print(jax.ffi.include_dir())").strip()
    objects = [*sorted(folder.glob("*.o")), folder / "libnorms.a", libzstd, "-ldl", "-pthread"]
    for source in (EXAMPLE / "handlers.cpp", Path(__file__).parent / "jax_host.cpp"):
        shared_library = folder / f"lib{source.stem}.so"
        run(CXX, *FLAGS, "-isystem", include, *includes, source, *objects, "-o", shared_library)
    return folder / "libjax_host.so"


def test_the_kernel_in_jax(library: Path, tmp_path: Path) -> None:
    driver = fake_gpu.build(tmp_path)
    program = Path(__file__).parent / "jax_program.py"
    text = run(
        sys.executable, program, library, driver,
        LD_LIBRARY_PATH=str(tmp_path), PYTHONPATH=os.pathsep.join([str(ROOT), *filter(None, sys.path)]), JAX_PLATFORMS="cpu",
    )  # fmt: skip
    assert text == "right\n"
