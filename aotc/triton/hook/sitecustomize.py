"""Install archives in a Python process, then run the environment's own sitecustomize."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_VARIABLE = "AOTC_REPLAY"


def _install(words: dict[str, object]) -> str:
    """Install archives; return the error's text, "" on success."""
    try:
        from aotc.runtime.errors import AotcError  # noqa: PLC0415 - it may be missing
        from aotc.triton import install  # noqa: PLC0415 - as above
    except ImportError as error:
        return f"{sys.executable} cannot import aotc: {error}; install aotc-runtime there"
    try:
        install(**words)  # type: ignore[arg-type]
    except (AotcError, ValueError) as error:
        return str(error)
    return ""


def _start() -> None:
    # The program's own path is as it would be without this folder; children have the variable.
    sys.path[:] = [folder for folder in sys.path if not folder or Path(folder).resolve() != _HERE]
    settings = os.environ.get(_VARIABLE)
    problem = _install(json.loads(settings)) if settings else ""
    if problem:
        sys.stderr.write(f"error: {problem}\n")
        sys.stderr.flush()
        os._exit(1)  # an exception here ends in a dump of the interpreter
    following = PathFinder.find_spec("sitecustomize", sys.path)
    if following is not None and following.loader is not None:
        module = importlib.util.module_from_spec(following)
        sys.modules["sitecustomize"] = module
        following.loader.exec_module(module)


_start()
