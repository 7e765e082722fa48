"""Kernels of a manifest as Triton launches them: function, constants, grid, blocks of descriptors."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli

from aotc.config import CONFIG_KEYS

ROOT = Path(__file__).parents[2]
_RULES = {"cdiv": lambda value, by: -(-value // by), "min": min, "max": max}
# Keys of aotc's configs that Triton's launch does not take.
_OWN = CONFIG_KEYS.keys() - {"num_warps", "num_stages", "maxnreg"}


@functools.cache
def tables(manifest: str) -> Mapping[str, dict[str, Any]]:
    """Return the kernels' tables of a manifest, by name."""
    text = (ROOT / manifest).read_text()
    return {
        table.get("name", table["source"].partition(":")[2]): table
        for table in tomli.loads(text)["kernel"]
    }


def function(manifest: str, table: Mapping[str, Any]) -> Any:
    """Import a kernel as Triton's users do, below its autotuner and heuristics."""
    file, _, name = table["source"].partition(":")
    path = (ROOT / manifest).parent / file
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.insert(0, folder)
    kernel = getattr(importlib.import_module(path.stem), name)
    while type(kernel).__name__ != "JITFunction":
        kernel = kernel.fn
    return kernel


def block_of(kind: object, constants: Mapping[str, Any]) -> list[int] | None:
    """Return the block of a descriptor's type, or None for another type."""
    if not isinstance(kind, str) or not kind.startswith("tensordesc<"):
        return None
    extents = kind[kind.index("[") + 1 : kind.rindex("]")].split(",")
    return [int(eval(extent, _RULES, dict(constants))) for extent in extents]


def grid_of(table: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the grid for arguments, constants and a config."""
    return tuple(int(eval(text, _RULES, dict(values))) for text in table["grid"])


def triton_configs(configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return aotc's configs without its own keys and clusters, for Triton to try as well."""
    alone = [config for config in configs if config.get("num_ctas", 1) == 1]
    plain = [{key: value for key, value in config.items() if key not in _OWN} for config in alone]
    return [config for index, config in enumerate(plain) if config not in plain[:index]]
