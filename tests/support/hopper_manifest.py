"""The manifest of every build of the Hopper cases, for runs on a GPU.

    python -m tests.support.hopper_manifest > hopper_cases.toml

It has the tiles of the cases and larger ones. Every kernel is built with few and many warps, shallow
and deep pipelines, and, where it can say so, with specialised warps and without.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from tests.support.hopper_cases import Constants, HopperCase, constants_of, points, scalar_of

_LARGE = {"BLOCK_M": 128, "BLOCK_N": 128}
_KEYS = {"num_warps": [4, 8], "num_stages": [2, 4]}
_KEYS_OF = {"blockwise": {"mma_stages": [1, 2]}}


def builds_of(case: HopperCase, build: int) -> list[Constants]:
    """Return a build of a case and, if it stores whole tiles, the same with larger ones."""
    small = case.builds[build]
    if "EPILOGUE_N" in small and small["EPILOGUE_N"] != small["BLOCK_N"]:
        return [small]
    if "NUM_SMS" not in small:
        return [small]
    wide = {"EPILOGUE_N": _LARGE["BLOCK_N"]} if "EPILOGUE_N" in small else {}
    return [small, {**small, **_LARGE, **wide, "NUM_SMS": 132}]


def entry_name(case: HopperCase, dtype: str, build: int, index: int) -> str:
    """Return the name of a kernel in the manifest."""
    return f"{case.name}_{dtype}_{build}_{index}"


def _entry(case: HopperCase, dtype: str, build: int, index: int) -> str:
    config = builds_of(case, build)[index]
    launch = case.make(np.random.default_rng(0), scalar_of(dtype), case.shapes[0], config)
    constants = constants_of(config)
    keys: dict[str, list[Any]] = {**_KEYS, **_KEYS_OF.get(case.name, {})}
    if case.may_specialize:
        keys["WARP_SPECIALIZE"] = [False, True]
        constants.pop("WARP_SPECIALIZE", None)
    types = case.types(dtype, constants, launch)
    lines = [
        "[[kernel]]",
        f'name = "{entry_name(case, dtype, build, index)}"',
        f'source = "{case.path}:{case.function}"',
        "[kernel.signature]",
        *(f'{name} = "{text}"' for name, text in types.items()),
        "[kernel.constants]",
        *(f"{name} = {json.dumps(value)}" for name, value in constants.items()),
        "[kernel.configs]",
        *(f"{name} = {json.dumps(values)}" for name, values in keys.items()),
    ]
    return "\n".join(lines)


def entries() -> list[tuple[HopperCase, str, int, int]]:
    """Return every case, type, build, and index of its sizes."""
    return [
        (case, dtype, build, index)
        for case, dtype, build in points()
        for index in range(len(builds_of(case, build)))
    ]


def manifest_text(target: str = "sm_90a") -> str:
    """Return a manifest of every build of every case."""
    head = f'[package]\nname = "hopper_cases"\nversion = "0.1.0"\ntargets = ["{target}"]\n'
    return "\n".join([head, *(_entry(*entry) for entry in entries())]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(manifest_text(*sys.argv[1:2]))
