"""Every tile and control-flow op, as a kernel around it, against plain NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.params import ParamInfo
from aotc.ir.rewrite import Builder
from aotc.ir.text import parse_kernel
from aotc.ir.types import FP32, I32, PointerType, Type, element_of
from aotc.verify.interpreter.descriptors import TENSOR_RULES
from aotc.verify.interpreter.indexing import INDEXING_RULES
from aotc.verify.interpreter.rules_tile import TILE_RULES
from aotc.verify.interpreter.run import RULES, InterpretError, run
from tests.support.run_op import pointers, run_op

X = np.arange(32, dtype=np.float32).reshape(4, 8)


def _only(make: Callable[..., Op], *arrays: Any) -> Any:
    return run_op(lambda add, *values: add(make(*values)).results, *arrays)


def test_every_op_has_a_rule() -> None:
    ops = {cls for name, cls in Op.registry.items() if name.startswith(("tile.", "scf."))}
    assert {*TILE_RULES, *TENSOR_RULES, *INDEXING_RULES} >= ops


# ---- shapes -----------------------------------------------------------------------------------


def test_shapes() -> None:
    (expanded,) = _only(lambda x: tile.ExpandDims(x, 1), X)
    assert expanded.shape == (4, 1, 8)
    (broadcast,) = _only(lambda x: tile.Broadcast(x, (4, 8)), X[:, :1].copy())
    assert (broadcast == np.broadcast_to(X[:, :1], (4, 8))).all()
    (reshaped,) = _only(lambda x: tile.Reshape(x, (2, 16)), X)
    assert (reshaped == X.reshape(2, 16)).all()
    (swapped,) = _only(lambda x: tile.Trans(x, (1, 0)), X)
    assert (swapped == X.T).all()
    cube = np.arange(16, dtype=np.int32).reshape(2, 2, 4)
    (turned,) = _only(lambda x: tile.Trans(x, (2, 0, 1)), cube)
    assert (turned == cube.transpose(2, 0, 1)).all()
    (joined,) = _only(tile.Join, X, -X)
    assert (joined[..., 0] == X).all()
    assert (joined[..., 1] == -X).all()
    left, right = _only(tile.Split, joined)
    assert (left == X).all()
    assert (right == -X).all()


def test_a_reshape_of_a_transposed_tile_is_row_major() -> None:
    def body(add: Builder, x: Value) -> Value:
        return add(tile.Reshape(add(tile.Trans(x, (1, 0))).out, (32,))).out

    assert (run_op(body, X)[0] == X.T.reshape(-1)).all()


def test_sources() -> None:
    def body(add: Builder, x: Value) -> list[Value]:
        return [add(tile.Arange(3, 7)).out, add(tile.Splat(x, (2, 4))).out]

    arange, splat = run_op(body, np.array(5.0, np.float32))
    assert arange.tolist() == [3, 4, 5, 6]
    assert splat.tolist() == [[5.0] * 4] * 2


# ---- memory -----------------------------------------------------------------------------------


def _masked_load(*, other: bool, poison_seed: int = 0) -> Any:
    """Load four elements, the last two masked off, with invalid addresses."""
    block = Block([PointerType(FP32), PointerType(FP32), I32])
    add = Builder(block)
    source, target, limit = block.args
    addresses = pointers(add, source, (4,))
    index = add(tile.Arange(0, 4)).out
    mask = add(arith.Compare(index, add(tile.Splat(limit, (4,))).out, "lt")).out
    fill = add(tile.Splat(add(arith.Constant(-1.0, FP32)).out, (4,))).out if other else None
    loaded = add(tile.Load(addresses, mask, fill)).out
    add(tile.Store(pointers(add, target, (4,)), loaded))
    add(scf.Return())
    kernel = Kernel("masked", tuple(map(ParamInfo, "xyn")), block)
    out = np.zeros(4, np.float32)
    run(kernel, (1,), [np.array([1, 2], np.float32), out, 2], poison_seed=poison_seed)
    return out


def test_masked_lanes_touch_no_memory_and_hold_other() -> None:
    assert _masked_load(other=True).tolist() == [1, 2, -1, -1]


def test_masked_lanes_without_other_are_poison() -> None:
    first = _masked_load(other=False)
    assert first[:2].tolist() == [1, 2]
    assert np.isnan(first[2:]).all()
    random = [_masked_load(other=False, poison_seed=seed)[2:].tobytes() for seed in (1, 1, 2)]
    assert random[0] == random[1] != random[2]


def test_masked_store_leaves_the_rest() -> None:
    kernel = parse_kernel("""
