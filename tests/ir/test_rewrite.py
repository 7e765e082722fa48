"""The builder and the worklist driver."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import IRError, Loc, at
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.params import ParamInfo
from aotc.ir.rewrite import Builder, copy_ops, is_pure, is_trivially_dead, rewrite
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.types import I32
from aotc.ir.verify import verify
from tests.support.every_op import SAMPLES, ops_of, sample_kernel


def _kernel(body: str) -> Kernel:
    return parse_kernel(
        f"kernel @k(%p: *i32, %x: i32, %c: i1) {{num_warps = 4}} {{\n{body}  scf.return\n}}\n"
    )


def _body(kernel: Kernel) -> list[str]:
    return [line.strip() for line in print_kernel(kernel).splitlines()[1:-2]]


# ---- builder ----------------------------------------------------------------------------------


def test_a_builder_inserts_at_its_point() -> None:
    body = Block([I32])
    x = body.args[0]
    end = Builder(body)
    middle = end(arith.Neg(x))
    before = Builder.before_op(middle)
    after = Builder.after_op(middle)
    order = [
        before(arith.Abs(x)),
        before(arith.Abs(x)),
        middle,
        after(arith.Neg(x)),
        end(scf.Return()),
    ]
    assert list(body) == order
    assert before.added == order[:2]


def test_a_builder_needs_an_op_in_a_block() -> None:
    op = arith.Neg(Block([I32]).args[0])
    for make in (Builder.before_op, Builder.after_op):
        with pytest.raises(IRError, match="arith.neg is in no block"):
            make(op)


def test_copies_of_ops_use_each_other_and_what_the_mapping_has() -> None:
    body = Block([I32, I32])
    x, y = body.args
    builder = Builder(body)
    absolute = builder(arith.Abs(x))
    negated = builder(arith.Neg(absolute.out))
    mapping = {x: y}
    copies = copy_ops([absolute, negated], mapping, builder)
    *_, first, second = body
    assert list(first.operands) == [y]
    assert list(second.operands) == [first.results[0]]
    assert copies == {x: y, absolute.out: first.results[0], negated.out: second.results[0]}
    assert mapping == {x: y}, "the caller's own mapping stays as it was"


# ---- effects ----------------------------------------------------------------------------------


def test_purity_looks_into_blocks() -> None:
    pure = _kernel("  %r = scf.if(%c) () {\n scf.yield(%x)\n } () {\n scf.yield(%x)\n } : i32\n")
    loads = _kernel(
        "  %r = scf.if(%c) () {\n %v = tile.load(%p) : i32\n scf.yield(%v)\n } () "
        "{\n scf.yield(%x)\n } : i32\n"
    )
    stores = _kernel(
        "  scf.if(%c) () {\n tile.store(%p, %x)\n scf.yield()\n } () {\n scf.yield()\n }\n"
    )
    firsts = [kernel.body.first for kernel in (pure, loads, stores)]
    assert all(op is not None for op in firsts)
    assert [is_pure(op) for op in firsts if op] == [True, False, False]
    assert [is_trivially_dead(op) for op in firsts if op] == [True, True, False]


@pytest.mark.parametrize("opcode", SAMPLES)
def test_only_ops_without_effects_die_unused(opcode: str) -> None:
    kernel = sample_kernel(opcode)
    ops = ops_of(kernel, opcode)
    rewrite(kernel, {})
    verify(kernel)
    effectful = {
        "tile.store", "tile.atomic_rmw", "tile.atomic_cas", "tile.assume", "tile.assert", "tile.print",
        "tile.barrier", "gpu.store", "gpu.barrier", "gpu.atomic_rmw", "gpu.atomic_cas", "gpu.fence",
        "gpu.shared_alloc", "gpu.shared_store", "gpu.async_copy", "gpu.async_commit",
        "gpu.async_wait", "tile.descriptor_store", "tile.descriptor_reduce", "gpu.sync_tma_load",
        "tile.descriptor_prefetch", "gpu.tma_prefetch",
        "gpu.sync_bulk_load", "gpu.bulk_load", "gpu.bulk_store", "gpu.make_tensor_map", "tile.store_map", "gpu.publish_map",
        "gpu.staged_tma_store", "gpu.staged_bulk_store",
        "gpu.tma_load", "gpu.tma_store", "gpu.tma_reduce", "gpu.tma_store_wait", "gpu.proxy_fence",
        "gpu.mbarrier_init", "gpu.mbarrier_wait", "gpu.mbarrier_arrive", "gpu.specialize", "gpu.beside",
        "tile.descriptor_scatter", "gpu.sync_thread_load", "gpu.thread_load", "gpu.tma_buffer_wait",
        "gpu.wgmma_wait", "gpu.turn", "grid.cluster_barrier", "grid.wait",
            "grid.cluster_reduce", "grid.cluster_arrive", "grid.cluster_wait", "gpu.cluster_store", "gpu.cluster_send",
            "cluster.permute", "cluster.read", "cluster.transpose", "gpu.cluster_send_tile", "gpu.cluster_send_parts", "gpu.cluster_arrive_at", "grid.grid_barrier",
        "grid.launch_dependents", "gpu.opaque_thread_id", "asm.volatile", "gpu.shared_count", "scf.return", "scf.while", "scf.condition",
    }  # fmt: skip
    survivors = [op for op in ops if op.block is not None]
    if opcode == "tile.load":
        assert [op.attributes["volatile"] for op in survivors] == [True]
    else:
        assert bool(survivors) == (opcode in effectful)


# ---- driver -----------------------------------------------------------------------------------


def _add_zero(op: Op, build: Builder) -> Sequence[Value] | None:
    """x + 0 = x"""
    del build
    assert isinstance(op, arith.Add)
    constant = op.rhs.op
    if isinstance(constant, arith.Constant) and constant.value == 0:
        return [op.lhs]
    return None


def _double(op: Op, build: Builder) -> Sequence[Value] | None:
    """x + x = 2 * x"""
    assert isinstance(op, arith.Add)
    if op.lhs is not op.rhs:
        return None
    two = build(arith.Constant(2, op.lhs.type)).out
    return [build(arith.Mul(op.lhs, two)).out]


def _drop_double_negation(op: Op, build: Builder) -> Sequence[Value] | None:
    del build
    inner = op.operands[0].op
    return [inner.operands[0]] if isinstance(inner, arith.Neg) else None


def test_patterns_apply_and_leave_no_dead_ops() -> None:
    kernel = _kernel("""
  %zero = arith.constant {value = 0, type = i32} : i32
  %a = arith.add(%x, %zero) : i32
  %b = arith.add(%a, %zero) : i32
  tile.store(%p, %b)
