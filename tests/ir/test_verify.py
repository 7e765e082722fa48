"""Each IR invariant, broken by hand: the verifier must name it and its location."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import IRError, Loc
from aotc.ir.dialects import arith, scf
from aotc.ir.params import ParamInfo
from aotc.ir.rewrite import Builder
from aotc.ir.types import FP16, FP32, I32
from aotc.ir.verify import verify
from tests.support.every_op import SAMPLES, sample_kernel


def _kernel() -> Kernel:
    """Return a kernel with a chain of three ops, an `if` and a loop."""
    body = Block([FP32, I32])
    x, n = body.args
    add = Builder(body)
    negated = add(arith.Neg(x)).out
    two = add(arith.Abs(negated)).out
    add(arith.Add(negated, two))
    condition = add(arith.Compare(n, n, "lt")).out
    arms = [Block(), Block()]
    for arm in arms:
        inner = Builder(arm)
        inner(scf.Yield([inner(arith.Neg(two)).out]))
    add(scf.If(condition, arms[0], arms[1]))
    loop = Block([I32, FP32])
    inner = Builder(loop)
    inner(scf.Yield([inner(arith.Mul(loop.args[1], x)).out]))
    add(scf.For(n, n, n, [two], loop))
    add(scf.Return())
    return Kernel("k", (ParamInfo("x"), ParamInfo("n")), body, loc=Loc("k.py", 1))


def _find(kernel: Kernel, cls: type[Op], index: int = 0) -> Op:
    return [op for op in kernel.walk() if isinstance(op, cls)][index]


def test_the_kernel_is_valid_before() -> None:
    verify(_kernel())


@pytest.mark.parametrize("opcode", SAMPLES)
def test_every_sample_is_valid(opcode: str) -> None:
    verify(sample_kernel(opcode))


def _too_few_params(kernel: Kernel) -> None:
    kernel.params = kernel.params[:1]


def _no_terminator(kernel: Kernel) -> None:
    kernel.body.terminator.erase()


def _empty_block(kernel: Kernel) -> None:
    _find(kernel, scf.If).blocks[0].clear()


def _terminator_inside(kernel: Kernel) -> None:
    kernel.body.insert(scf.Yield([]), before=kernel.body.first)


def _use_before_definition(kernel: Kernel) -> None:
    first, second = _find(kernel, arith.Neg), _find(kernel, arith.Abs)
    second.remove()
    kernel.body.insert(second, before=first)


def _use_out_of_a_nested_block(kernel: Kernel) -> None:
    inner = _find(kernel, arith.Mul)
    kernel.body.insert(arith.Neg(inner.results[0]), before=kernel.body.last)


def _use_of_the_other_arm(kernel: Kernel) -> None:
    first, second = _find(kernel, scf.If).blocks
    assert first.first is not None
    second.insert(arith.Neg(first.first.results[0]), before=second.last)


def _use_of_a_loops_argument_outside(kernel: Kernel) -> None:
    loop = _find(kernel, scf.For)
    kernel.body.insert(arith.Neg(loop.blocks[0].args[1]), before=kernel.body.last)


def _use_of_its_own_result(kernel: Kernel) -> None:
    op = _find(kernel, arith.Abs)
    op.set_slots([op.results[0]])


def _slot_changed_behind_the_use_list(kernel: Kernel) -> None:
    op = _find(kernel, arith.Abs)
    op.slots[0] = kernel.body.args[0]


def _use_count_wrong(kernel: Kernel) -> None:
    op = _find(kernel, arith.Add)
    op.operands[0].users[op] = 2


def _stale_user(kernel: Kernel) -> None:
    kernel.body.args[1].users[_find(kernel, arith.Abs)] = 1


def _stale_user_of_an_argument(kernel: Kernel) -> None:
    _find(kernel, scf.For).blocks[0].args[0].users[_find(kernel, arith.Abs)] = 1


def _user_in_no_block(kernel: Kernel) -> None:
    arith.Neg(kernel.body.args[0])


def _result_of_another(kernel: Kernel) -> None:
    _find(kernel, arith.Neg).results[0].owner = _find(kernel, arith.Abs)


def _argument_of_another(kernel: Kernel) -> None:
    kernel.body.args[0].owner = Block()


def _wrong_result_type(kernel: Kernel) -> None:
    _find(kernel, arith.Add).results[0].type = FP16


def _result_too_many(kernel: Kernel) -> None:
    op = _find(kernel, arith.Add)
    op.results.append(Value(FP32, op, 1))


def _operand_types_that_do_not_fit(kernel: Kernel) -> None:
    _find(kernel, arith.Add).replace_operand(
        _find(kernel, arith.Neg).results[0], kernel.body.args[1]
    )


def _yield_too_little(kernel: Kernel) -> None:
    _find(kernel, scf.For).blocks[0].terminator.set_slots([])


def _block_without_its_parent(kernel: Kernel) -> None:
    _find(kernel, scf.For).blocks[0].parent = None


def _link_broken(kernel: Kernel) -> None:
    _find(kernel, arith.Abs).prev = None


def _op_of_another_block(kernel: Kernel) -> None:
    _find(kernel, arith.Abs).block = Block()


def _chain_ends_early(kernel: Kernel) -> None:
    _find(kernel, scf.For).next = None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_too_few_params, "k.py:1:1: kernel k has 1 parameters described, but its body takes 2"),
        (_no_terminator, "must end in a terminator"),
        (_empty_block, "must end in a terminator"),
        (_terminator_inside, "scf.yield: is a terminator in the middle of a block"),
        (_use_before_definition, "arith.abs: uses .* does not dominate"),
        (_use_out_of_a_nested_block, "arith.neg: uses .* does not dominate"),
        (_use_of_the_other_arm, "arith.neg: uses .* does not dominate"),
        (_use_of_a_loops_argument_outside, "arith.neg: uses .* does not dominate"),
        (_use_of_its_own_result, "arith.abs: uses .* does not dominate"),
        (_slot_changed_behind_the_use_list, "lists arith.abs as a user|is missing from the use"),
        (_use_count_wrong, "arith.add: is missing from the use list"),
        (_stale_user, "lists arith.abs as a user, but it is none"),
        (_stale_user_of_an_argument, "lists arith.abs as a user, but it is none"),
        (_user_in_no_block, "is used by arith.neg, which is in no block"),
        (_result_of_another, "arith.neg: has a result owned by another op"),
        (_argument_of_another, "which another owns"),
        (_wrong_result_type, r"arith.add: has result types \(fp16\) but infers \(fp32\)"),
        (_result_too_many, r"arith.add: has result types \(fp32, fp32\) but infers \(fp32\)"),
        (_operand_types_that_do_not_fit, "arith.add: operands are i32 and fp32"),
        (_yield_too_little, r"scf.for: yielded values are \(\), expected \(fp32\)"),
        (_block_without_its_parent, "a nested block does not name its parent"),
        (_link_broken, "arith.abs: is linked wrongly"),
        (_op_of_another_block, "arith.abs: is linked wrongly"),
        (_chain_ends_early, "does not end in its last op"),
    ],
)
def test_damage_is_found(damage: Callable[[Kernel], None], message: str) -> None:
    kernel = _kernel()
    damage(kernel)
    with pytest.raises(IRError, match=message):
        verify(kernel)


def test_results_of_a_branch_are_visible_after_it() -> None:
    kernel = _kernel()
    branch = _find(kernel, scf.If)
    kernel.body.insert(arith.Neg(branch.results[0]), before=branch.next)
    verify(kernel)