kernel @k(%p: *i32, %m: i1) {num_warps = 4} {
  %v = arith.constant {value = 7, type = i32} : i32
  tile.store(%p, %v, %m)
  scf.return
}
""")
    out = np.array([3], np.int32)
    run(kernel, (1,), [out, False])
    assert out.tolist() == [3]
    run(kernel, (1,), [out, True])
    assert out.tolist() == [7]


def test_an_access_out_of_bounds_names_op_place_and_program() -> None:
    kernel = parse_kernel("""
kernel @k(%p: *i32) {num_warps = 4} {
  %i = tile.program_id {axis = 1} : i32
  %q = arith.addptr(%p, %i) : *i32
  %v = tile.load(%q) : i32 loc("k.py" 7 4 9, "caller.py" 3 0 5)
  scf.return
}
""")
    with pytest.raises(InterpretError) as caught:
        run(kernel, (1, 5), [np.zeros(3, np.int32)])
    assert caught.value.loc is not None
    assert str(caught.value.loc) == "k.py:7:5"
    assert "tile.load accesses byte 12 of p (12 bytes), out of bounds" in caught.value.message
    assert "in program (0, 3, 0) of grid (1, 5, 1)" in caught.value.render()
    assert "called from caller.py:3:1" in caught.value.render()


# ---- reductions -------------------------------------------------------------------------------


def _combine(types: Sequence[Type], make: Callable[..., list[Value]]) -> Block:
    block = Block([*types, *types])
    builder = Builder(block)
    builder(scf.Yield(make(builder, *block.args)))
    return block


def _reduce(
    cls: Any, axis: int, make: Callable[..., list[Value]], *arrays: Any, **options: Any
) -> list[Any]:
    def body(add: Builder, *values: Value) -> list[Value]:
        block = _combine([element_of(value.type) for value in values], make)
        return add(cls(list(values), axis, block, **options)).results

    return run_op(body, *arrays)


def _add(add: Builder, a: Value, b: Value) -> list[Value]:
    return [add(arith.Add(a, b)).out]


def _affine(add: Builder, a: Value, b: Value, c: Value, d: Value) -> list[Value]:
    """Compose x -> a x + b with x -> c x + d: associative, not commutative."""
    scaled = add(arith.Mul(c, b)).out
    return [add(arith.Mul(a, c)).out, add(arith.Add(scaled, d)).out]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_sum_along_each_axis(axis: int) -> None:
    x = np.arange(64, dtype=np.int32).reshape(2, 4, 8)
    assert (_reduce(tile.Reduce, axis, _add, x)[0] == x.sum(axis=axis)).all()


def test_reduction_of_a_vector_is_a_scalar_and_of_one_element_that_element() -> None:
    (total,) = _reduce(tile.Reduce, 0, _add, np.arange(8, dtype=np.int32))
    assert total.shape == ()
    assert total == 28
    assert _reduce(tile.Reduce, 0, _add, np.array([5], np.int32))[0] == 5


def test_float_sums_are_trees_in_their_own_type() -> None:
    x = np.array([2048, 1, 1, 1], np.float16)
    # (2048 + 1) + (1 + 1): halves meet; 2048 + 1 rounds to 2048 and 2048 + 2 is exact.
    assert _reduce(tile.Reduce, 0, _add, x)[0] == 2050


def test_reduction_of_several_operands() -> None:
    def larger(add: Builder, v: Value, i: Value, w: Value, j: Value) -> list[Value]:
        keep = add(arith.Compare(v, w, "gt")).out
        return [add(arith.Select(keep, a, b)).out for a, b in ((v, w), (i, j))]

    x = np.random.default_rng(0).permutation(32).reshape(4, 8).astype(np.float32)
    index = np.broadcast_to(np.arange(8, dtype=np.int32), (4, 8)).copy()
    best, where = _reduce(tile.Reduce, 1, larger, x, index)
    assert (best == x.max(axis=1)).all()
    assert (where == x.argmax(axis=1)).all()


def test_combine_block_with_a_branch() -> None:
    def larger(add: Builder, a: Value, b: Value) -> list[Value]:
        then, orelse = Block(), Block()
        Builder(then)(scf.Yield([a]))
        Builder(orelse)(scf.Yield([b]))
        condition = add(arith.Compare(a, b, "gt")).out
        return list(add(scf.If(condition, then, orelse)).outs)

    x = np.array([3, 9, 2, 7], np.int32)
    assert _reduce(tile.Reduce, 0, larger, x)[0] == 9


@given(
    values=st.lists(st.integers(-3, 3), min_size=16, max_size=16),
    axis=st.integers(0, 1),
    reverse=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_scan_is_in_order(values: list[int], axis: int, reverse: bool) -> None:
    x = np.array(values, np.int32).reshape(4, 4)
    y = np.roll(x, 1)
    a, b = _reduce(tile.Scan, axis, _affine, x, y, reverse=reverse)
    rows = [np.moveaxis(v, axis, 0) for v in (x, y)]
    order = range(3, -1, -1) if reverse else range(4)
    scale, shift = np.ones(4, np.int32), np.zeros(4, np.int32)
    for i in order:
        scale, shift = scale * rows[0][i], rows[0][i] * shift + rows[1][i]
        assert (np.moveaxis(a, axis, 0)[i] == scale).all()
        assert (np.moveaxis(b, axis, 0)[i] == shift).all()


def test_cumulative_sum_of_one() -> None:
    assert _reduce(tile.Scan, 0, _add, np.array([4], np.int32))[0].tolist() == [4]


# ---- facts ------------------------------------------------------------------------------------


def test_hint_passes_its_operand_on() -> None:
    (out,) = _only(lambda x: tile.Hint(x, divisibility=(16,)), np.array([3, 5], np.int32))
    assert out.tolist() == [3, 5]


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("tile.assume(%c)", "tile.assume does not hold"),
        ('tile.assert(%c) {message = "n is odd"}', "tile.assert failed: n is odd"),
    ],
)
def test_facts_that_do_not_hold(op: str, message: str) -> None:
    text = f"kernel @k(%c: i1) {{num_warps = 4}} {{\n  {op}\n  tile.barrier\n  scf.return\n}}"
    run(parse_kernel(text), (1,), [True])
    with pytest.raises(InterpretError, match=message):
        run(parse_kernel(text), (1,), [False])


# ---- control flow -----------------------------------------------------------------------------


def _run_text(body: str, *args: Any, extent: int = 1) -> list[Any]:
    names = [f"%a{index}: i32" for index in range(len(args))]
    text = (
        f"kernel @k(%out: *i32, {', '.join(names)}) {{num_warps = 4}} {{\n{body}\n  scf.return\n}}"
    )
    out = np.zeros(extent, np.int32)
    run(parse_kernel(text), (1,), [out, *args])
    return out.tolist()


_FOR = """
  %zero = arith.constant {value = 0, type = i32} : i32
  %sum = scf.for(%a0, %a1, %a2, %zero) (%i: i32, %acc: i32) {
    %next = arith.add(%acc, %i) : i32
    scf.yield(%next)
  } : i32
  tile.store(%out, %sum)
