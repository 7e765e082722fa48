"""Replay: a later run recomputes perturbed ops only, with bitwise equal results."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import arith, tile
from aotc.ir.text import parse_kernel
from aotc.verify.arrays import Array
from aotc.verify.interpreter.program import Program, Rules
from aotc.verify.interpreter.replay import Recording
from aotc.verify.interpreter.run import RULES, Interpreter

KERNEL = """
kernel @k(%x: *fp32, %y: *fp32, %n: i32) {num_warps = 1} {
  %i = tile.arange {start = 0, end = 4} : tile<4xi32>
  %xs = tile.splat(%x) {shape = [4]} : tile<4x*fp32>
  %p = arith.addptr(%xs, %i) : tile<4x*fp32>
  %ys = tile.splat(%y) {shape = [4]} : tile<4x*fp32>
  %q = arith.addptr(%ys, %i) : tile<4x*fp32>
  %ns = tile.splat(%n) {shape = [4]} : tile<4xi32>
  %m = arith.compare(%i, %ns) {predicate = "lt"} : tile<4xi1>
  %v = tile.load(%p, %m, _) : tile<4xfp32>
  %e = arith.exp(%v) : tile<4xfp32>
  %s = arith.add(%e, %v) : tile<4xfp32>
  tile.store(%q, %s, %m)
  %r = tile.load(%q, %m, _) : tile<4xfp32>
  %t = arith.mul(%r, %r) : tile<4xfp32>
  tile.store(%q, %t, %m)
  scf.return
}
"""


@pytest.fixture
def kernel() -> Kernel:
    return parse_kernel(KERNEL)


def _op(kernel: Kernel, cls: type[Op], number: int = 0) -> Op:
    return [op for op in kernel.walk() if isinstance(op, cls)][number]


def _doubled(program: Program, op: Op, value: Array) -> Array:
    del program, op
    return 2 * np.exp(value)


def _run(kernel: Kernel, rules: Rules, x: Array, n: int = 4, seed: int = 0) -> Array:
    out = np.zeros(4, np.float32)
    Interpreter(kernel, [x, out, n], poison_seed=seed, rules=rules).run((1,))
    return out


def _counting(rules: Rules, ran: list[type[Op]]) -> Rules:
    def counted(cls: type[Op]):
        def rule(program: Program, op: Op, *operands: Array | None):
            ran.append(cls)
            return rules[cls](program, op, *operands)

        return rule

    return {cls: counted(cls) for cls in rules}


X = np.arange(4, dtype=np.float32)


def test_only_users_of_a_perturbed_result_are_recomputed(kernel: Kernel) -> None:
    recording = Recording()
    exact = _run(kernel, recording.recording(RULES), X)
    ran: list[type[Op]] = []
    doubling_rules = {**RULES, arith.Exp: _doubled}
    rules = recording.replaying(
        _counting(doubling_rules, ran), [_op(kernel, arith.Exp)], same_poison=True
    )
    out = _run(kernel, rules, X)
    assert out.tobytes() == _run(kernel, doubling_rules, X).tobytes() != exact.tobytes()
    assert ran == [arith.Exp, arith.Add, tile.Store, tile.Load, arith.Mul, tile.Store]
    assert recording.num_replayed == 8


def test_a_load_of_written_memory_is_recomputed(kernel: Kernel) -> None:
    recording = Recording()
    exact = _run(kernel, recording.recording(RULES), X)
    ran: list[type[Op]] = []
    rules = recording.replaying(_counting(RULES, ran), [], same_poison=True)
    assert _run(kernel, rules, X).tobytes() == exact.tobytes()
    assert ran == [tile.Store, tile.Load, tile.Store]  # its result is as it was


def test_undefined_values_of_another_seed_are_recomputed(kernel: Kernel) -> None:
    recording = Recording()
    _run(kernel, recording.recording(RULES), X, n=3)
    ran: list[type[Op]] = []
    rules = recording.replaying(_counting(RULES, ran), [], same_poison=False)
    _run(kernel, rules, X, n=3, seed=5)
    assert ran[:3] == [tile.Load, arith.Exp, arith.Add]


def test_other_arguments_are_other_operands(kernel: Kernel) -> None:
    recording = Recording()
    _run(kernel, recording.recording(RULES), X, n=4)
    rules = recording.replaying(RULES, [], same_poison=True)
    assert _run(kernel, rules, X, n=2).tobytes() == _run(kernel, RULES, X, n=2).tobytes()


def test_a_live_op_recalls_results_by_operands(kernel: Kernel) -> None:
    """A derived value is computed once for all runs; other operands recall nothing."""
    recording, computed_ops = Recording(), list[type[Op]]()
    exact = _run(kernel, recording.recording(RULES), X)
    ran: list[type[Op]] = []
    recalling_rules = recording.recalling(_counting(RULES, ran), [arith.Exp, arith.Mul])

    def watched(cls: type[Op], factor: float):
        def make() -> tuple[Array]:
            computed_ops.append(cls)
            return (np.array(len(computed_ops)),)

        def rule(program: Program, op: Op, *operands: Array | None):
            out = np.asarray(recalling_rules[cls](program, op, *operands))
            recording.derived(out, make)
            return factor * out

        return rule

    live = [_op(kernel, arith.Exp), _op(kernel, arith.Mul)]
    # In the second run the sum is perturbed, and so is the product's operand.
    for factor, expected in ((1.0, [arith.Exp, arith.Mul]), (2.0, [arith.Mul])):
        rules = {
            **recalling_rules,
            arith.Exp: watched(arith.Exp, factor),
            arith.Mul: watched(arith.Mul, 1.0),
        }
        out = _run(kernel, recording.replaying(rules, live, same_poison=True), X)
        assert (out.tobytes() == exact.tobytes()) == (factor == 1.0)
        assert arith.Exp not in ran
        assert computed_ops == expected
        computed_ops.clear()
    assert arith.Mul in ran


def test_a_full_recording_replays_its_contents(kernel: Kernel) -> None:
    recording = Recording(max_bytes=0)
    exact = _run(kernel, recording.recording(RULES), X)
    rules = recording.replaying(RULES, [], same_poison=True)
    assert _run(kernel, rules, X).tobytes() == exact.tobytes()
    assert recording.num_replayed == 1
