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
    kernel: Kernel, descriptors: Sequence[DescriptorOf], schedule: Schedule
) -> dict[Value, None]:
    """Return the descriptors that keep a map of the kernel's own; remark why others have none."""
    on_device: list[DescriptorOf] = []
    for op in descriptors:
        if is_trivially_dead(op):
            continue
        reason = _obstacle(op, kernel)
        if reason:
            schedule.remark(op.loc, Remark.NO_DEVICE_MAP(reason=reason))
        else:
            schedule.remark(op.loc, Remark.DEVICE_MAP())
            on_device.append(op)
    return {_with_extents(op).out: None for op in on_device}


def _obstacle(op: DescriptorOf, kernel: Kernel) -> str:
    """Return why a descriptor has no map of the kernel's own, or an empty string."""
    ops = list(kernel.walk())
    if any(access.has(Trait.DEPENDENT_LAUNCH) for access in ops):
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
    pointers = [accessed(access, *(("write",) if is_loaded else ())) for access in ops]
    foreign = [pointer for pointer in pointers if pointer is not None and pointer is not op.out]
    roots = dict.fromkeys(_root_key(root) for pointer in foreign for root in pointer_roots(pointer))
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
        builder = Builder.before_op(op)
        unit = builder(arith.Constant(1, I32)).out
        least = unsure[0]
        for extent in unsure[1:]:
            least = builder(arith.Min(least, extent)).out
        is_empty = builder(arith.Compare(least, unit, "lt")).out
        extents = [builder(arith.Select(is_empty, unit, op.extents[0])).out]
        extents += [
            builder(arith.Max(extent, unit)).out if extent in unsure else extent
            for extent in op.extents[1:]
        ]
        sizes = [*extents, *op.strides]
        copy = builder(DescriptorOf(op.pointer, sizes, op.shape, op.fill_nan))
    copy.out.hint = op.out.hint
    for access in dict.fromkeys(op.out.users):
        assert isinstance(access, descriptor.DescriptorLoad | descriptor.DescriptorStore)
        with at(access.loc):
            builder = Builder.before_op(access)
            first = builder(arith.Select(is_empty, unit, access.coords[0])).out
            rest = access.coords[1:]
            if isinstance(access, descriptor.DescriptorStore):
                access.set_slots([copy.out, access.value, first, *rest])
            else:
                access.set_slots([copy.out, first, *rest])
    op.erase()
    return copy


def _is_positive(extent: Value) -> bool:
    return isinstance(extent.op, arith.Constant) and int(extent.op.value) > 0
