"""Kernels with pointer loads turned into tensor copies, in the emulator, against NumPy.

Blocks are large enough for wgmma. So the ring of stages and the producer warp run, on maps encoded
by a launcher.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest

from aotc.compiler import PtxKernel, compile_ptx
from aotc.ir.expression import evaluate, parse
from aotc.verify.emulator.arguments import Argument
from aotc.verify.emulator.async_copies.tensor_argument import PlacedTensor
from aotc.verify.emulator.run import emulate
from tests.support.pointer_kernels import MAPPED, Case, Launch, launch, request

NUM_CTAS = 3  # of a persistent kernel
BLOCK = (64, 32, 32)
SHAPES = ((64, 32, 32), (1, 8, 8), (72, 24, 104), (63, 40, 40), (128, 32, 7))


def run(kernel: PtxKernel, launch: Launch, seed: int) -> bool:
    """Run a launch if the kernel's guards hold; return whether they do."""
    numbers = {name: value for name, value in launch.args.items() if isinstance(value, int)}
    if not all(evaluate(parse(guard), numbers) for guard in kernel.guards):
        return False
    args: list[Argument] = []
    values = {**launch.args, **{f"grid[{axis}]": size for axis, size in enumerate(launch.grid)}}
    for slot in kernel.params:
        spec = slot.tensor_map
        if spec is None:
            args.append(values[slot.source or slot.argument])
            continue
        shape, strides = (
            tuple(evaluate(parse(text), numbers) for text in texts)
            for texts in (spec.shape, spec.strides)
        )
        layout = (launch.args[spec.address], spec.element, shape, (*strides, 1))
        args.append(PlacedTensor(*layout, spec.box, spec.swizzle_bytes, fill_nan=spec.fill_nan))
    options = {"kernel": kernel.symbol, "shared_bytes": kernel.shared_bytes, "seed": seed}
    loops = any(slot.source == "grid[0]" for slot in kernel.params)
    grid = (min(NUM_CTAS, prod(launch.grid)),) if loops else launch.grid
    emulate(kernel.ptx, grid, args, **options)
    return True


@pytest.mark.parametrize(("name", "case"), MAPPED.items(), ids=MAPPED)
def test_against_reference(tmp_path: Path, name: str, case: Case) -> None:
    large = replace(case, block=BLOCK)
    kernel = compile_ptx(request(tmp_path, large, map_pointers=True))
    assert sum(slot.tensor_map is not None for slot in kernel.params) == 2
    assert "cp.async.bulk.tensor" in kernel.ptx
    seed = int(hashlib.sha256(name.encode()).hexdigest()[:4], 16)
    for shape in SHAPES:
        case_launch = launch(large, *shape)
        if run(kernel, case_launch, seed):
            np.testing.assert_array_equal(case_launch.args["out_ptr"], case_launch.expected)
    whole = launch(large, *SHAPES[0])
    assert run(kernel, whole, seed)


@pytest.mark.parametrize("num_warps", [4, 8])
@pytest.mark.parametrize("block", [(16, 16, 16), (128, 64, 64)])
def test_other_blocks(tmp_path: Path, block: tuple[int, int, int], num_warps: int) -> None:
    """Products of one warp each, and of two warpgroups."""
    case = replace(MAPPED["part"], block=block)
    kernel = compile_ptx(request(tmp_path, case, num_warps, map_pointers=True))
    for shape in ((33, 24, 40), (17, 8, 16)):
        case_launch = launch(case, *shape)
        assert run(kernel, case_launch, num_warps)
        np.testing.assert_array_equal(case_launch.args["out_ptr"], case_launch.expected)
