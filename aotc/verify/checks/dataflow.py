"""Infer the uses of a kernel's arguments from its tile IR.

In a signature `n_cols` and `stride` are mere integers. Good launches need more: `n_cols`
is the extent of a mask or a loop, covered in blocks of a certain size, and `stride` separates
rows. Both follow from the data flow: the terms of an address, the comparisons of an index,
loaded values that become indices, and results that depend on an op hardware may round
differently.

Invariant: an answer is a hint for choosing inputs, except `inexact`: a buffer not in it holds
the same bits however the kernel is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, descriptor, scf, tile
from aotc.ir.dialects.descriptor import TENSOR_ALIGNMENT_BYTES
from aotc.ir.dialects.map_store import StoreMap
from aotc.ir.effects import Trait
from aotc.ir.parameter_access import pointer_roots
from aotc.ir.types import FP8E4NV, FP8E5, DescriptorType, PointerType, ScalarType, element_of
from aotc.verify.checks.locks import free_locks
from aotc.verify.checks.value_flow import (
    backward,
    pointer_operand,
    strip,
    touches_memory,
)

_ORDERS = ("lt", "le", "gt", "ge")


@dataclass(slots=True)
class StrideTerm:
    """A term `stride * index` of addresses, for each of the indices.

    It `is_wide` if every such product has 64 bits, and may exceed 2**31. `rows` is the
    extent of a descriptor's tile along the stride, 0 without a descriptor.
    """

    stride: str
    indices: list[Value]
    is_wide: bool = True
    rows: int = 0


@dataclass(frozen=True, slots=True)
class LoopRole:
    """An extent's use as a loop bound: `block` of it per iteration, in `stages` if not 0."""

    block: int
    stages: int = 0


@dataclass(slots=True)
class Roles:
    """The uses of a kernel's parameters, by name, in the order of the signature.

    - `extents` maps each extent to the size of its blocks, 1 for one at a time.
    - `loops` are the extents bounding a loop of a program.
    - `persistent` are the loops in which a program takes one tile after the other, `tiled` the
      extents their tiles cover.
    - `strides` maps each pointer to the strides of its addresses; `unit` are the pointers with
      addresses that also step by single elements.
    - `indices` are the pointers to values used as an index, `inexact` those to results that may
      be rounded differently.
    - `offsets` are the pointers to starts of sequences: the length is a difference of two.
    - `addresses` are the pointers to addresses, each with the element at the address.
    - `axes` are the grid axes in use, each with the extents its programs seem to cover.
    - `read` and `written` are the pointers of memory accesses.
    - `locks` are the pointers to words of spin locks, with the value of a free lock.
    - `mapped` are the extents of tensors with stored maps, each with its divisor.
    """

    extents: dict[str, int] = field(default_factory=dict[str, int])
    strides: dict[str, list[StrideTerm]] = field(default_factory=dict[str, list[StrideTerm]])
    unit: list[str] = field(default_factory=list[str])
    indices: list[str] = field(default_factory=list[str])
    offsets: list[str] = field(default_factory=list[str])
    addresses: dict[str, ScalarType] = field(default_factory=dict[str, ScalarType])
    inexact: list[str] = field(default_factory=list[str])
    axes: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    largest_tile: int = 1
    loops: dict[str, LoopRole] = field(default_factory=dict[str, LoopRole])
    persistent: list[scf.For] = field(default_factory=list[scf.For])
    tiled: list[str] = field(default_factory=list[str])
    read: list[str] = field(default_factory=list[str])
    written: list[str] = field(default_factory=list[str])
    locks: dict[str, int] = field(default_factory=dict[str, int])
    mapped: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def stride_names(self) -> tuple[str, ...]:
        """All strides, without repeats."""
        return tuple(dict.fromkeys(t.stride for terms in self.strides.values() for t in terms))


def roles_of(
    kernel: Kernel, grid_blocks: Mapping[str, int], is_inexact: Callable[[Op], bool]
) -> Roles:
    """Return the uses of the parameters of a kernel in tile IR.

    `grid_blocks` are the extents in the grid, each with its block; `is_inexact` tells whether
    hardware may round an op differently.
    """
    return _Analysis(kernel, is_inexact).roles(grid_blocks)


