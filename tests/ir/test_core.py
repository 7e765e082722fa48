"""Ops, values, use lists, blocks and cloning."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.core import (
    Block,
    Kernel,
    Op,
    Value,
    attribute,
    block,
    build,
    clone_block,
    operand,
    operands,
    result,
)
from aotc.ir.diagnostics import IRError, Loc, at
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.params import ParamInfo
from aotc.ir.rewrite import Builder
from aotc.ir.text import print_kernel
from aotc.ir.types import FP16, FP32, I1, I32, TileType
from aotc.ir.verify import verify
from tests.support.every_op import SAMPLES, sample_kernel


def _args(count: int = 2) -> list[Value]:
    return Block([FP32] * count).args


def _chain(length: int) -> tuple[Block, list[Op]]:
    block = Block([FP32])
    add = Builder(block)
    ops: list[Op] = []
    value = block.args[0]
    for _ in range(length):
        ops.append(add(arith.Neg(value)))
        value = ops[-1].results[0]
    return block, ops


# ---- declaring and building -------------------------------------------------------------------


def test_fields_are_read_by_name() -> None:
    x, y = _args()
    op = arith.Min(x, y, propagate_nan=True)
    assert (op.lhs, op.rhs, op.propagate_nan) == (x, y, True)
    assert op.out.owner is op
    assert op.out.op is op
    assert x.op is None
    assert op.attributes == {"propagate_nan": True}


def test_results_are_inferred() -> None:
    x, y = _args()
    assert arith.Add(x, y).out.type == FP32
    assert arith.Compare(x, y, "lt").out.type == I1


def test_optional_operands_keep_their_place() -> None:
    (p,) = Block([TileType(FP32, (4,))]).args
    c = arith.Constant(True, TileType(I1, (4,))).out
    op = arith.Select(c, p, p)
    assert op.operands == [c, p, p]
    load = tile.Load(Block([sample_kernel("tile.load").body.args[4].type]).args[0])
    assert load.slots[1:] == [None, None]
    assert len(load.operands) == 1


def test_a_wrong_op_leaves_no_trace() -> None:
    x = Block([FP32]).args[0]
    i = Block([I32]).args[0]
    with pytest.raises(IRError, match="operands are fp32 and i32"):
        arith.Add(x, i)
    assert not x.users
    assert not i.users


def test_what_layouts_refuse_is_an_error_at_the_op() -> None:
    kernel = sample_kernel("gpu.convert")
    value = kernel.body.args[7]
    with pytest.raises(IRError, match=r"tile.reshape: .*does not fill"):
        tile.Reshape(value, (3,))


def test_ops_carry_the_current_location() -> None:
    x, y = _args()
    with at(Loc("k.py", 3)):
        op = arith.Add(x, y)
    assert op.loc == Loc("k.py", 3)


def test_an_opcode_is_declared_once() -> None:
    with pytest.raises(IRError, match="arith.add is declared twice"):

        class Again(Op, opcode="arith.add"):
            """A second one."""

    assert Op.registry["arith.add"] is arith.Add


@pytest.mark.parametrize("name", ["loc", "block", "operands", "next", "clone"])
def test_a_field_may_not_hide_a_member(name: str) -> None:
    with pytest.raises(IRError, match=f"field {name} hides a member of Op"):
        type("Bad", (Op,), {name: attribute()})


def test_declared_fields_in_every_role() -> None:
    class Sample(Op):
        """An op with one field of each role, never registered."""

        first: Value = operand()
        rest: tuple[Value, ...] = operands()
        body: Block = block()
        number: int = attribute(default=3)
        out: Value = result()

        def infer(self) -> list[object]:
            return [self.first.type]

    x, y = _args()
    nested = Block()
    op = Sample(x, [y, x], body=nested)
    assert op.number == 3
    assert op.rest == (y, x)
    assert op.body is nested
    assert nested.parent is op
    assert x.users == {op: 2}
    assert (Sample.arity.num_operands, Sample.arity.required) == (1, (0,))
    assert Sample.arity.variadic
    assert Sample.arity.num_blocks == 1


@pytest.mark.parametrize(
    ("cls", "slots", "attributes", "message"),
    [
        (arith.Add, 1, {}, "arith.add takes 2 operands, got 1"),
        (arith.Add, 3, {}, "arith.add takes 2 operands, got 3"),
        (arith.Add, 2, {"fast": True}, "arith.add has no attribute fast"),
        (arith.Max, 2, {"fast": True}, "arith.max has no attribute fast"),
        (arith.Compare, 2, {}, "arith.compare needs attribute predicate"),
        (scf.For, 3, {}, "scf.for takes 1 blocks, got 0"),
    ],
)
def test_generic_parts_are_checked(
    cls: type[Op], slots: int, attributes: dict[str, object], message: str
) -> None:
    with pytest.raises(IRError, match=message):
        build(cls, _args(slots), attributes, (), Loc("k.py", 1))


def test_an_absent_operand_that_is_required() -> None:
    x = _args()[0]
    for slots in ([x, None], [None, x]):
        with pytest.raises(IRError, match="lacks an operand that is not optional"):
            build(arith.Add, slots, {}, (), Loc("k.py", 1))


# ---- uses -------------------------------------------------------------------------------------


def test_users_are_counted_in_order() -> None:
    x, y = _args()
    first, second = arith.Add(x, x), arith.Add(y, x)
    assert x.users == {first: 2, second: 1}
    assert list(x.users) == [first, second]


def test_replacing_an_operand_keeps_the_order_of_other_users() -> None:
    x, y = _args()
    first, second = arith.Add(x, y), arith.Sub(x, y)
    first.replace_operand(x, y)
    assert first.slots == [y, y]
    assert list(y.users) == [first, second]
    assert y.users[first] == 2
    assert list(x.users) == [second]
    first.replace_operand(x, y)  # not an operand: nothing happens
    assert y.users[first] == 2


def test_replacing_all_uses() -> None:
    x, y = _args()
    ops = [arith.Add(x, x), arith.Neg(x)]
    x.replace_all_uses_with(y)
    assert not x.users
    assert y.users == {ops[0]: 2, ops[1]: 1}
    y.replace_all_uses_with(y)
    assert y.users == {ops[0]: 2, ops[1]: 1}


def test_replace_with_hands_on_uses_and_hint() -> None:
    block, ops = _chain(3)
    ops[1].results[0].hint = "mid"
    ops[1].replace_with([block.args[0]])
    assert ops[2].operands == [block.args[0]]
    assert block.args[0].hint == "mid"
    assert list(block) == [ops[0], ops[2]]


def test_an_op_in_use_is_not_erased() -> None:
    _, ops = _chain(2)
    with pytest.raises(IRError, match="arith.neg is erased but arith.neg uses it"):
        ops[0].erase()
    ops[1].erase()
    ops[0].erase()


def test_erasing_drops_uses_from_nested_blocks() -> None:
    kernel = sample_kernel("scf.for")
    (loop,) = [op for op in kernel.walk() if isinstance(op, scf.For)]
    nested = list(loop.body)
    loop.erase()
    assert all(op.block is None and not op.operands for op in nested)
    assert loop.body.first is None
    verify(kernel)


# ---- blocks -----------------------------------------------------------------------------------


def test_insert_and_remove() -> None:
    block, ops = _chain(3)
    detached = ops[1]
    assert detached.parent_op is None
    with pytest.raises(IRError, match="already in a block"):
        block.insert(detached)
    detached.remove()
    assert [list(block), detached.block, detached.prev, detached.next] == [
        [ops[0], ops[2]],
        None,
        None,
        None,
    ]
    with pytest.raises(IRError, match="in no block"):
        detached.remove()
    block.insert(detached, before=ops[0])
    assert list(block) == [detached, ops[0], ops[2]]
    for op in list(block):
        op.remove()
    assert block.first is block.last is None
    with pytest.raises(IRError, match="no terminator"):
        _ = block.terminator


def test_iterating_while_removing_the_current_op() -> None:
    block, ops = _chain(5)
    seen: list[Op] = []
    for op in block:
        seen.append(op)
        op.remove()
    assert seen == ops
    assert block.first is None


def test_iterating_while_inserting_around_the_current_op() -> None:
    block, ops = _chain(2)
    before, after = arith.Neg(block.args[0]), arith.Neg(block.args[0])
    seen: list[Op] = []
    for op in block:
        if op is ops[0]:
            block.insert(before, before=op)
            block.insert(after, before=op.next)
        seen.append(op)
    assert seen == [ops[0], after, ops[1]]


def test_walk_goes_into_nested_blocks_outer_first() -> None:
    kernel = sample_kernel("scf.if")
    codes = [op.opcode for op in kernel.walk()]
    assert codes == ["scf.if", "arith.neg", "scf.yield", "scf.yield", "scf.return"]
    inner = next(op for op in kernel.walk() if op.opcode == "arith.neg")
    assert [op.opcode for op in inner.ancestors()] == ["scf.if"]


_Tree = list["_Tree"]


def _nest(into: Block, tree: _Tree, argument: Value) -> list[Op]:
    """Add a branch for each subtree, with the subtree in its first arm; return all in order."""
    order: list[Op] = []
    for subtree in tree:
        then, orelse = Block(), Block()
        inside = _nest(then, subtree, argument)
        for arm in (then, orelse):
            arm.insert(scf.Yield(()))
        op = scf.If(argument, then, orelse)
        into.insert(op)
        order += [op, *inside, then.terminator, orelse.terminator]
    return order


@given(st.recursive(st.just([]), lambda trees: st.lists(trees, max_size=3), max_leaves=20))
@settings(deadline=None)
def test_walk_visits_every_op_at_any_depth_in_order(tree: _Tree) -> None:
    block = Block([I1])
    order = _nest(block, tree, block.args[0])
    assert list(block.walk()) == order


def test_walking_while_blocks_change() -> None:
    """Ops inserted after the current one are visited; moved or removed ones lead on."""
    block = Block([I1])
    first, inner, *_ = _nest(block, [[[]], []], block.args[0])
    last = block.last
    added = scf.Yield(())
    seen: list[Op] = []
    for op in block.walk():
        seen.append(op)
        if op is first:
            inner.remove()
        elif op is first.blocks[1].terminator:
            block.insert(added, before=last)
            first.remove()  # the walk goes on behind where it stood
    assert seen[:3] == [first, first.blocks[0].terminator, first.blocks[1].terminator]
    assert seen[3] is last
    block.insert(first, before=added)
    assert [op for op in block.walk() if op.block is block] == [first, added, last]


@given(st.lists(st.tuples(st.sampled_from("ira"), st.integers(0, 9)), max_size=40))
@settings(deadline=None)
def test_a_block_is_a_list(commands: list[tuple[str, int]]) -> None:
    block = Block([FP32])
    model: list[Op] = []
    for command, index in commands:
        if command == "r" and model:
            op = model.pop(index % len(model))
            op.remove()
        else:
            op = arith.Neg(block.args[0])
            position = index % (len(model) + 1) if command == "i" else len(model)
            block.insert(op, model[position] if position < len(model) else None)
            model.insert(position, op)
        assert list(block) == model
        assert [op.prev for op in model] == [None, *model[:-1]] if model else True
        assert block.last is (model[-1] if model else None)


# ---- cloning ----------------------------------------------------------------------------------


@pytest.mark.parametrize("opcode", SAMPLES)
def test_every_op_can_be_cloned(opcode: str) -> None:
    kernel = sample_kernel(opcode)
    mapping: dict[Value, Value] = {}
    copy = Kernel(kernel.name, kernel.params, clone_block(kernel.body, mapping))
    assert print_kernel(copy) == print_kernel(kernel)
    verify(copy)
    verify(kernel)
    originals = set(kernel.walk())
    assert not any(op in originals for op in copy.walk())


def test_a_clone_keeps_location_and_hint_and_takes_new_attributes() -> None:
    x, y = _args()
    with at(Loc("k.py", 9)):
        op = arith.Min(x, y)
    op.out.hint = "best"
    mapping = {x: y}
    copy = op.clone(mapping, propagate_nan=True)
    assert (copy.loc, copy.results[0].hint) == (Loc("k.py", 9), "best")
    assert copy.slots == [y, y]
    assert copy.attributes == {"propagate_nan": True}
    assert mapping[op.out] is copy.results[0]
    with pytest.raises(IRError, match="has no attribute fast"):
        op.clone({}, fast=True)


def test_a_clone_is_retyped_by_its_operands() -> None:
    x, y = _args()
    half = Block([FP16]).args[0]
    copy = arith.Add(x, y).clone({x: half, y: half})
    assert copy.results[0].type == FP16


def test_a_cloned_block_is_retyped_by_its_mapped_arguments() -> None:
    source = Block([FP32, FP32], ["a", "b"])
    add = Builder(source)
    total = add(arith.Add(*source.args)).out
    add(scf.Yield([total]))
    targets = Block([FP16, FP16]).args
    mapping = dict(zip(source.args, targets, strict=True))
    copy = clone_block(source, mapping)
    assert [arg.type for arg in copy.args] == [FP16, FP16]
    assert [arg.hint for arg in copy.args] == ["a", "b"]
    assert copy.terminator.operands[0].type == FP16
    assert mapping[source.args[0]] is copy.args[0]


def test_nested_blocks_are_cloned_with_values_from_outside() -> None:
    kernel = sample_kernel("scf.for")
    (loop,) = [op for op in kernel.walk() if isinstance(op, scf.For)]
    copy = loop.clone({})
    assert isinstance(copy, scf.For)
    assert copy.body is not loop.body
    assert copy.body.parent is copy
    assert copy.operands == loop.operands


# ---- cost -------------------------------------------------------------------------------------


def _calls(work: Callable[[], object]) -> int:
    """Return the number of function calls during `work`: a cost independent of the clock."""
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def _long_sum(count: int) -> Kernel:
    block = Block([FP32])
    add = Builder(block)
    value = block.args[0]
    for _ in range(count):
        value = add(arith.Add(value, block.args[0])).out
    add(scf.Return())
    return Kernel("k", (ParamInfo("x"),), block)


@pytest.mark.parametrize("work", [_long_sum, lambda count: verify(_long_sum(count))])
def test_cost_grows_with_the_ops(work: Callable[[int], object]) -> None:
    small, large = _calls(lambda: work(200)), _calls(lambda: work(800))
    assert 3 * small < large < 4.2 * small


def test_printing_grows_with_the_ops() -> None:
    small, large = (_long_sum(count) for count in (200, 800))
    assert _calls(lambda: print_kernel(large)) < 4.2 * _calls(lambda: print_kernel(small))
