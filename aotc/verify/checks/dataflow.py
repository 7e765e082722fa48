"""What the arguments of a kernel are for, read off its tile IR.

A signature says that `n_cols` and `stride` are integers. To choose values at which a kernel is
likely to be wrong, and none at which it means nothing, one must know that the first is the extent
of what a mask or a loop runs over, in blocks of so many, and that the second sets rows apart. That
and more is in the data flow: what an address adds up, what an index is compared with, which loaded
values become indices, and which results depend on an operation that hardware may round differently.

Invariant: an answer is a hint for choosing inputs, except `inexact`: a buffer that is not in it
holds the same bits however the kernel is compiled.
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
    """Say that an address adds `stride * index` for each of the indices.

    It `is_wide` if every such product has 64 bits, so that it may go beyond 2**31. `rows` are those
    that the tile of a descriptor has along the stride, 0 if no descriptor has it.
    """

    stride: str
    indices: list[Value]
    is_wide: bool = True
    rows: int = 0


@dataclass(frozen=True, slots=True)
class LoopRole:
    """Say how an extent bounds a loop: `block` of it an iteration, in `stages` if not 0."""

    block: int
    stages: int = 0


@dataclass(slots=True)
class Roles:
    """What the parameters of a kernel are for; all by name, in the order of the signature.

    `extents` gives each extent the size of the blocks it is covered in, 1 for one at a time, and
    `loops` are those that bound a loop of a program. `persistent` are the loops in which a program
    takes one tile after the other, `tiled` the extents that their tiles cover.
    `strides` gives each pointer the strides of its addresses, and `unit` are the pointers whose
    addresses also step by single elements. `indices` are pointers at what is used as an index,
    `inexact` those at results that may be rounded differently. `axes` are the grid axes in use,
    each with the extents that its programs seem to go through. `read` and `written` are the
    pointers through which memory is read and written; `locks` those at words that programs wait
    for, with the value of one that is free. `mapped` are the extents of tensors whose maps are
    stored, each with what it is a multiple of.
    """

    extents: dict[str, int] = field(default_factory=dict[str, int])
    strides: dict[str, list[StrideTerm]] = field(default_factory=dict[str, list[StrideTerm]])
    unit: list[str] = field(default_factory=list[str])
    indices: list[str] = field(default_factory=list[str])
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
        """All strides, each once."""
        return tuple(dict.fromkeys(t.stride for terms in self.strides.values() for t in terms))


def roles_of(
    kernel: Kernel, grid_blocks: Mapping[str, int], is_inexact: Callable[[Op], bool]
) -> Roles:
    """Return what the parameters of a kernel in tile IR are for.

    `grid_blocks` are the extents that the grid names, each with its block; `is_inexact` says
    whether an op may be rounded differently by hardware.
    """
    return _Analysis(kernel, is_inexact).roles(grid_blocks)


def adds_up_fp8(kernel: Kernel) -> bool:
    """Return whether a loop has a dot of fp8, whose sums tensor cores keep in few bits."""
    dots = [op for op in kernel.walk() if isinstance(op, tile.Dot)]
    fp8 = [op for op in dots if element_of(op.a.type) in (FP8E4NV, FP8E5)]
    return any(outer.has(Trait.LOOP) for op in fp8 for outer in op.ancestors())


def shared_block(block: int, num_extents: int) -> int:
    """Return the part of a block that each of several extents has whose product it divides.

    >>> shared_block(128, 3)
    5
    """
    return max(2, round(block ** (1 / num_extents))) if num_extents > 1 else block


def _variable_of_steps(offset: Value) -> Value | None:
    """Return the variable of a loop that moves a pointer by an offset each time."""
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
        for name, block in (*self._masked(), *looped, *self._tiled(roles), *stored):
            extents[name] = max(block, extents.get(name, 1))
        roles.extents = {name: extents[name] for name in self.names.values() if name in extents}
        for arg, name in self.names.items():
            if isinstance(arg.type, DescriptorType):
                for axis, block in enumerate(arg.type.block):
                    roles.extents[f"{name}.shape[{axis}]"] = block
        self._add_strides(roles)
        roles.indices = self._indices()
        roles.inexact = self._inexact()
        roles.locks = free_locks(self.kernel)
        roles.read, roles.written = self._accessed(Op.reads), self._accessed(Op.writes)
        return roles

    def _accessed(self, accesses: Callable[[Op], bool]) -> list[str]:
        """Return the pointers through which ops for which `accesses` holds access memory."""
        found = dict.fromkeys(
            self.names.get(root, "")
            for op in self.accesses
            if accesses(op)
            for root in pointer_roots(_pointer(op))
        )
        return [name for name in self.names.values() if name in found]

    def _axes(self) -> dict[int, list[str]]:
        """Return the grid axes in use, with the extents that an index made of each is masked by."""
        axes: dict[int, list[str]] = {
            op.axis: [] for op in self.ops if isinstance(op, tile.ProgramId)
        }
        for op in self._index_comparisons():
            found = list(backward(op.operands, through_loads=False, through_bounds=False))
            if not any(isinstance(value.op, tile.Arange) for value in found):
                continue
            for value in found:
                if isinstance(value.op, tile.ProgramId):
                    names = axes[value.op.axis]
                    names += [name for name in self._integers(found) if name not in names]
        return axes

    def _largest_tile(self) -> int:
        return max((op.end for op in self.ops if isinstance(op, tile.Arange)), default=1)

    def _integers(self, values: Iterable[Value]) -> Iterator[str]:
        """Yield the integer parameters among `values`."""
        for value in values:
            name = self.names.get(value)
            if name is not None and isinstance(value.type, ScalarType) and value.type.is_int:
                yield name

    def _masked(self) -> Iterator[tuple[str, int]]:
        """Yield the parameters that an index is compared with, and the extent of its tile."""
        for op in self._index_comparisons():
            # What bounds a loop is no extent of the tile that is masked in it.
            found = list(backward(op.operands, through_loads=False, through_bounds=False))
            block = [v.op.end - v.op.start for v in found if isinstance(v.op, tile.Arange)]
            if block or any(_is_program_id(value) for value in found):
                names = list(self._integers(found))
                is_product = any(self._multiplies_parameters(value) for value in found)
                for name in names:
                    size = max(block, default=1)
                    yield name, shared_block(size, len(names)) if is_product else size

    def _multiplies_parameters(self, value: Value) -> bool:
        """Return whether a value is a product of extents, such as of an image's height and width."""
        op = value.op
        if not isinstance(op, arith.Mul):
            return False
        sides = [list(backward([side], through_loads=False)) for side in op.operands]
        return all(
            any(each in self.names for each in side) and not any(_varies(each) for each in side)
            for side in sides
        )

    def _index_comparisons(self) -> Iterator[arith.Compare]:
        """Yield the comparisons of integers none of which was loaded."""
        for op in self.ops:
            if not isinstance(op, arith.Compare) or op.predicate not in _ORDERS:
                continue
            kind = element_of(op.lhs.type)
            if not isinstance(kind, ScalarType) or not kind.is_int:
                continue
            found = backward(op.operands, through_loads=False)
            if not any(touches_memory(value.op) for value in found):
                yield op

    def _add_loops(self, roles: Roles) -> None:
        """Add the extents that bound loops, each with what of it an iteration takes."""
        for op in self.ops:
            if not isinstance(op, scf.For):
                continue
            found = list(backward([op.upper], through_loads=False))
            divided = self._divided(found)
            names = [*self._integers(found), *self._described(found)]
            if _is_program_id(strip(op.lower)) and divided:
                roles.persistent.append(op)
                roles.tiled += [name for name in names if name not in roles.tiled]
                continue
            for name in names:
                block = max(_constant(op.step), divided.get(name, 1))
                known = roles.loops.get(name, LoopRole(1))
                stages = max(op.num_stages, known.stages)
                roles.loops[name] = LoopRole(max(block, known.block), stages)

    def _tiled(self, roles: Roles) -> Iterator[tuple[str, int]]:
        """Yield the extents that persistent programs cover in tiles, and what a tile takes."""
        for op in roles.persistent:
            yield from self._divided(backward([op.upper], through_loads=False)).items()

    def _stored_maps(self, roles: Roles) -> Iterator[tuple[str, int]]:
        """Yield the extents of tensors whose maps are stored, each with its part of a tile.

        Such a tensor has no empty axis, and its rows are whole pieces of 16 bytes.
        """
        for op in self.ops:
            if not isinstance(op, StoreMap):
                continue
            rank = len(op.shape)
            kind = element_of(op.pointer.type)
            assert isinstance(kind, PointerType)
            assert isinstance(kind.pointee, ScalarType)
            grain = TENSOR_ALIGNMENT_BYTES // kind.pointee.size_bytes
            for at, size in enumerate(op.sizes):
                for name in self._integers([strip(size)]):
                    divisor = grain if at >= rank else 1
                    roles.mapped[name] = max(divisor, roles.mapped.get(name, 1))
                    yield name, op.shape[at] if at < rank else 1

    def _divided(self, values: Iterable[Value]) -> dict[str, int]:
        """Return the extents that are divided by a constant among `values`, each with the largest."""
        blocks: dict[str, int] = {}
        for value in values:
            if isinstance(value.op, arith.Div):
                inside = list(backward([value.op.lhs], through_loads=False))
                for name in (*self._integers(inside), *self._described(inside)):
                    blocks[name] = max(_constant(value.op.rhs), blocks.get(name, 1))
        return blocks

    def _described(self, values: Iterable[Value]) -> Iterator[str]:
        """Yield the extents of tensors among `values`."""
        for value in values:
            op = value.op
            if isinstance(op, descriptor.DescriptorExtent) and op.descriptor in self.names:
                yield f"{self.names[op.descriptor]}.shape[{op.axis}]"

    # ---- addresses ---------------------------------------------------------------------------

    def _offsets(self) -> Iterator[tuple[list[str], Value]]:
        """Yield every offset that is added to a pointer, with the pointers it may be."""
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
                    known = [term for term in terms if term.stride == stride]
                    if not known:
                        known = [StrideTerm(stride, [])]
                        terms += known
                    known[0].indices.append(index)
                    known[0].is_wide &= is_wide
        self._add_described(roles)
        order = list(self.names.values())
        for terms in roles.strides.values():
            terms.sort(key=lambda term: order.index(term.stride))

    def _add_described(self, roles: Roles) -> None:
        """Add the strides of tensors that the kernel describes."""
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
                        known = next((term for term in terms if term.stride == name), None)
                        if known is None:
                            known = StrideTerm(name, [])
                            terms.append(known)
                        known.indices.append(op.extents[axis])
                        known.rows = max(known.rows, op.shape[axis])

    def _terms(
        self, offset: Value, extents: Mapping[str, int]
    ) -> Iterator[tuple[str | None, Value, bool]]:
        """Yield what is added up: a stride and its index, or None and what steps by elements.

        And whether the product has 64 bits.
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
        elif any(_varies(each) for each in backward([value])):
            yield None, value, True

    def _indices(self) -> list[str]:
        """Return the pointers at integers that end up in an address or a loop's bound."""
        used = [offset for _, offset in self._offsets()]
        for op in self.ops:
            if isinstance(op, scf.For):
                used += [op.lower, op.upper, op.step]
        found: dict[str, None] = {}
        for value in backward(used):
            op = value.op
            pointer = pointer_operand(op) if op is not None else None
            kind = element_of(value.type)
            if pointer is None or not isinstance(kind, ScalarType) or not kind.is_int:
                continue
            for root in pointer_roots(pointer):
                if root in self.names:
                    found[self.names[root]] = None
        return [name for name in self.names.values() if name in found]

    # ---- results -----------------------------------------------------------------------------

    def _inexact(self) -> list[str]:
        """Return the pointers at what depends on an inexact op, through memory as well."""
        found: dict[str, None] = {}
        while True:
            count = len(found)
            for op in self.accesses:
                if not op.writes() or not self._depends(op, found):
                    continue
                for root in pointer_roots(_pointer(op)):
                    found[self.names.get(root, "")] = None
            if len(found) == count:
                break
        if "" in found:  # an address of unknown origin: it may be any of them
            kinds = (PointerType, DescriptorType)
            return [n for a, n in self.names.items() if isinstance(a.type, kinds)]
        return [name for name in self.names.values() if name in found]

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
    """Return the values that decide whether and how often `op` runs."""
    found: list[Value] = []
    for parent in op.ancestors():
        if isinstance(parent, scf.If):
            found.append(parent.condition)
        elif isinstance(parent, scf.For):
            found += [parent.lower, parent.upper, parent.step]
        elif isinstance(parent, scf.While):
            found.append(parent.before.terminator.operands[0])
    return found


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
