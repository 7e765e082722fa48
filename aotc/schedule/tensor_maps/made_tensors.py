"""Let the launcher encode tensor maps of descriptors made in the kernel.

The launch can describe the tensor if extents and strides are polynomials over arguments, and the address is
a pointer argument. Then the descriptor becomes a parameter. An address offset by products of arguments and
program ids, such as a head's or an expert's, steps along extra unbounded axes of the tensor. The launch
checks the remaining conditions (strides in multiples of 16 bytes, no empty axis), as for loads through
pointers.

Invariant: accesses touch the same elements, in every launch for which all guards hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import descriptor, tile
from aotc.ir.dialects.descriptor import MAX_RANK, TENSOR_ALIGNMENT_BYTES, DescriptorOf
from aotc.ir.params import ParamInfo, TensorSource
from aotc.ir.rewrite import Builder
from aotc.ir.types import DescriptorType
from aotc.schedule.analysis.affine import AffineAnalysis
from aotc.schedule.analysis.coordinates import coordinate
from aotc.schedule.analysis.global_order import accessed
from aotc.schedule.analysis.launch_text import LaunchText
from aotc.schedule.analysis.polynomial import ZERO, Polynomial
from aotc.schedule.analysis.signs import Signs
from aotc.schedule.context import Schedule
from aotc.schedule.remarks import Remark
from aotc.schedule.tensor_maps.pointer_box import OUT_OF_REACH


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor described by the launch, and a program's coordinates along its first axes."""

    source: TensorSource
    kind: DescriptorType
    starts: tuple[Polynomial, ...]
    guards: tuple[str, ...]


class _UnknownError(Exception):
    """The launch cannot describe a tensor; the message gives the reason."""


class _MisalignedError(_UnknownError):
    """A tensor's address is misaligned for any map."""


def map_made(
    kernel: Kernel, descriptors: Sequence[DescriptorOf], schedule: Schedule
) -> Sequence[DescriptorOf]:
    """Replace descriptors made of launch arguments by parameters; remark why others are not.

    Returns the descriptors for which the kernel may build a map.
    """
    if not descriptors:
        return ()
    analysis = AffineAnalysis(kernel)
    maps: dict[tuple[TensorSource, DescriptorType], Value] = {}
    left: list[DescriptorOf] = []
    for op in descriptors:
        try:
            tensor = _tensor_of(op, kernel, analysis)
        except _UnknownError as reason:
            schedule.remark(op.loc, Remark.NO_TENSOR_MAP(reason=reason))
            if not isinstance(reason, _MisalignedError):
                left.append(op)
            continue
        key = tensor.source, tensor.kind
        if key not in maps:
            address = tensor.source.address
            number = sum(source.address == address for source, _ in maps)
            name = f"{address}.tensor{number or ''}"
            maps[key] = kernel.body.add_arg(tensor.kind, name)
            kernel.params += (ParamInfo(name, tensor=tensor.source),)
        kernel.guards = tuple(dict.fromkeys((*kernel.guards, *tensor.guards)))
        _replace(op, maps[key], tensor.starts, analysis)
    return left


def _tensor_of(op: DescriptorOf, kernel: Kernel, analysis: AffineAnalysis) -> _Tensor:
    """Return the tensor as the launch would describe it. Raises: _UnknownError."""
    text = LaunchText(kernel, analysis)
    address = analysis[op.pointer]
    if address.base is None or address.base.owner is not kernel.body:
        raise _UnknownError("its address is not computed of a pointer argument")
    sizes = [analysis[size].offset for size in op.sizes]
    if not all(analysis.is_launch(symbol) for size in sizes for symbol in size.symbols):
        raise _UnknownError("its extents and strides are not computed of arguments alone")
    moves, guards = _moves(op, address.offset, kernel, analysis)
    rank, num_moves = len(op.shape), len(moves)
    if rank + num_moves > MAX_RANK:
        raise _UnknownError(f"with what its address steps along it has {rank + num_moves} axes")
    texts = [text.of(size) for size in sizes]
    kind = op.out.type
    assert isinstance(kind, DescriptorType)
    if any(isinstance(user, descriptor.DescriptorWrite) for user in op.out.users):
        # Hardware stores whole pieces of 16 bytes, also over the end of a row.
        unit = max(1, TENSOR_ALIGNMENT_BYTES // kind.element.size_bytes)
        guards += (f"{text.factor(sizes[rank - 1])} % {unit} == 0",)
    source = TensorSource(
        kernel.params[address.base.index].name,
        (*[str(OUT_OF_REACH)] * num_moves, *texts[:rank]),
        (*map(text.of, moves), *texts[rank:]),
    )
    block = (*[1] * num_moves, *op.shape)
    box_type = DescriptorType(kind.element, block, kind.fill_nan)
    return _Tensor(source, box_type, tuple(moves.values()), guards)


def _moves(
    op: DescriptorOf, offset: Polynomial, kernel: Kernel, analysis: AffineAnalysis
) -> tuple[dict[Polynomial, Polynomial], tuple[str, ...]]:
    """Return stride and count of the address's steps, and their guards. Raises: _UnknownError."""
    moves: dict[Polynomial, Polynomial] = {}
    for term in offset:
        stride, index = term.factor(analysis.is_launch)
        # A constant factor joins the stride, which is then more often a multiple of 16 bytes.
        factor = Polynomial.constant(abs(term.terms[0][1]))
        stride, index = stride * factor, index.divided_by(factor) or ZERO
        moves[stride] = moves.get(stride, ZERO) + index
    if moves and not all(accessed(user) is op.out for user in op.out.users):
        raise _UnknownError("its address moves, and it is more than accessed")
    kind = op.out.type
    assert isinstance(kind, DescriptorType)
    for stride in moves:
        if (stride.value or 0) * kind.element.size_bytes % TENSOR_ALIGNMENT_BYTES:
            raise _MisalignedError("its address is no multiple of 16 bytes")
    signs, text = Signs(analysis), LaunchText(kernel, analysis)
    if not all(map(signs.never_negative, moves.values())):
        raise _UnknownError("its address may step back")
    guards = [f"{text.of(analysis.symbol(value))} >= 0" for value in signs.required]
    return moves, tuple(guards)


def _replace(
    op: DescriptorOf, tensor: Value, starts: Sequence[Polynomial], analysis: AffineAnalysis
) -> None:
    """Redirect accesses to `tensor`, offset by the program's coordinates."""
    if not starts:
        op.replace_with([tensor])
        return
    with at(op.loc):
        builder = Builder.before_op(op)
        first = [coordinate(analysis, start, op, builder) for start in starts]
    for user in dict.fromkeys(op.out.users):
        with at(user.loc):
            _move(user, tensor, first)
    op.erase()


def _move(access: Op, tensor: Value, first: Sequence[Value]) -> None:
    builder = Builder.before_op(access)
    kind = tensor.type
    assert isinstance(kind, DescriptorType)
    if isinstance(access, descriptor.DescriptorLoad):
        dropped = access.num_dropped + len(first)
        hints = access.cache, access.eviction, dropped, access.num_merged
        loaded = descriptor.DescriptorLoad(tensor, [*first, *access.coords], *hints)
        access.replace_with([builder(loaded).out])
        return
    assert isinstance(access, descriptor.DescriptorWrite)
    coords = [*first, *access.coords]
    value = builder(tile.Reshape(access.value, kind.block)).out
    if isinstance(access, descriptor.DescriptorReduce):
        builder(descriptor.DescriptorReduce(tensor, value, coords, access.kind))
    else:
        builder(descriptor.DescriptorStore(tensor, value, coords))
    access.erase()
