"""A reduction across a cluster becomes stores to all CTAs between two barriers of the cluster."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.dialects import grid
from aotc.ir.text import parse_kernel, print_kernel
from aotc.schedule.context import Schedule
from aotc.schedule.layout.expand_cluster_reductions import expand_cluster_reductions
from aotc.target import TARGETS
from aotc.verify.interpreter.program import InterpretError
from aotc.verify.interpreter.run import run

SUM_OF_RANKS = """
kernel @k(%out: *i32) {num_warps = 2} {
  %0 = grid.cta_rank : i32
  %1 = grid.cluster_reduce(%0) (%a: i32, %b: i32) {
    %2 = arith.add(%a, %b) : i32
    scf.yield(%2)
  } : i32
  %3 = arith.addptr(%out, %0) : *i32
  tile.store(%3, %1, _)
  scf.return
}
"""
NUM_CTAS = 4


def _expanded() -> Kernel:
    kernel = parse_kernel(SUM_OF_RANKS)
    kernel.num_ctas = NUM_CTAS
    expand_cluster_reductions(kernel, Schedule(TARGETS["sm_90a"], Config(2, 1, NUM_CTAS)))
    return kernel


def _summed(kernel: Kernel) -> list[int]:
    out = np.full(NUM_CTAS, -1, np.int32)
    run(kernel, (1,), [out])
    return out.tolist()


def test_every_cta_has_the_result_before_and_after() -> None:
    kernel = parse_kernel(SUM_OF_RANKS)
    kernel.num_ctas = NUM_CTAS
    assert _summed(kernel) == [6] * NUM_CTAS
    assert _summed(_expanded()) == [6] * NUM_CTAS


def test_stores_stand_between_two_barriers_of_the_cluster() -> None:
    text = print_kernel(_expanded())
    places = [text.index(each) for each in ("shared_alloc", "cluster_store", "shared_load")]
    barriers = [at for at in range(len(text)) if text.startswith("grid.cluster_barrier", at)]
    assert places[0] < barriers[0] < places[1] < barriers[1] < places[2]
    assert "cluster_reduce" not in text


def test_a_missing_barrier_before_the_load_is_found() -> None:
    kernel = _expanded()
    barriers = [op for op in kernel.walk() if isinstance(op, grid.ClusterBarrier)]
    barriers[1].erase()
    with pytest.raises(InterpretError):
        _summed(kernel)
