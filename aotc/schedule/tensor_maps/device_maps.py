"""Which descriptors that a kernel makes get a tensor map that the kernel makes, too.

Where no launch can describe the tensor, since its address, extents or strides are loaded or differ
between programs, the warp that issues the copies makes the map itself: `assign_layouts` emits
`gpu.make_tensor_map` for each `tile.descriptor_of` that is left. As Triton does, this takes
`tl.make_tensor_descriptor` for the promise that address and strides are multiples of 16 bytes, and so
are the rows of a tensor that is stored to. Constants that break it are seen here.

A map holds extents less one, so none can be 0. Where an extent may be, the map has 1 in its place, and
of a tensor with an empty axis the first extent is 1 and tiles begin at coordinate 1 of it: all of them is
out of bounds.

A descriptor is loaded through, or stored through. A tensor that is accessed in other ways as well, and
written by one of them, is accessed through pointers, which keep program order.

Invariant: accesses touch what they touched, of every tensor that is as promised.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Kernel, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, descriptor
from aotc.ir.dialects.descriptor import TENSOR_ALIGNMENT_BYTES, DescriptorOf
from aotc.ir.effects import Trait
from aotc.ir.parameter_access import pointer_roots
from aotc.ir.rewrite import Builder, is_trivially_dead
from aotc.ir.types import I32, DescriptorType
from aotc.schedule.analysis.alias import argument_of
from aotc.schedule.analysis.global_order import accessed
from aotc.schedule.context import Schedule
from aotc.schedule.remarks import Reason, Remark


def map_on_device(
    kernel: Kernel, made: Sequence[DescriptorOf], schedule: Schedule
) -> dict[Value, None]:
    """Return the descriptors that keep a map of the kernel's own; remark why others have none."""
    kept: list[DescriptorOf] = []
    for op in made:
        if is_trivially_dead(op):
            continue
        reason = _obstacle(op, kernel)
        if reason:
            schedule.remark(op.loc, Remark.NO_DEVICE_MAP(reason=reason))
        else:
            schedule.remark(op.loc, Remark.DEVICE_MAP())
            kept.append(op)
    return {_with_extents(op).out: None for op in kept}


def _obstacle(op: DescriptorOf, kernel: Kernel) -> str:
    """Return why a descriptor has no map of the kernel's own, or an empty string."""
    ops = list(kernel.walk())
    if any(each.has(Trait.DEPENDENT_LAUNCH) for each in ops):
        return Reason.DEVICE_MAP_OVERLAPS()
    users = list(op.out.users)
    kinds = dict.fromkeys(type(user) for user in users)
    if set(kinds) == {descriptor.DescriptorLoad, descriptor.DescriptorStore}:
        return Reason.DEVICE_MAP_LOADED_AND_STORED()
    if list(kinds) not in ([descriptor.DescriptorLoad], [descriptor.DescriptorStore]):
        return Reason.DEVICE_MAP_IN_OTHER_WAYS()
    is_loaded = isinstance(users[0], descriptor.DescriptorLoad)
    in_pieces = op.strides if is_loaded else (*op.strides, op.extents[-1])
    if not all(_may_be_pieces(size, op) for size in in_pieces):
        return Reason.DEVICE_MAP_OF_ODD_ROWS()
    places = [accessed(each, *(("write",) if is_loaded else ())) for each in ops]
    others = [place for place in places if place is not None and place is not op.out]
    roots = dict.fromkeys(_root_key(root) for place in others for root in pointer_roots(place))
    if any(_root_key(root) in roots for root in pointer_roots(op.pointer)):
        return Reason.DEVICE_MAP_IN_OTHER_WAYS()
    return ""


def _may_be_pieces(size: Value, op: DescriptorOf) -> bool:
    """Return whether an extent or a stride, in elements, may be a multiple of 16 bytes."""
    if not isinstance(size.op, arith.Constant):
        return True
    kind = op.out.type
    assert isinstance(kind, DescriptorType)
    return int(size.op.value) * kind.element.size_bytes % TENSOR_ALIGNMENT_BYTES == 0


def _root_key(root: Value) -> Value | str:
    """Return what two pointers or descriptors have in common that come from one argument."""
    return argument_of(root) or root


# ---- empty tensors ----------------------------------------------------------------------------


def _with_extents(op: DescriptorOf) -> DescriptorOf:
    """Replace a descriptor whose tensor may be empty by one whose tensor is not; return it."""
    unsure = [extent for extent in op.extents if not _is_positive(extent)]
    if not unsure:
        return op
    with at(op.loc):
        place = Builder.before_op(op)
        one = place(arith.Constant(1, I32)).out
        least = unsure[0]
        for extent in unsure[1:]:
            least = place(arith.Min(least, extent)).out
        is_empty = place(arith.Compare(least, one, "lt")).out
        extents = [place(arith.Select(is_empty, one, op.extents[0])).out]
        extents += [
            place(arith.Max(extent, one)).out if extent in unsure else extent
            for extent in op.extents[1:]
        ]
        sizes = [*extents, *op.strides]
        made = place(DescriptorOf(op.pointer, sizes, op.shape, op.fill_nan))
    made.out.hint = op.out.hint
    for access in dict.fromkeys(op.out.users):
        assert isinstance(access, descriptor.DescriptorLoad | descriptor.DescriptorStore)
        with at(access.loc):
            place = Builder.before_op(access)
            first = place(arith.Select(is_empty, one, access.coords[0])).out
            rest = access.coords[1:]
            if isinstance(access, descriptor.DescriptorStore):
                access.set_slots([made.out, access.value, first, *rest])
            else:
                access.set_slots([made.out, first, *rest])
    op.erase()
    return made


def _is_positive(extent: Value) -> bool:
    return isinstance(extent.op, arith.Constant) and int(extent.op.value) > 0
