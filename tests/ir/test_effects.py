"""Declared effects and traits of op classes."""

from __future__ import annotations

import pytest

from aotc.ir.core import Block, Op, Value, attribute, operand
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import arith, assembly, gpu, scf, tile, tma
from aotc.ir.effects import Resource, Trait, reads, writes
from aotc.ir.rewrite import is_unobserved
from aotc.ir.types import FP32, PointerType, SharedType, TensorMapType, element_of
from tests.support.every_op import SAMPLES, sample_kernel

_CLASSES = sorted(Op.registry.values(), key=lambda cls: cls.opcode)


@pytest.mark.parametrize("cls", _CLASSES, ids=lambda cls: cls.opcode)
def test_every_class_declares_fields_that_it_has(cls: type[Op]) -> None:
    operand_names = [spec.name for spec in cls.fields if spec.role == "operand"]
    attribute_names = [spec.name for spec in cls.attribute_fields]
    assert all(effect.of in ("", *operand_names) for effect in cls.effects)
    assert all(effect.when in ("", *attribute_names) for effect in cls.effects)
    assert cls.pure or cls.effects or cls.has(Trait.MAY_NOT_END)
    assert not (cls.pure and cls.effects)
    assert cls.terminator == cls.has(Trait.TERMINATOR)


@pytest.mark.parametrize("opcode", SAMPLES)
def test_every_op_declares_what_it_does_with_memory_that_it_is_given(opcode: str) -> None:
    kernel = sample_kernel(opcode)
    op = next(op for op in kernel.walk() if op.opcode == opcode)
    if op.pure:
        return
    named = [getattr(op, effect.of) for effect in op.effects if effect.of]
    # One has any effect; the other waits for readers of its buffer and orders all shared memory.
    anywhere = opcode in ("asm.volatile", "gpu.tma_buffer_wait")
    for value in op.operands:
        is_memory = isinstance(value.type, SharedType | TensorMapType) or isinstance(
            element_of(value.type), PointerType
        )
        is_operand = value in (getattr(op, "value", None), getattr(op, "compare", None))
        assert not is_memory or value in named or is_operand or anywhere, value


def test_a_class_that_declares_nothing_is_refused() -> None:
    with pytest.raises(IRError, match="test.silent: declare either effects, or that it is pure"):

        class Silent(Op, opcode="test.silent"):
            """An op without declared effects."""

    assert "test.silent" not in Op.registry


def test_a_pure_class_has_no_effects() -> None:
    with pytest.raises(IRError, match="test.both: declare either"):

        class Both(Op, opcode="test.both", pure=True, effects=(reads(Resource.GLOBAL),)):
            """An op with contradictory declarations."""


def test_effects_are_on_operands_and_under_attributes_that_exist() -> None:
    with pytest.raises(IRError, match="an effect on target, which is no operand"):

        class Nowhere(Op, opcode="test.nowhere", effects=(writes(Resource.GLOBAL, of="target"),)):
            """An op without the declared operand."""

            pointer: Value = operand()

    with pytest.raises(IRError, match="done, of an effect, is no attribute"):

        class Never(Op, opcode="test.never", effects=(writes(Resource.GLOBAL, when="done"),)):
            """An op without the declared attribute."""

            finished: bool = attribute(default=False)


def test_an_effect_under_an_attribute_holds_where_that_does() -> None:
    assert not tma.TmaStoreWait().orders(Resource.GLOBAL)
    assert tma.TmaStoreWait(written=True).orders(Resource.GLOBAL)
    assert tma.TmaStoreWait().orders(Resource.STORES)


def test_proxies_are_told_apart() -> None:
    fence = tma.ProxyFence(whole=True)
    assert [effect.resource for effect in fence.effects_on(None, proxy="async")] == [
        Resource.SHARED,
        Resource.GLOBAL,
    ]
    assert not fence.effects_on(Resource.SHARED, proxy="generic")