""")
    assert rewrite(kernel, {arith.Add: [_add_zero]})
    verify(kernel)
    assert _body(kernel) == ["tile.store(%p, %x, _)"]
    assert not rewrite(kernel, {arith.Add: [_add_zero]})


def test_what_a_rewrite_makes_possible_is_tried() -> None:
    kernel = _kernel("""
  %a = arith.neg(%x) : i32
  %b = arith.neg(%a) : i32
  %c1 = arith.neg(%b) : i32
  %d = arith.neg(%c1) : i32
  %e = arith.add(%x, %d) : i32
  tile.store(%p, %e)
""")
    rewrite(kernel, {arith.Neg: [_drop_double_negation], arith.Add: [_double]})
    verify(kernel)
    assert _body(kernel) == [
        "%0 = arith.constant {value = 2, type = i32} : i32",
        "%e = arith.mul(%x, %0) : i32",
        "tile.store(%p, %e, _)",
    ]


def test_new_ops_carry_the_location_of_the_old() -> None:
    body = Block([I32])
    add = Builder(body)
    with at(Loc("k.py", 12, 4)):
        doubled = add(arith.Add(body.args[0], body.args[0])).out
    add(scf.If(add(arith.Compare(doubled, doubled, "lt")).out, *_empty_arms()))
    add(scf.Return())
    kernel = Kernel("k", (ParamInfo("x"),), body)
    kernel.body.insert(scf_store := _keep(doubled), before=body.last)
    rewrite(kernel, {arith.Add: [_double]})
    assert scf_store.operands[0].op is not None
    assert scf_store.operands[0].op.loc == Loc("k.py", 12, 4)


def _empty_arms() -> list[Block]:
    arms = [Block(), Block()]
    for arm in arms:
        Builder(arm)(scf.Yield([]))
    return arms


def _keep(value: Value) -> Op:
    """Return an op using `value` that is never dead."""
    before, after = Block([I32]), Block()
    condition = Builder(before)(arith.Constant(False, sample_kernel("scf.if").body.args[0].type))
    Builder(before)(scf.Condition(condition.out, []))
    Builder(after)(scf.Yield([value]))
    return scf.While([value], before, after)


def test_erasing_a_loop_frees_what_it_used() -> None:
    kernel = _kernel("""
  %one = arith.constant {value = 1, type = i32} : i32
  %used_inside = arith.neg(%x) : i32
  %r = scf.for(%x, %x, %one, %x) (%i: i32, %a: i32) {
    %b = arith.add(%a, %used_inside) : i32
    scf.yield(%b)
  } : i32
""")
    assert rewrite(kernel, {})
    verify(kernel)
    assert _body(kernel) == []


def test_a_pattern_on_ops_inside_a_dead_loop_is_not_tried_after() -> None:
    tried: list[Op] = []

    def note(op: Op, build: Builder) -> None:
        del build
        assert op.operands, "an erased op was handed to a pattern"
        tried.append(op)

    kernel = _kernel("""
  %r = scf.if(%c) () {
    %a = arith.neg(%x) : i32
    scf.yield(%a)
  } () {
    scf.yield(%x)
  } : i32
  tile.store(%p, %r)
""")
    rewrite(
        kernel,
        {arith.Neg: [note], scf.If: [lambda op, build: [op.operands[0] and kernel.body.args[1]]]},
    )
    verify(kernel)
    assert len(tried) <= 1
    assert _body(kernel) == ["tile.store(%p, %x, _)"]


def test_an_op_without_results_is_replaced_by_nothing() -> None:
    kernel = _kernel("  tile.assume(%c)\n  tile.store(%p, %x)\n")
    rewrite(kernel, {tile.Assume: [lambda op, build: ()]})
    assert _body(kernel) == ["tile.store(%p, %x, _)"]


def test_patterns_that_undo_each_other_are_stopped() -> None:
    kernel = _kernel("  %a = arith.neg(%x) : i32\n  tile.store(%p, %a)\n")

    def to_abs(op: Op, build: Builder) -> Sequence[Value]:
        return [build(arith.Abs(op.operands[0])).out]

    def to_neg(op: Op, build: Builder) -> Sequence[Value]:
        return [build(arith.Neg(op.operands[0])).out]

    with pytest.raises(IRError, match="rewriting does not converge at arith"):
        rewrite(kernel, {arith.Neg: [to_abs], arith.Abs: [to_neg]})


def test_a_pattern_that_only_litters_is_stopped() -> None:
    kernel = _kernel("  %a = arith.neg(%x) : i32\n  tile.store(%p, %a)\n")

    def litter(op: Op, build: Builder) -> None:
        build(arith.Neg(op.operands[0]))
        for _ in range(3):
            build(_keep(op.operands[0]))

    with pytest.raises(IRError, match="does not converge"):
        rewrite(kernel, {arith.Neg: [litter], scf.While: [litter]})
