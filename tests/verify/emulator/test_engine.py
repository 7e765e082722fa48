"""Divergence, reconvergence, fairness, limits: results against a Python loop over the threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.extent import examples
from tests.support.ptx_kernel import collect, faults, run

SEEDS = [0, 1, 2]
LANE = np.arange(32)


def collatz(number):
    steps = 0
    while number > 1:
        number = 3 * number + 1 if number % 2 else number // 2
        steps += 1
    return steps


COLLATZ = """
    add.s32 %r3, %r0, 1;
    mov.b32 %r4, 0;
    bra test;
step:
    add.s32 %r4, %r4, 1;
    and.b32 %r5, %r3, 1;
    setp.eq.s32 %p1, %r5, 0;
    @%p1 bra even;
    mul.lo.s32 %r6, %r3, 3;
    add.s32 %r3, %r6, 1;
    bra test;
even:
    shr.u32 %r3, %r3, 1;
test:
    setp.gt.u32 %p2, %r3, 1;
    @%p2 bra step;
    mov.b32 %r63, %r4;
"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("threads", [1, 31, 32, 33, 100])
def test_trip_counts_of_each_lane(threads, seed):
    out = collect(COLLATZ, threads=threads, seed=seed)
    np.testing.assert_array_equal(out, [collatz(lane + 1) for lane in range(threads)])


@pytest.mark.parametrize("seed", SEEDS)
def test_lanes_reconverge_behind_a_loop(seed):
    # Whole warps must be there again, or the shuffle and the vote are refused.
    body = (
        COLLATZ
        + """
        shfl.sync.down.b32 %r7, %r4, 1, 31, -1;
        vote.sync.ballot.b32 %r8, 1, -1;
        mov.b32 %r63, %r7;
    """
    )
    steps = [collatz(lane + 1) for lane in range(32)]
    np.testing.assert_array_equal(collect(body, seed=seed), [*steps[1:], steps[31]])


@pytest.mark.parametrize("seed", SEEDS)
def test_nested_divergence_with_break(seed):
    # for i in range(lane): for j in range(i): if i * j > 40: break out of both; total += 1
    body = """
        mov.b32 %r4, 0;
        mov.b32 %r5, 0;
    outer:
        setp.ge.u32 %p1, %r5, %r0;
        @%p1 bra done;
        mov.b32 %r6, 0;
    inner:
        setp.ge.u32 %p2, %r6, %r5;
        @%p2 bra next;
        mul.lo.u32 %r7, %r5, %r6;
        setp.gt.u32 %p3, %r7, 40;
        @%p3 bra done;
        add.s32 %r4, %r4, 1;
        add.s32 %r6, %r6, 1;
        bra inner;
    next:
        add.s32 %r5, %r5, 1;
        bra outer;
    done:
        bar.sync 0;
        mov.b32 %r63, %r4;
    """

    def count(lane):
        total = 0
        for i in range(lane):
            for j in range(i):
                if i * j > 40:
                    return total
                total += 1
        return total

    out = collect(body, threads=64, seed=seed)
    np.testing.assert_array_equal(out, [count(lane) for lane in range(64)])


@pytest.mark.parametrize("seed", SEEDS)
def test_early_exit_of_some_lanes(seed):
    body = """
        and.b32 %r4, %r0, 3;
        setp.eq.u32 %p1, %r4, 1;
        @%p1 ret;
        activemask.b32 %r63;
    """
    out = collect(body, seed=seed)
    np.testing.assert_array_equal(out, np.where(LANE % 4 == 1, 0xA5, 0xDDDDDDDD))


def test_exit_of_one_arm_frees_the_other():
    body = """
        setp.lt.u32 %p1, %r0, 16;
        @%p1 bra leave;
        mov.b32 %r4, 1;
        bra join;
    leave:
        setp.lt.u32 %p2, %r0, 8;
        @%p2 exit;
        mov.b32 %r4, 2;
    join:
        add.s32 %r63, %r4, 40;
    """
    expected = np.select([LANE < 8, LANE < 16], [0xA5, 42], 41)
    np.testing.assert_array_equal(collect(body), expected)


