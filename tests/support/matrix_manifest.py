"""The manifest of every build of the cases of matrix kernels, for runs on a GPU.

    python -m tests.support.matrix_manifest [TARGET] > matrix_cases.toml

Tiles are as large as one would take them; every promise is optional, so each kernel is built
with all of them and with none. For Hopper some are built for clusters, too.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from aotc.ir.types import SCALARS, ScalarType
from aotc.verify.interpreter.numerics import dtype_of
from tests.support.matrix_cases import CASES, Constants, MatrixCase
from tests.support.tensors import Tensor

_LARGE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
_CLUSTERED = ("matmul", "matmul_even_k", "batched_matmul", "int8_matmul")
# Each warpgroup multiplies half of it, and its columns are two spans of a swizzle.
_TILE_OF_TWO = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32}


def large_build(case: MatrixCase, build: Constants) -> dict[str, Any]:
    """Return a build with tiles for tensor cores, where it has tiles at all."""
    if "HEAD_DIM" in build:
        return {**build, "HEAD_DIM": 64, "BLOCK_M": 64, "BLOCK_N": 32}
    if case.name in _CLUSTERED:
        return {**build, **_TILE_OF_TWO}
    return {**build, **_LARGE} if "GROUP_M" in build else dict(build)


def entry_name(case: MatrixCase, dtype: str, build: int) -> str:
    return f"{case.name}_{dtype}_{build}"


def _entry(case: MatrixCase, scalar: ScalarType, index: int, target: str) -> str:
    """Return the kernel's table in a manifest, every promise optional."""
    build = large_build(case, case.builds[index])
    launch = case.make(np.random.default_rng(0), scalar, case.shapes[0], build)
    lines = [
        "[[kernel]]",
        f'name = "{entry_name(case, str(scalar), index)}"',
        f'source = "{case.path}"',
        'guards = "together"',
        "[kernel.signature]",
    ]
    for name, arg in launch.args.items():
        if isinstance(arg, Tensor):
            element = next(str(s) for s in SCALARS.values() if dtype_of(s) == arg.view.dtype)
            lines.append(f'{name} = "*{element}:16?"')
        else:
            lines.append(f'{name} = "{"fp32" if isinstance(arg, float) else "i32:16?"}"')
    lines.append("[kernel.constants]")
    lines += [f"{key} = {json.dumps(value)}" for key, value in case.constants(build).items()]
    if case.name in _CLUSTERED and target == "sm_90a":
        lines += ["[kernel.configs]", "num_ctas = [1, 2]"]
    return "\n".join(lines)


def manifest_text(target: str) -> str:
    """Return a manifest of every build of every case."""
    head = f'[package]\nname = "cases"\nversion = "0.1.0"\ntargets = ["{target}"]\n'
    entries = [
        _entry(case, scalar, index, target)
        for case in CASES.values()
        for scalar in case.dtypes
        for index in range(len(case.builds))
    ]
    return "\n".join([head, *entries]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(manifest_text(*sys.argv[1:2] or ["sm_90a"]))
