"""Find the tools of NVIDIA's toolkit that were installed as Python packages."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from aotc.ir.diagnostics import IRError


@lru_cache(maxsize=16)
def find_file(wheel: str, suffix: str) -> Path:
    """Return the path of the file of an installed package whose path ends in `suffix`.

    Raises: IRError, saying what to install, if the package or the file is not there.
    """
    try:
        listed = files(wheel) or []
    except PackageNotFoundError:
        raise IRError(f"the package {wheel} is not installed: pip install {wheel}") from None
    for entry in listed:
        if str(entry).endswith("/" + suffix):
            path = Path(str(entry.locate()))
            if path.is_file():
                return path
    raise IRError(f"the package {wheel} has no {suffix}: install it again")