def test_jump_table():
    body = """
        and.b32 %r4, %r0, 3;
    $table: .branchtargets c0, c1, c2, c0;
        brx.idx %r4, $table;
    c0: mov.b32 %r5, 10; bra join;
    c1: mov.b32 %r5, 11; bra join;
    c2: mov.b32 %r5, 12;
    join:
        shfl.sync.bfly.b32 %r63, %r5, 1, 31, -1;
    """
    table = np.array([10, 11, 12, 10])
    np.testing.assert_array_equal(collect(body), table[(LANE ^ 1) % 4])


def test_jump_table_out_of_range():
    body = "$t: .branchtargets a, a; brx.idx %r0, $t; a:"
    assert faults(body, kind="misuse", match="has 2 entries").thread == 2


# ---- fairness -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("spinner", [0, 1])
def test_a_warp_spins_until_another_writes(spinner, seed):
    # Whichever arm comes first in the text, a spinning arm must not block the other.
    flag = np.zeros(1, np.int32)
    body = f"""
        shr.u32 %r4, %r0, 5;
        setp.eq.u32 %p1, %r4, {spinner};
        @%p1 bra spin;
        mov.b32 %r5, 1;
        st.release.gpu.global.b32 [%rd0], %r5;
        bra done;
    spin:
        ld.acquire.gpu.global.b32 %r6, [%rd0];
        setp.eq.s32 %p2, %r6, 0;
        @%p2 bra spin;
    done:
        mov.b32 %r63, %r4;
    """
    out = collect(body, flag, threads=64, seed=seed, max_steps=20_000)
    np.testing.assert_array_equal(out, np.arange(64) // 32)


@pytest.mark.parametrize("seed", SEEDS)
def test_lanes_of_one_warp_take_a_spin_lock_in_turn(seed):
    # The arm with the lock must get to release it while the other lanes spin.
    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    body = """
    again:
        atom.acquire.gpu.global.cas.b32 %r4, [%rd0], 0, 1;
        setp.ne.s32 %p1, %r4, 0;
        @%p1 bra again;
        ld.relaxed.gpu.global.b32 %r5, [%rd1];
        add.s32 %r5, %r5, %r0;
        st.relaxed.gpu.global.b32 [%rd1], %r5;
        st.release.gpu.global.b32 [%rd0], 0;
    """
    run(body, lock, total, threads=5, seed=seed, max_steps=50_000)
    assert total[0] == 0 + 1 + 2 + 3 + 4


def test_a_loop_with_effects_is_no_spin():
    # Lanes done early wait for the others, however long these take.
    total = np.zeros(1, np.int32)
    body = """
        mov.b32 %r4, 0;
        setp.lt.u32 %p2, %r0, 31;
    again:
        @%p2 bra next;
        atom.global.add.u32 %r5, [%rd0], 1;
    next:
        add.u32 %r4, %r4, 1;
        mad.lo.u32 %r6, %r0, 20, 1;
        setp.lt.u32 %p1, %r4, %r6;
        @%p1 bra again;
        bar.sync 0;
    """
    run(body, total)
    assert total[0] == 31 * 20 + 1


def test_spinning_for_ever_is_reported():
    body = "again: ld.volatile.global.b32 %r4, [%rd0]; setp.eq.s32 %p1, %r4, 0; @%p1 bra again;"
    fault = faults(body, np.zeros(1, np.int32), kind="steps", max_steps=1000, threads=64)
    assert "still running after 1,000 instructions" in fault.message
    assert any("warp 1 of CTA (0, 0, 0) runs" in note for note in fault.notes)


def test_an_endless_loop_is_reported():
    fault = faults("mov.b32 %r4, 0; l: add.s32 %r4, %r4, 1; bra l;", kind="steps", max_steps=500)
    assert fault.text in ("add.s32 %r4, %r4, 1", "bra l")


def test_trap():
    body = "setp.eq.u32 %p1, %r0, 7; @%p1 trap;"
    assert faults(body, kind="trap", match="stops itself").thread == 7


# ---- structured programs of any shape -----------------------------------------------------------


@st.composite
def statements(draw, depth=3):
    """Return a list of statements over variables 0 to 3: nested tuples."""
    drawn = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["add", "mul", "if", "loop"] if depth else ["add", "mul"]))
        a, b = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
        if kind == "if":
            bit = draw(st.integers(0, 4))
            arms = draw(statements(depth - 1)), draw(statements(depth - 1))
            drawn.append(("if", a, bit, *arms))
        elif kind == "loop":
            leave = draw(st.one_of(st.none(), st.integers(0, 4)))
            drawn.append(("loop", a, draw(statements(depth - 1)), leave))
        else:
            drawn.append((kind, a, b, draw(st.integers(1, 1000))))
    return drawn


