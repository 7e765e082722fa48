"""Find the tools of NVIDIA's toolkit installed as Python packages.

They share the namespace package `nvidia`, with one folder for each major version of the toolkit.
Searching it takes a few file look-ups; asking the package metadata would take as long as importing
the backend.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from aotc.ir.diagnostics import HostError
from aotc.target import PTXAS_VERSIONS

_TOOLKIT_FOLDER = "cu13"
_CUDA_12_FOLDER = "cuda_nvcc"


@lru_cache(maxsize=16)
def find_file(wheel: str, name: str) -> Path:
    """Return the path of the toolkit's file `name`, such as "bin/ptxas", from `wheel`.

    Raises: HostError, with the package to install, if it is not there.
    """
    for root in _roots():
        path = root / _TOOLKIT_FOLDER / name
        if path.is_file():
            return path
    raise HostError(f"{Path(name).name} is not installed", remedy=f"pip install {wheel}")


@lru_cache(maxsize=4)
def find_ptxas(toolchain: str) -> Path:
    """Return the path of the ptxas of a CUDA release. Raises: HostError, as `find_file`."""
    if toolchain not in PTXAS_VERSIONS:
        return find_file("nvidia-cuda-nvcc", "bin/ptxas")
    version = PTXAS_VERSIONS[toolchain]
    for root in _roots():
        path = root / _CUDA_12_FOLDER / "bin" / "ptxas"
        installed = root.parent / f"nvidia_cuda_nvcc_cu12-{version}.dist-info"
        if path.is_file() and installed.is_dir():
            return path
    message = f"the ptxas of CUDA {toolchain} is not installed"
    raise HostError(message, remedy=f"pip install nvidia-cuda-nvcc-cu12=={version}")


def _roots() -> list[Path]:
    spec = find_spec("nvidia")
    return [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