def adds_up_fp8(kernel: Kernel) -> bool:
    """Return whether a loop has an fp8 dot: tensor cores keep its sums in few bits."""
    dots = [op for op in kernel.walk() if isinstance(op, tile.Dot)]
    fp8 = [op for op in dots if element_of(op.a.type) in (FP8E4NV, FP8E5)]
    return any(outer.has(Trait.LOOP) for op in fp8 for outer in op.ancestors())


def shared_block(block: int, num_extents: int) -> int:
    """Return each extent's share of a block that covers the product of several extents.

    >>> shared_block(128, 3) 5
    """
    return max(2, round(block ** (1 / num_extents))) if num_extents > 1 else block


def _variable_of_steps(offset: Value) -> Value | None:
    """Return the induction variable of the loop in which a pointer advances by an offset."""
    for user in offset.users:
        owner = user.pointer.owner if isinstance(user, arith.AddPtr) else None
        if isinstance(owner, Block) and isinstance(owner.parent, scf.For):
            return owner.args[0]
    return None


class _Analysis:
    def __init__(self, kernel: Kernel, is_inexact: Callable[[Op], bool]) -> None:
        self.kernel = kernel
        self.is_inexact = is_inexact
        self.names = {
            arg: info.name for arg, info in zip(kernel.body.args, kernel.params, strict=True)
        }
        self.ops = list(kernel.walk())
        self.accesses = [op for op in self.ops if pointer_operand(op) is not None]

    def roles(self, grid_blocks: Mapping[str, int]) -> Roles:
        roles = Roles(largest_tile=self._largest_tile())
        roles.axes = self._axes()
        self._add_loops(roles)
        extents = dict(grid_blocks)
        looped = ((name, role.block) for name, role in roles.loops.items())
        stored = list(self._stored_maps(roles))
        for name, block in (*self._masked_extents(), *looped, *self._tiled_extents(roles), *stored):
            extents[name] = max(block, extents.get(name, 1))
        roles.extents = {name: extents[name] for name in self.names.values() if name in extents}
        for arg, name in self.names.items():
            if isinstance(arg.type, DescriptorType):
                for axis, block in enumerate(arg.type.block):
                    roles.extents[f"{name}.shape[{axis}]"] = block
        self._add_strides(roles)
        roles.indices = self._indices()
        roles.offsets = [name for name in roles.indices if name in self._subtracted()]
        roles.addresses = self._addresses()
        roles.inexact = self._inexact()
        roles.locks = free_locks(self.kernel)
        roles.read, roles.written = (
            self._accessed_pointers(Op.reads),
            self._accessed_pointers(Op.writes),
        )
        return roles

    def _accessed_pointers(self, accesses: Callable[[Op], bool]) -> list[str]:
        """Return the pointers of the ops for which `accesses` holds."""
        pointers = dict.fromkeys(
            self.names.get(root, "")
            for op in self.accesses
            if accesses(op)
            for root in pointer_roots(_pointer(op))
        )
        return [name for name in self.names.values() if name in pointers]

    def _axes(self) -> dict[int, list[str]]:
        """Return the grid axes in use, with the extents masking an index made of each."""
        axes: dict[int, list[str]] = {
            op.axis: [] for op in self.ops if isinstance(op, tile.ProgramId)
        }
        for op in self._index_comparisons():
            sources = list(backward(op.operands, through_loads=False, through_bounds=False))
            if not any(isinstance(value.op, tile.Arange) for value in sources):
                continue
            for value in sources:
                if isinstance(value.op, tile.ProgramId):
                    names = axes[value.op.axis]
                    names += [name for name in self._integers(sources) if name not in names]
        return axes

    def _largest_tile(self) -> int:
        return max((op.end for op in self.ops if isinstance(op, tile.Arange)), default=1)

    def _integers(self, values: Iterable[Value]) -> Iterator[str]:
        """Yield the integer parameters among `values`."""
        for value in values:
            name = self.names.get(value)
            if name is not None and isinstance(value.type, ScalarType) and value.type.is_int:
                yield name

    def _masked_extents(self) -> Iterator[tuple[str, int]]:
        """Yield the parameters compared with an index, and the extent of its tile."""
        for op in self._index_comparisons():
            # Skip loop bounds: they are no extents of the masked tile.
            sources = list(backward(op.operands, through_loads=False, through_bounds=False))
            block = [v.op.end - v.op.start for v in sources if isinstance(v.op, tile.Arange)]
            if block or any(_is_program_id(value) for value in sources):
                names = list(self._integers(sources))
                is_product = any(map(self._multiplies_parameters, sources))
                for name in names:
                    size = max(block, default=1)
                    yield name, shared_block(size, len(names)) if is_product else size

    def _multiplies_parameters(self, value: Value) -> bool:
        """Return whether a value is a product of extents, such as an image's height x width.

        A product of counts of tiles, by which programs are swizzled, is none.
        """
        op = value.op
        if not isinstance(op, arith.Mul):
            return False
        sides = [list(backward([side], through_loads=False)) for side in op.operands]
        return all(
            any(source in self.names for source in side)
            and not any(_varies(source) for source in side)
            for side in sides
        ) and not all(any(isinstance(v.op, arith.Div) for v in side) for side in sides)

    def _index_comparisons(self) -> Iterator[arith.Compare]:
        """Yield the comparisons of integers computed without loads."""
        for op in self.ops:
            if not isinstance(op, arith.Compare) or op.predicate not in _ORDERS:
                continue
            kind = element_of(op.lhs.type)
            if not isinstance(kind, ScalarType) or not kind.is_int:
                continue
            sources = backward(op.operands, through_loads=False)
            if not any(touches_memory(value.op) for value in sources):
                yield op

    def _add_loops(self, roles: Roles) -> None:
        """Add the extents bounding loops, each with its block per iteration."""
        for op in self.ops:
            if not isinstance(op, scf.For):
                continue
            sources = list(backward([op.upper], through_loads=False))
            divided = self._divided_extents(sources)
            names = [*self._integers(sources), *self._described_extents(sources)]
            if _is_program_id(strip(op.lower)) and divided:
                roles.persistent.append(op)
                roles.tiled += [name for name in names if name not in roles.tiled]
                continue
            for name in names:
                block = max(_constant(op.step), divided.get(name, 1))
                role = roles.loops.get(name, LoopRole(1))
                stages = max(op.num_stages, role.stages)
                roles.loops[name] = LoopRole(max(block, role.block), stages)

    def _tiled_extents(self, roles: Roles) -> Iterator[tuple[str, int]]:
        """Yield the extents covered by persistent programs in tiles, and the size of a tile."""
        for op in roles.persistent:
            yield from self._divided_extents(backward([op.upper], through_loads=False)).items()

    def _stored_maps(self, roles: Roles) -> Iterator[tuple[str, int]]:
        """Yield the extents of tensors with stored maps, each with its block.

        Such a tensor has no empty axis, and its rows are multiples of 16 bytes.
        """
        for op in self.ops:
            if not isinstance(op, StoreMap):
                continue
            rank = len(op.shape)
            kind = element_of(op.pointer.type)
            assert isinstance(kind, PointerType)
            assert isinstance(kind.pointee, ScalarType)
            grain = TENSOR_ALIGNMENT_BYTES // kind.pointee.size_bytes
            for axis, size in enumerate(op.sizes):
                for name in self._integers([strip(size)]):
                    divisor = grain if axis >= rank else 1
                    roles.mapped[name] = max(divisor, roles.mapped.get(name, 1))
                    yield name, op.shape[axis] if axis < rank else 1

    def _divided_extents(self, values: Iterable[Value]) -> dict[str, int]:
        """Return the extents among `values` with a constant divisor, the largest of each."""
        blocks: dict[str, int] = {}
        for value in values:
            if isinstance(value.op, arith.Div):
                inside = list(backward([value.op.lhs], through_loads=False))
                for name in (*self._integers(inside), *self._described_extents(inside)):
                    blocks[name] = max(_constant(value.op.rhs), blocks.get(name, 1))
        return blocks

    def _described_extents(self, values: Iterable[Value]) -> Iterator[str]:
        """Yield the extents of tensors among `values`."""
        for value in values:
            op = value.op
            if isinstance(op, descriptor.DescriptorExtent) and op.descriptor in self.names:
                yield f"{self.names[op.descriptor]}.shape[{op.axis}]"

    # ---- addresses ---------------------------------------------------------------------------

    def _offsets(self) -> Iterator[tuple[list[str], Value]]:
        """Yield every offset added to a pointer, with the possible pointers."""
        for op in self.ops:
            if isinstance(op, arith.AddPtr):
                roots = [self.names[r] for r in pointer_roots(op.pointer) if r in self.names]
                yield roots, op.offset

    def _add_strides(self, roles: Roles) -> None:
        for roots, offset in self._offsets():
            for stride, index, is_wide in self._terms(offset, roles.extents):
                for root in roots:
                    if stride is None:
                        if root not in roles.unit:
                            roles.unit.append(root)
                        continue
                    terms = roles.strides.setdefault(root, [])
                    matches = [term for term in terms if term.stride == stride]
                    if not matches:
                        matches = [StrideTerm(stride, [])]
                        terms += matches
                    matches[0].indices.append(index)
                    matches[0].is_wide &= is_wide
        self._add_described(roles)
        order = list(self.names.values())
        for terms in roles.strides.values():
            terms.sort(key=lambda term: order.index(term.stride))

    def _add_described(self, roles: Roles) -> None:
        """Add the strides of tensors with descriptors made in the kernel."""
        for op in self.ops:
            if not isinstance(op, descriptor.DescriptorOf):
                continue
            roots = [self.names[r] for r in pointer_roots(op.pointer) if r in self.names]
            for root in roots:
                if root not in roles.unit:
                    roles.unit.append(root)
                terms = roles.strides.setdefault(root, [])
                for axis, stride in enumerate(op.strides):
                    for name in self._integers([strip(stride)]):
                        if name in roles.extents:
                            continue
                        stride_term = next((term for term in terms if term.stride == name), None)
                        if stride_term is None:
                            stride_term = StrideTerm(name, [])
                            terms.append(stride_term)
                        stride_term.indices.append(op.extents[axis])
                        stride_term.rows = max(stride_term.rows, op.shape[axis])

    def _terms(
        self, offset: Value, extents: Mapping[str, int]
    ) -> Iterator[tuple[str | None, Value, bool]]:
        """Yield the terms of an offset: stride, index, and whether the product has 64 bits.

        The stride is None for steps of single elements.
        """
        worklist = [offset]
        while worklist:
            term = worklist.pop()
            op = strip(term).op
            if isinstance(op, arith.Add | arith.Sub):
                worklist += [op.rhs, op.lhs]
            else:
                yield from self._term(term, extents)

    def _term(
        self, offset: Value, extents: Mapping[str, int]
    ) -> Iterator[tuple[str | None, Value, bool]]:
        value = strip(offset)
        op = value.op
        strides: list[tuple[str, Value, bool]] = []
        if isinstance(op, arith.Mul):
            for side, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
                names = self._integers([strip(side)])
                is_wide = _is_wide(value)
                strides += [(name, other, is_wide) for name in names if name not in extents]
        moved_by = _variable_of_steps(offset)
        if moved_by is not None:
            names = self._integers([value])
            strides += [(name, moved_by, True) for name in names if name not in extents]
        if strides:
            yield from strides
        elif any(_varies(source) for source in backward([value])):
            yield None, value, True

    def _indices(self) -> list[str]:
        """Return the pointers to integers reaching an address or a loop's bound."""
        uses = [offset for _, offset in self._offsets()]
        for op in self.ops:
            if isinstance(op, scf.For):
                uses += [op.lower, op.upper, op.step]
        pointers: dict[str, None] = {}
        for value in backward(uses):
            op = value.op
            pointer = pointer_operand(op) if op is not None else None
            kind = element_of(value.type)
            if pointer is None or not isinstance(kind, ScalarType) or not kind.is_int:
                continue
            for root in pointer_roots(pointer):
                if root in self.names:
                    pointers[self.names[root]] = None
        return [name for name in self.names.values() if name in pointers]

    def _subtracted(self) -> dict[str, None]:
        """Return the pointers with a difference, or a loop, between two of their values."""
        pointers: dict[str, None] = {}
        for op in self.ops:
            if isinstance(op, arith.Sub | scf.For):
                first, second = (self._loaded_from(value) for value in op.operands[:2])
                pointers |= dict.fromkeys(name for name in first if name in second)
        return pointers

    def _addresses(self) -> dict[str, ScalarType]:
        """Return the pointers to integers that become pointers, with what those point to."""
        addresses: dict[str, ScalarType] = {}
        for op in self.ops:
            kind = element_of(op.out.type) if isinstance(op, arith.Bitcast) else None
            if not isinstance(kind, PointerType):
                continue
            worklist = list(op.operands)
            while worklist:
                value = strip(worklist.pop())
                if isinstance(value.op, arith.Add | arith.Sub | arith.Bitcast):
                    worklist += value.op.operands
                elif _is_wide(value):
                    addresses |= dict.fromkeys(self._loaded_from(value), kind.pointee)
        return addresses

    def _loaded_from(self, value: Value) -> list[str]:
        """Return the parameters that a value is loaded from, without arithmetic."""
        op = strip(value).op
        if not isinstance(op, tile.Load):
            return []
        return [self.names[root] for root in pointer_roots(op.pointer) if root in self.names]

    # ---- results -----------------------------------------------------------------------------

    def _inexact(self) -> list[str]:
        """Return the pointers to results of inexact ops, tracked through memory as well."""
        inexact: dict[str, None] = {}
        while True:
            count = len(inexact)
            for op in self.accesses:
                if not op.writes() or not self._depends(op, inexact):
                    continue
                for root in pointer_roots(_pointer(op)):
                    inexact[self.names.get(root, "")] = None
            if len(inexact) == count:
                break
        if "" in inexact:  # an address of unknown origin may be any of them
            kinds = (PointerType, DescriptorType)
            return [n for a, n in self.names.items() if isinstance(a.type, kinds)]
        return [name for name in self.names.values() if name in inexact]

    def _depends(self, op: Op, inexact: Mapping[str, None]) -> bool:
        start = [*op.operands, *_conditions(op)]
        if self.is_inexact(op):
            return True
        for value in backward(start):
            owner = value.op
            if owner is None:
                continue
            if self.is_inexact(owner):
                return True
            pointer = pointer_operand(owner)
            if pointer is not None and any(
                self.names.get(root, "") in inexact for root in pointer_roots(pointer)
            ):
                return True
        return False