class Writer:
    """Write statements as PTX; variables are %r10 to %r13, counters of loops from %r20 on."""

    def __init__(self):
        self.lines, self.labels = [], 0

    def label(self):
        self.labels += 1
        return f"l{self.labels}"

    def write(self, body, depth=0):
        for statement in body:
            getattr(self, "write_" + statement[0])(*statement[1:], depth)
        return "\n".join(self.lines)

    def write_add(self, a, b, value, _):
        self.lines += [f"add.u32 %r10, %r{10 + b}, %r{10 + a};" if value % 7 == 0 else ""]
        self.lines += [f"add.u32 %r{10 + a}, %r{10 + b}, {value};"]

    def write_mul(self, a, b, value, _):
        self.lines += [f"mad.lo.u32 %r{10 + a}, %r{10 + b}, {value | 1}, %r{10 + a};"]

    def test(self, a, bit, target):
        self.lines += [
            f"shr.u32 %r14, %r{10 + a}, {bit};",
            "and.b32 %r14, %r14, 1;",
            "setp.ne.u32 %p1, %r14, 0;",
            f"@%p1 bra {target};",
        ]

    def write_if(self, a, bit, then, other, depth):
        yes, join = self.label(), self.label()
        self.test(a, bit, yes)
        self.write(other, depth)
        self.lines += [f"bra {join};", f"{yes}:"]
        self.write(then, depth)
        self.lines += [f"{join}:"]

    def write_loop(self, a, body, leave, depth):
        top, out = self.label(), self.label()
        counter = f"%r{20 + depth}"
        self.lines += [f"and.b32 {counter}, %r{10 + a}, 3;", f"{top}:"]
        self.lines += [f"setp.eq.u32 %p2, {counter}, 0;", f"@%p2 bra {out};"]
        self.lines += [f"sub.u32 {counter}, {counter}, 1;"]
        self.write(body, depth + 1)
        if leave is not None:
            self.test(a, leave, out)
        self.lines += [f"bra {top};", f"{out}:"]


def evaluate(body, variables):
    """Run statements for one thread, in Python."""
    mask = 0xFFFFFFFF
    for kind, a, *rest in body:
        if kind == "add":
            b, value = rest
            if value % 7 == 0:
                variables[0] = (variables[b] + variables[a]) & mask
            variables[a] = (variables[b] + value) & mask
        elif kind == "mul":
            b, value = rest
            variables[a] = (variables[b] * (value | 1) + variables[a]) & mask
        elif kind == "if":
            bit, then, other = rest
            evaluate(then if variables[a] >> bit & 1 else other, variables)
        else:
            inner, leave = rest
            for _ in range(variables[a] & 3):
                evaluate(inner, variables)
                if leave is not None and variables[a] >> leave & 1:
                    break


@settings(max_examples=examples(40))
@given(statements(), st.integers(0, 2))
def test_structured_programs(body, seed):
    start = "\n".join(f"mul.lo.u32 %r{10 + i}, %r0, {2 * i + 1};" for i in range(4))
    # The shuffle needs whole warps, so it fails if lanes do not meet again.
    end = """
        xor.b32 %r15, %r10, %r11; xor.b32 %r16, %r12, %r13; xor.b32 %r17, %r15, %r16;
        shfl.sync.idx.b32 %r63, %r17, %r0, 31, -1;
    """
    out = collect(start + Writer().write(body) + end, threads=40, seed=seed)
    expected = []
    for thread in range(40):
        variables = [thread * (2 * i + 1) for i in range(4)]
        evaluate(body, variables)
        expected.append(np.bitwise_xor.reduce(variables))
    np.testing.assert_array_equal(out, expected)
