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

_TOOLKIT_FOLDER = "cu13"


@lru_cache(maxsize=16)
def find_file(wheel: str, name: str) -> Path:
    """Return the path of the toolkit's file `name`, such as "bin/ptxas", from `wheel`.

    Raises: HostError, with the package to install, if it is not there.
    """
    spec = find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(root, _TOOLKIT_FOLDER, name)
        if path.is_file():
            return path
    raise HostError(f"{Path(name).name} is not installed", remedy=f"pip install {wheel}")
