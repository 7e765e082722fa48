"""Start the recorder in a Python process, then run the environment's own sitecustomize."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def _start() -> None:
    spec = importlib.util.spec_from_file_location("_aotc_recorder", _HERE / "recorder.py")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        module.install()
    # The program's own path is as it would be without the recorder; children have the variable.
    sys.path[:] = [folder for folder in sys.path if not folder or Path(folder).resolve() != _HERE]
    following = PathFinder.find_spec("sitecustomize", sys.path)
    if following is not None and following.loader is not None:
        module = importlib.util.module_from_spec(following)
        sys.modules["sitecustomize"] = module
        following.loader.exec_module(module)


_start()
