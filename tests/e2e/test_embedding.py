"""The embedding bag: indices are loaded two iterations ahead, rows one, for any bags."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc import frontend
from aotc.backend import assemble, emit_ptx, lower_kernel
from aotc.config import Config
from aotc.ir.text import print_kernel
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run

SOURCE = str(Path(__file__).resolve().parents[2] / "kernels" / "embedding.py")
SIGNATURE = {
    "table_ptr": "*fp16:16", "index_ptr": "*i32", "weight_ptr": "*fp32", "offset_ptr": "*i32",
    "out_ptr": "*fp32:16", "stride": "i32:16", "n_bags": "i32", "dim": "i32",
}  # fmt: skip


def scheduled(unroll: int, num_stages: int, target: str = "sm_80"):
    constants = {"BLOCK": 64, "UNROLL": unroll, "STAGES": num_stages}
    translation = frontend.translate(
        SOURCE, "embedding_bag_kernel", SIGNATURE, constants, num_warps=1, target=target
    )
    schedule = Schedule(TARGETS[target], Config(1, num_stages))
    return schedule_kernel(translation.kernel, schedule), schedule


@pytest.mark.parametrize("num_stages", [1, 2, 4])
@pytest.mark.parametrize("unroll", [1, 4])
@pytest.mark.parametrize("dim", [1, 63, 64, 65])
def test_against_numpy(dim: int, unroll: int, num_stages: int) -> None:
    kernel, _ = scheduled(unroll, num_stages)
    random = np.random.default_rng(dim)
    offset = np.cumsum([0, 0, 1, 3, 4, 0, 17]).astype(np.int32)
    index = random.integers(-1, 9, offset[-1]).astype(np.int32)
    weight = random.integers(-4, 5, offset[-1]).astype(np.float32)
    stride = -(-dim // 16) * 16
    table = random.integers(-9, 10, (9, stride)).astype(np.float16)
    bags = len(offset) - 1
    out = np.full((bags, dim), 77, np.float32)
    args = [table, index, weight, offset, out, stride, bags, dim]
    run(kernel, (bags, -(-dim // 64)), args)
    for bag in range(bags):
        positions = [i for i in range(offset[bag], offset[bag + 1]) if index[i] >= 0]
        rows = table[index[positions], :dim].astype(np.float32)
        assert (out[bag] == (weight[positions][:, None] * rows).sum(axis=0)).all()


def test_indices_are_further_ahead_than_rows() -> None:
    kernel, schedule = scheduled(1, 3)
    assert any("pipelined over 3 stages through registers" in remark for remark in schedule.remarks)
    assert "not pipelined" not in "".join(schedule.remarks)
    loop = print_kernel(kernel).split("scf.for")[1].split("scf.yield")[0]
    assert loop.count("gpu.load") == 3
    assert loop.rindex("gpu.load") < loop.index("arith.add(%total")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
def test_it_assembles(target: str) -> None:
    kernel, _ = scheduled(4, 3, target)
    ptx = emit_ptx(lower_kernel(kernel, TARGETS[target]).llvm_ir, TARGETS[target])
    assembly = assemble(ptx, TARGETS[target])
    assert (assembly.spill_bytes, assembly.stack_bytes, assembly.warnings) == (0, 0, ())
