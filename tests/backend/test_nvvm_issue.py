"""Single-thread issue: in one branch, elected, never predicated on its own."""

from __future__ import annotations

import re

import pytest

import aotc
from aotc.backend.emitter import Emitter
from aotc.backend.nvvm_issue import Issue, Issuer, issue
from aotc.backend.nvvm_memory import Address
from aotc.backend.nvvm_tensor import (
    TensorCopy,
    bulk_load,
    bulk_store,
    commit_stores,
    mbarrier_arrive,
    mbarrier_expect,
    tensor_load,
    tensor_store,
)

FULL = Address("shared", "%shared", 64)
TILE = Address("shared", "%shared", 1024)
FIRST = Issuer("%is_first")


def _load(emit: Emitter, issuer: Issuer, condition: str = "") -> None:
    mbarrier_expect(emit, FULL, "512", issuer, arrive=True)
    tensor_load(emit, TensorCopy("%map", ["%x", "0"], TILE, condition), FULL, "", issuer)


def _lines(emit: Emitter) -> list[str]:
    """Return the emitted instructions, each asm call's as one string."""
    emit.release()
    calls = [re.search('"(.*?)"', line) for line in emit.lines]
    texts = [
        line if call is None else call[1] for line, call in zip(emit.lines, calls, strict=True)
    ]
    return [part.split(" [")[0].strip() for text in texts for part in text.split("\\0A\\09")]


def test_neighbours_share_a_branch_of_one_elected_lane() -> None:
    emit = Emitter()
    _load(emit, FIRST)
    _load(emit, FIRST)
    copy = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    expect = "mbarrier.arrive.expect_tx.shared::cta.b64 _,"
    assert _lines(emit) == [
        *("{", ".reg .pred elected;", "@!$4 bra.uni done;", "elect.sync _|elected, 0xffffffff;"),
        *("@!elected bra others;", expect, copy, expect, copy),
        *("others: bar.warp.sync 0xffffffff;", "done:", "}"),
    ]


def test_operands_are_named_once() -> None:
    emit = Emitter()
    _load(emit, FIRST)
    _load(emit, FIRST)
    emit.release()
    (call,) = emit.lines
    assert call.endswith('"r,l,r,r,b"(i32 %shared, ptr %map, i32 %x, i32 0, i1 %is_first) #0')


def test_what_depends_on_the_warp_is_skipped_by_a_branch() -> None:
    emit = Emitter()
    for condition in ("%is_first", "%is_first", "%is_second"):
        tensor_store(emit, TensorCopy("%map", ["%x"], TILE, condition), Issuer())
    commit_stores(emit, Issuer())
    store = "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group"
    assert _lines(emit)[4:-2] == [
        *("@!$3 bra skip0;", store, store, "skip0:", "@!$4 bra skip1;", store, "skip1:"),
        "cp.async.bulk.commit_group;",
    ]


def test_an_effect_ends_the_branch_and_a_pure_value_does_not() -> None:
    emit = Emitter()
    _load(emit, FIRST)
    pure = emit.value("add i32 %x, 64")
    tensor_load(emit, TensorCopy("%map", [pure], TILE), FULL, "", FIRST)
    emit.effect("store i32 0, ptr %p")
    _load(emit, FIRST)
    kinds = [line.split()[0] for line in emit.lines]
    assert kinds == [pure, "call", "store"]
    emit.release()
    assert [line.split()[0] for line in emit.lines][3:] == ["call"]


@pytest.mark.parametrize("other", [Issuer(), Issuer("%is_last"), Issuer(lane="%is_lane")])
def test_other_issuers_have_branches_of_their_own(other: Issuer) -> None:
    emit = Emitter()
    _load(emit, FIRST)
    _load(emit, other)
    emit.release()
    assert len(emit.lines) == 2


def test_a_lane_that_is_known_is_not_elected() -> None:
    emit = Emitter()
    _load(emit, Issuer("%is_first", "%is_lane"), "%any_bytes")
    lines = _lines(emit)
    assert "elect" not in "\n".join(lines)
    assert lines[1].endswith("bra.uni done;")
    assert lines[2].endswith("bra others;")
    assert lines[-3:] == ["others: bar.warp.sync 0xffffffff;", "done:", "}"]


def test_an_arrival_at_each_block_of_a_cluster_is_one_lanes() -> None:
    emit = Emitter()
    mbarrier_arrive(emit, FULL, Issuer(lane="%is_lane"), "", 2)
    text = "\n".join(_lines(emit))
    assert text.count("mapa.shared::cluster.u32 there, ") == 2
    assert text.count("bra others;") == 1


def test_a_held_branch_is_written_before_a_label_and_dropped_with_an_attempt() -> None:
    emit = Emitter()
    _load(emit, FIRST)
    mark = emit.mark()
    assert len(emit.lines) == 1
    _load(emit, FIRST)
    emit.rewind(mark)
    emit.start_block("next")
    assert emit.lines[1:] == ["next:"]
    assert isinstance(issue(emit, FIRST), Issue)


def test_an_offset_before_a_pointer_is_added() -> None:
    """As ptxas takes it: a difference is a syntax error."""
    emit = Emitter()
    before = Address("global", "%pointer", -64)
    bulk_load(emit, before, TILE, "256", FULL, "", FIRST, "")
    bulk_store(emit, before, TILE, "256", FIRST, "")
    emit.release()
    (call,) = emit.lines
    assert call.count("[$1+-64]") == 2


_PREDICATED = re.compile(
    r"@!?%\w+\s+(cp\.(reduce\.)?async\.bulk|mbarrier\.(init|arrive|expect)|prefetch\.tensormap)"
)


@pytest.mark.parametrize("num_warps", [1, 2, 4, 8, 16])
def test_nothing_asynchronous_is_predicated(num_warps: int) -> None:
    """In attention without a producer warp, with two tiles copied per iteration."""
    extents = "[1,64,64]"
    compiled_kernel = aotc.compile(
        "kernels/attention_descriptor.py:attention_descriptor_kernel",
        signature=dict.fromkeys(("q", "k", "v", "out"), f"tensordesc<bf16{extents}>")
        | {"scale_log2": "fp32"}
        | dict.fromkeys(("n_heads", "heads_per_kv_head", "n_queries", "n_keys"), "i32"),
        constants={"HEAD_DIM": 64, "BLOCK_M": 64, "BLOCK_N": 64, "CAUSAL": True, "TOGETHER": 2},
        warp_specialize=False,
        num_warps=num_warps,
        limits={"spill_bytes": 4096},  # by one warp
    )
    ptx = compiled_kernel.asm["ptx"]
    assert not _PREDICATED.search(ptx)
    assert ptx.count("elect.sync") >= 4
    assert not re.search(r"@!?U?P\d+ +(UTMA|UBLK)", compiled_kernel.asm["sass"])