def _pointer(op: Op) -> Value:
    pointer = pointer_operand(op)
    assert pointer is not None
    return pointer


def _conditions(op: Op) -> list[Value]:
    """Return the conditions and loop bounds on which `op` depends."""
    conditions: list[Value] = []
    for parent in op.ancestors():
        if isinstance(parent, scf.If):
            conditions.append(parent.condition)
        elif isinstance(parent, scf.For):
            conditions += [parent.lower, parent.upper, parent.step]
        elif isinstance(parent, scf.While):
            conditions.append(parent.before.terminator.operands[0])
    return conditions


def _is_wide(value: Value) -> bool:
    kind = element_of(value.type)
    return isinstance(kind, ScalarType) and kind.bits == 64


def _is_program_id(value: Value) -> bool:
    return isinstance(value.op, tile.ProgramId)


def _varies(value: Value) -> bool:
    """Return whether a value differs between programs, elements or iterations."""
    if value.op is not None:
        return isinstance(value.op, tile.ProgramId | tile.Arange) or touches_memory(value.op)
    return isinstance(value.owner, Block) and isinstance(value.owner.parent, scf.For | scf.While)


def _constant(value: Value) -> int:
    """Return the value of a constant, 1 for anything else."""
    op = strip(value).op
    return int(op.value) if isinstance(op, arith.Constant) else 1
