"""Registers share a row only if never live together, and undefined reads are found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.verify.emulator.engine.registers import Allocation
from aotc.verify.emulator.text.cfg import analyse, build_cfg
from aotc.verify.emulator.text.effects import effect_of
from aotc.verify.emulator.text.parse import parse_module
from tests.support.ptx_kernel import collect, faults, run
from tests.verify.emulator.text.test_cfg import programs


def allocation_of(instructions):
    cfg = build_cfg(instructions)
    flow = analyse(instructions, cfg)
    return cfg, flow, Allocation(instructions, cfg, flow)


@given(programs())
def test_live_registers_share_no_row(instructions):
    cfg, flow, allocation = allocation_of(instructions)
    registers = list(flow.numbers)
    for index, block in enumerate(cfg.blocks):
        live = {r for r in registers if flow.live_out[index] >> flow.numbers[r] & 1}
        for pc in range(block.stop - 1, block.start - 1, -1):
            effect = effect_of(instructions[pc])
            unread = set(effect.writes) - live  # they are written all the same
            live |= unread
            rows = [(r.bits, allocation.row_of[r.bits, r.row]) for r in sorted(live, key=str)]
            assert len(set(rows)) == len(rows)
            live -= unread if instructions[pc].guard else set(effect.writes)
            live |= set(effect.reads)


def test_dead_registers_give_their_rows_away():
    chain = "".join(f"add.s32 %r{i + 1}, %r{i}, %r{i};" for i in range(50))
    text = f".entry k() {{ .reg .b32 %r<64>; mov.b32 %r0, 1; {chain} ret; }}"
    _, _, allocation = allocation_of(parse_module(text).kernels["k"].instructions)
    assert allocation.rows == {32: 1}


def test_several_results_are_written_before_all_is_read():
    # The second result must not lie where the source still is.
    out = collect("mov.b64 %rd1, 0x500000003; mov.b64 {%r2, %r3}, %rd1; sub.s32 %r63, %r3, %r2;")
    np.testing.assert_array_equal(out, 2)


# ---- definedness --------------------------------------------------------------------------------


def test_undefined_register():
    fault = faults("add.s32 %r5, %r4, 1;", kind="undefined", match="%r4 is read and was never")
    assert fault.text == "add.s32 %r5, %r4, 1"
    assert (fault.cta, fault.thread) == ((0, 0, 0), 0)


def test_unwritten_registers_may_be_noise():
    body = "add.s32 %r63, %r4, 1; prmt.b32 %r5, %r6, %r7, 0x3340; mov.b16 %h1, %h2;"
    first = collect(body, reads_unwritten=True)
    assert len(set(first.tolist())) > 30
    assert (collect(body, reads_unwritten=True, seed=1) != first).any()


def test_defined_in_some_lanes_only():
    body = "setp.lt.u32 %p1, %r0, 5; @%p1 mov.b32 %r4, 1; add.s32 %r5, %r4, 1;"
    assert faults(body, kind="undefined").thread == 5
    fine = "setp.lt.u32 %p1, %r0, 5; @%p1 mov.b32 %r4, 1; @%p1 add.s32 %r5, %r4, 1;"
    run(fine)


def test_defined_on_one_side_of_a_branch():
    body = """
        setp.ge.u32 %p1, %r0, 30;
        @%p1 bra over;
        mov.b32 %r4, 7;
    over:
        add.s32 %r5, %r4, 1;
    """
    assert faults(body, kind="undefined").thread == 30


def test_copies_of_undefined_registers_are_undefined():
    run("mov.b32 %r5, %r4; mov.b32 %r6, %r5;")
    faults("mov.b32 %r5, %r4; mov.b32 %r6, %r5; not.b32 %r7, %r6;", kind="undefined", match="%r6")


def test_unselected_bytes_may_be_undefined():
    out = collect("mov.b32 %r5, 0x04030201; prmt.b32 %r63, %r5, %r4, 0x0213;")
    np.testing.assert_array_equal(out, 0x01030204)
    out = collect("mov.b32 %r5, 0x04030201; prmt.b32 %r63, %r4, %r5, 0x7654;")
    np.testing.assert_array_equal(out, 0x04030201)
    faults("mov.b32 %r5, 1; prmt.b32 %r6, %r5, %r4, 0x3214;", kind="undefined", match="%r4")


def test_an_unused_half_may_be_undefined():
    body = "mov.b16 %h1, 7; mov.b32 %r5, {%h1, %h2}; prmt.b32 %r63, %r5, 0, 0x7710;"
    np.testing.assert_array_equal(collect(body), 7)
    faults("mov.b32 %r5, {%h1, %h2};", kind="undefined", match="%h1")


def test_undefined_in_a_loop_until_written():
    body = """
        mov.b32 %r4, 0;
    again:
        setp.eq.u32 %p1, %r4, 0;
        @%p1 mov.b32 %r5, 3;
        add.s32 %r5, %r5, 1;
        add.s32 %r4, %r4, 1;
        setp.lt.u32 %p2, %r4, 4;
        @%p2 bra again;
        mov.b32 %r63, %r5;
    """
    np.testing.assert_array_equal(collect(body), 7)


@pytest.mark.parametrize(
    "use",
    [
        "@%p1 bra end; end:",
        "@%p1 mov.b32 %r5, 1;",
        "@%p1 ret;",
        "selp.b32 %r5, 1, 2, %p1;",
        "st.shared.b32 [%r1], %r5;",
        "ld.shared.b32 %r4, [%r5];",
        "bar.sync %r5;",
        "shfl.sync.idx.b32 %r4, %r5, 0, 31, -1;",
    ],
)
def test_every_use_is_checked(use):
    faults(use, kind="undefined", match="never written")


def test_each_batch_starts_undefined():
    # The second batch must not see writes of the first.
    body = """
        mov.u32 %r2, %ctaid.x;
        setp.eq.u32 %p1, %r2, 0;
        @%p1 mov.b32 %r4, 1;
        mov.b32 %r5, %r4;
        @!%p1 add.s32 %r6, %r5, 1;
    """
    assert faults(body, kind="undefined", grid=2, max_memory_bytes=30_000).cta == (1, 0, 0)


@given(st.integers(0, 3))
def test_registers_hold_across_divergence(seed):
    body = """
        mov.b32 %r4, %r0;
        and.b32 %r5, %r0, 1;
        setp.eq.u32 %p1, %r5, 0;
        @%p1 bra even;
        add.s32 %r6, %r4, 100;
        bra join;
    even:
        add.s32 %r6, %r4, 200;
    join:
        add.s32 %r63, %r6, %r4;
    """
    lane = np.arange(64)
    out = collect(body, threads=64, seed=seed)
    np.testing.assert_array_equal(out, 2 * lane + np.where(lane % 2, 100, 200))