@pytest.mark.parametrize("opcode", SAMPLES)
def test_effects_on_a_resource_are_those_declared_that_the_op_has(opcode: str) -> None:
    op = next(op for op in sample_kernel(opcode).walk() if op.opcode == opcode)
    mine = [
        effect
        for effect in op.effects
        if (not effect.of or getattr(op, effect.of) is not None)
        and (not effect.when or getattr(op, effect.when))
    ]
    kinds = ("allocate", "read", "write", "start", "order")
    for _ in range(2):  # asked again, the answer is the same
        assert list(op.effects_on(None)) == mine
        for resource in Resource:
            on_it = [effect for effect in mine if effect.resource is resource]
            assert list(op.effects_on(resource)) == on_it
            for kind in kinds:
                assert list(op.effects_on(resource, kind)) == [
                    effect for effect in on_it if effect.access == kind
                ]
            changes = [effect for effect in on_it if effect.access in ("write", "order")]
            assert list(op.effects_on(resource, "write", "order")) == changes


def test_an_effect_on_an_operand_that_may_be_absent_is_of_each_op() -> None:
    """Two ops of one class: effects fixed by the class are cached, those of an op are not."""

    class Copy(Op, opcode="test.copy", effects=(reads(Resource.GLOBAL, of="source"),)):
        """An op with an optional operand."""

        source: Value | None = operand(default=None)

    try:
        (pointer,) = Block([PointerType(FP32)]).args
        for _ in range(2):
            assert Copy(pointer).reads(Resource.GLOBAL)
            assert not Copy().reads(Resource.GLOBAL)
    finally:
        del Op.registry["test.copy"]


def test_reading_is_no_side_effect() -> None:
    (pointer,) = Block([PointerType(FP32)]).args
    load, rmw = tile.Load(pointer), tile.AtomicRmw(pointer, Block([FP32]).args[0], "add")
    assert load.reads(Resource.GLOBAL)
    assert not load.has_side_effects
    assert is_unobserved(load)
    assert rmw.reads(Resource.GLOBAL)
    assert rmw.has_side_effects
    assert not is_unobserved(rmw)
    assert not is_unobserved(tile.Load(pointer, volatile=True))


def test_traits_are_inherited_from_bases() -> None:
    assert arith.Add.has(Trait.ELEMENTWISE)
    assert tile.Reshape.has(Trait.VIEW, Trait.SOURCE)
    assert not tile.Splat.has(Trait.VIEW)
    assert assembly.InlineAsm.has(Trait.ELEMENTWISE)  # by the second of its bases
    assert not assembly.VolatileAsm.traits
    assert scf.While.has(Trait.CONTROL_FLOW)
    assert not gpu.Load.traits


# Op classes with a rare trait.
_HAVING = {
    Trait.ATOMIC: (
        *("gpu.atomic_cas", "gpu.atomic_rmw", "grid.grid_barrier"),
        *("tile.atomic_cas", "tile.atomic_rmw"),
    ),
    Trait.BARRIER: (
        *("cluster.permute", "cluster.read", "cluster.transpose", "gpu.barrier"),
        *("grid.cluster_barrier", "grid.cluster_reduce", "grid.grid_barrier", "tile.barrier"),
    ),
    Trait.MAY_TRAP: ("tile.assert",),
    Trait.DEPENDENT_LAUNCH: ("grid.launch_dependents", "grid.wait"),
    Trait.BROADCAST: ("tile.broadcast", "tile.splat"),
    Trait.ALIAS: (
        "gpu.shared_stage",
        "gpu.shared_trans",
        "tile.descriptor_in",
        "tile.descriptor_of",
    ),
    Trait.DOT: ("gpu.dot", "gpu.wgmma", "tile.dot"),
}


@pytest.mark.parametrize("trait", _HAVING, ids=lambda trait: trait.name)
def test_which_classes_have_a_trait(trait: Trait) -> None:
    assert tuple(cls.opcode for cls in _CLASSES if cls.has(trait)) == _HAVING[trait]


def test_a_staged_store_reads_its_tensor_if_it_is_a_reduction() -> None:
    op = next(
        op
        for op in sample_kernel("gpu.staged_tma_store").walk()
        if isinstance(op, tma.StagedTmaStore)
    )
    assert op.reads(Resource.GLOBAL) == bool(op.kind)
    plain = op.clone({}, kind="")
    assert not plain.reads(Resource.GLOBAL)
    assert plain.writes(Resource.GLOBAL)
    assert op.clone({}, kind="add").reads(Resource.GLOBAL)
