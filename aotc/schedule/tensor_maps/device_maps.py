"""Select the descriptors with a tensor map built on the device.

If address, extents or strides are loaded or differ between programs, no launch can describe the tensor.
Then the warp issuing the copies builds the map: `assign_layouts` emits `gpu.make_tensor_map` for each
remaining `tile.descriptor_of`. As in Triton, `tl.make_tensor_descriptor` promises 16-byte multiples for
address, strides, and the rows of a tensor stored to. Constants breaking the promise are refused here.

A map holds extents less one, so an extent cannot be 0. A possibly empty axis gets extent 1. For an empty
tensor the first extent is 1 and tiles begin at its coordinate 1, so every access is out of bounds.

A descriptor is either loaded or stored through. A tensor accessed in other ways too, with a write among
them, is accessed through pointers, which keep program order.

Invariant: accesses touch the same elements, for every tensor that keeps the promises.
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
    """Return the descriptors with device-built maps; remark why others have none."""
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
    """Return why a descriptor can have no device-built map, or an empty string."""
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
    """Return a key equal for pointers and descriptors of one argument."""
    return argument_of(root) or root


# ---- empty tensors ----------------------------------------------------------------------------


def _with_extents(op: DescriptorOf) -> DescriptorOf:
    """Give a possibly empty tensor's descriptor nonzero extents; return the new descriptor."""
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
