"""Order in step: CTAs furthest behind run first, so equal work runs together."""

from __future__ import annotations

import gc
from collections import Counter
from types import UnionType

import numpy as np
import pytest

from aotc.verify.emulator.engine.divergence import Group
from aotc.verify.emulator.engine.machine import Batch, Deferred
from aotc.verify.emulator.engine.registers import RegisterFile
from aotc.verify.emulator.engine.scheduler import Scheduler
from aotc.verify.emulator.run import _prepare
from tests.support.ptx_kernel import run

INIT = """
    mov.b32 %r6, 0; setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r1+512], 1; fence.mbarrier_init.release.cluster;
    mad.lo.u32 %r2, %r0, 4, %r1; st.shared.b32 [%r2+256], %r6; fence.proxy.async; bar.sync 0;
"""
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


def _load_and_wait(source: str) -> str:
    """Copy 64 bytes in and wait for them; the phase is the lowest bit of %r8."""
    return f"""
    @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd30, [%r1+512], 64;
    @%p1 {LOAD} [%r1], [{source}], 64, [%r1+512];
    wait: mbarrier.try_wait.parity.shared.b64 %p2, [%r1+512], %r8; @!%p2 bra wait;
    """


def _runs(body: str, monkeypatch: pytest.MonkeyPatch, mark: str, *more: np.ndarray) -> list[int]:
    """Return the lane count at each execution of an instruction, with four CTAs."""
    counts: list[int] = []
    plain = Scheduler._run

    def watched(self: Scheduler, group: Group) -> None:
        segment = self._code.segments[group.pc]
        texts = [
            instruction.text for instruction in self._code.instructions[group.pc : segment.stop]
        ]
        counts.extend([group.count] * texts.count(mark))
        plain(self, group)

    monkeypatch.setattr(Scheduler, "_run", watched)
    out = np.zeros((4, 32), np.int32)
    store = """
    mad.lo.s32 %r9, %r5, 32, %r0; mul.wide.s32 %rd9, %r9, 4; add.s64 %rd8, %rd0, %rd9;
    st.global.b32 [%rd8], %r7;
    """
    run(
        f"mov.u32 %r5, %ctaid.x; mov.b32 %r6, 0; mov.b32 %r7, 0; {body} {store}", out, *more, grid=4
    )
    assert (out == out[:, :1]).all()
    return counts


def test_fewer_trips_of_a_loop_run_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One CTA has extra work in each iteration, in a block after the loop."""
    body = """
    setp.eq.s32 %p1, %r5, 1;
    loop: add.s32 %r6, %r6, 1; @%p1 bra more;
    next: setp.lt.s32 %p2, %r6, 5; @%p2 bra loop; bra done;
    more: add.s32 %r7, %r7, 3; bra next;
    done:
    """
    assert _runs(body, monkeypatch, "add.s32 %r6, %r6, 1") == [128] * 5


def test_lanes_in_a_loop_run_before_lanes_past_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each CTA goes round the inner loop another number of times, then all of them go on."""
    body = """
    outer: add.s32 %r7, %r7, 1; mov.b32 %r8, 0;
    inner: add.s32 %r8, %r8, 1; setp.le.s32 %p1, %r8, %r5; @%p1 bra inner;
    add.s32 %r6, %r6, 1; setp.lt.s32 %p2, %r6, 3; @%p2 bra outer;
    """
    assert _runs(body, monkeypatch, "add.s32 %r6, %r6, 1") == [128] * 3
    counts = Counter(_runs(body, monkeypatch, "add.s32 %r8, %r8, 1"))
    assert counts == {128: 3, 96: 3, 64: 3, 32: 3}


def test_blocks_before_the_entry_come_last_in_a_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop is entered at its test; then one CTA alone has extra work."""
    body = """
    setp.eq.s32 %p1, %r5, 1; bra test;
    loop: add.s32 %r6, %r6, 1;
    test: setp.ge.s32 %p2, %r6, 5; @%p2 bra done;
    @%p1 bra more; bra loop;
    more: add.s32 %r7, %r7, 3; bra loop;
    done:
    """
    assert _runs(body, monkeypatch, "add.s32 %r6, %r6, 1") == [128] * 5


def test_unequal_waits_keep_ctas_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each iteration CTAs wait for a copy; in one of them it follows a store."""
    body = f"""
    {INIT} setp.eq.and.u32 %p3, %r5, 1, %p1;
    loop: and.b32 %r8, %r6, 1; add.s32 %r6, %r6, 1;
    @%p3 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1+256], 64;
    @%p3 cp.async.bulk.commit_group;
    {_load_and_wait("%rd2")}
    setp.lt.s32 %p2, %r6, 5; @%p2 bra loop;
    @%p3 cp.async.bulk.wait_group 0;
    """
    stored, read = np.ones(16, np.int32), np.ones(16, np.int32)
    counts = _runs(body, monkeypatch, "add.s32 %r6, %r6, 1", stored, read)
    assert counts == [128] * 5


def test_batches_and_steps_are_freed_with_their_owners() -> None:
    """They are in no reference cycle: large arrays would stay until the garbage collector runs."""

    def count(kinds: type | UnionType) -> int:
        return len([candidate for candidate in gc.get_objects() if isinstance(candidate, kinds)])

    _prepare.cache_clear()
    gc.collect()
    gc.disable()
    try:
        before = count(Batch | Deferred), count(RegisterFile)
        body = f"{INIT} mov.b32 %r8, 0; {_load_and_wait('%rd0')}"
        run(body, np.ones(16, np.int32), shared=1024)
        assert count(Batch | Deferred) == before[0]
        _prepare.cache_clear()
        assert count(RegisterFile) == before[1]
    finally:
        gc.enable()
