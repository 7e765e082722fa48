"""A `sitecustomize` to make Triton unimportable, for programs run from archives."""

from __future__ import annotations

# Before all other import finders: of triton, only the stand-in is found.
BLOCKER = """
import sys
from importlib.machinery import PathFinder

class Blocker:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "triton":
            return None
        spec = PathFinder.find_spec(name, [one for one in sys.path if one.endswith("stand_in")])
        if spec is None:
            raise ModuleNotFoundError("triton is blocked")
        return spec

sys.meta_path.insert(0, Blocker)
"""