"""


@pytest.mark.parametrize(
    "bounds", [(0, 10, 3), (0, 9, 3), (5, 5, 1), (7, 2, 1), (-4, 3, 2), (0, 1, 100)]
)
def test_for(bounds: tuple[int, int, int]) -> None:
    assert _run_text(_FOR, *bounds) == [sum(range(*bounds))]


def test_for_with_a_step_that_never_ends() -> None:
    with pytest.raises(InterpretError, match="step 0"):
        _run_text(_FOR, 0, 4, 0)


def test_if_runs_one_arm() -> None:
    body = """
  %c = arith.compare(%a0, %a1) {predicate = "lt"} : i1
  %r = scf.if(%c) () {
    tile.store(%out, %a0)
    scf.yield(%a0)
  } () {
    scf.yield(%a1)
  } : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %q = arith.addptr(%out, %one) : *i32
  tile.store(%q, %r)
"""
    assert _run_text(body, 3, 5, extent=2) == [3, 3]
    assert _run_text(body, 6, 5, extent=2) == [0, 5]


def test_while_passes_values_through_its_condition() -> None:
    body = """
  %one = arith.constant {value = 1, type = i32} : i32
  %n, %p = scf.while(%a0, %one) (%i: i32, %power: i32) {
    %go = arith.compare(%power, %a1) {predicate = "lt"} : i1
    scf.condition(%go, %i, %power)
  } (%j: i32, %old: i32) {
    %next = arith.add(%j, %one) : i32
    %twice = arith.add(%old, %old) : i32
    scf.yield(%next, %twice)
  } : i32, i32
  tile.store(%out, %n)
"""
    assert _run_text(body, 0, 100) == [7]
    assert _run_text(body, 5, 1) == [5]


def test_loops_carry_several_values_in_step() -> None:
    body = """
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %x, %y = scf.for(%zero, %a0, %one, %zero, %one) (%i: i32, %a: i32, %b: i32) {
    %c = arith.add(%a, %b) : i32
    scf.yield(%b, %c)
  } : i32, i32
  tile.store(%out, %x)
"""
    assert _run_text(body, 10) == [55]


def test_grids_alone_need_no_waiting() -> None:
    """No grid runs before or after the interpreted one."""
    assert {cls for name, cls in Op.registry.items() if name.startswith("grid.")} <= {*RULES}
    text = "kernel @k(%p: *i32) {num_warps = 4} {\n  grid.wait\n  grid.launch_dependents\n"
    text += "  %x = tile.load(%p) : i32\n  grid.wait\n  tile.store(%p, %x)\n  scf.return\n}\n"
    run(parse_kernel(text), (2,), [np.array([5], np.int32)])
