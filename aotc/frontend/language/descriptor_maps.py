"""Descriptors in memory: pointers to tensor maps encoded by the host.

The map has the tensor's address and extents, the source the accessed tile. So a kernel can take an
array of maps and pick one at run time, as a grouped GEMM does. These are Triton's experimental
functions; called on a descriptor parameter they are `desc.load` and `desc.store`.
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language import descriptors
from aotc.frontend.language.convert import static_scalar_dtype, static_shape, to_value
from aotc.frontend.language.sizes import integers, items
from aotc.frontend.values import Operand, element, is_descriptor, shape, show, show_type
from aotc.ir.core import Value
from aotc.ir.dialects import descriptor, map_store
from aotc.ir.types import I32, I64, DescriptorType, PointerType, ScalarType


def _descriptor_at(emit: Emitter, desc_ptr: Operand, kind: DescriptorType, name: str) -> Value:
    """Return the descriptor of a tensor map in memory. Raises: CompileError."""
    descriptors.check_block_shape(f"the block_shape of {name}", kind)
    pointer = to_value(emit, desc_ptr, "a pointer to a tensor map")
    if not isinstance(pointer.type, PointerType):
        raise mistake(
            f"{name} takes a scalar pointer to a tensor map, got {show(pointer)}",
            remedy='give the argument the type "*i8:16": a map has 128 bytes',
        )
    return emit(descriptor.DescriptorAt(pointer, kind.element, kind.block)).out


def _as_descriptor(emit: Emitter, desc: Operand, kind: DescriptorType, name: str) -> Value:
    """Return `desc` if it is a descriptor, else a descriptor of the tensor map it points to."""
    if not is_descriptor(desc):
        return _descriptor_at(emit, desc, kind, name)
    actual = desc.type
    assert isinstance(actual, DescriptorType)
    if (actual.element, actual.block) != (kind.element, kind.block):
        raise mistake(f"{name} of {show_type(kind)} is given a {show_type(actual)}")
    return desc


def reinterpret(emit: Emitter, desc_ptr: Operand, block_shape: Operand, dtype: Operand) -> Value:
    """Return the descriptor of the tensor map at a pointer."""
    kind = DescriptorType(static_scalar_dtype(dtype), static_shape(block_shape))
    return _as_descriptor(emit, desc_ptr, kind, "reinterpret_tensor_descriptor")


def load(
    emit: Emitter, desc_pointer: Operand, offsets: Operand, shape: Operand, dtype: Operand
) -> Value:
    """Load a tile through the tensor map at a pointer."""
    kind = DescriptorType(static_scalar_dtype(dtype), static_shape(shape))
    desc = _as_descriptor(emit, desc_pointer, kind, "_experimental_descriptor_load")
    return descriptors.load(emit, desc, offsets)


def store(emit: Emitter, desc_pointer: Operand, value: Operand, offsets: Operand) -> None:
    """Store a tile through the tensor map at a pointer."""
    name = "_experimental_descriptor_store"
    content = to_value(emit, value, "a tile")
    kind = element(content)
    if not isinstance(kind, ScalarType) or not shape(content):
        raise mistake(f"{name} takes a tile of numbers, got {show(content)}")
    desc = _as_descriptor(emit, desc_pointer, DescriptorType(kind, shape(content)), name)
    descriptors.store(emit, desc, offsets, content)


def _encode(rank: int) -> Callable[..., Operand]:
    name = f"extra.cuda.experimental_device_tensormap_create{rank}d"

    def run(
        emit: Emitter,
        desc_ptr: Operand,
        global_address: Operand,
        load_size: Operand,
        global_size: Operand,
        element_ty: Operand,
    ) -> None:
        """Store the map of a dense tensor to memory, for kernels after this one."""
        slot = to_value(emit, desc_ptr, "a pointer to a tensor map")
        pointer = to_value(emit, global_address, "the address of a tensor")
        kind = DescriptorType(static_scalar_dtype(element_ty), static_shape(load_size, "load_size"))
        descriptors.check_block_shape(f"the load_size of tl.{name}", kind)
        if len(kind.block) != rank:
            raise mistake(f"tl.{name} takes a load_size of {rank} axes, got {len(kind.block)}")
        if not isinstance(slot.type, PointerType):
            raise mistake(f"tl.{name} takes a scalar pointer to a tensor map, got {show(slot)}")
        if pointer.type != PointerType(kind.element):
            expected = show_type(PointerType(kind.element))
            raise mistake(
                f"the global_address of tl.{name} must be {expected}, got {show(pointer)}",
                remedy=f"cast it: global_address.to({expected})",
            )
        sizes = items(global_size, "global_size", rank, name)
        extents = integers(emit, sizes, "global_size", I32, name)
        strides = integers(emit, sizes[1:], "global_size", I64, name)
        emit(map_store.StoreMap(slot, pointer, [*extents, *strides], kind.block))

    return run


def _acquire(emit: Emitter, desc_ptr: Operand) -> None:
    """Do nothing: each kernel acquires its maps in memory."""
    del emit, desc_ptr


CUDA_FUNCTIONS: dict[str, Callable[..., Operand]] = {
    "experimental_device_tensormap_create1d": _encode(1),
    "experimental_device_tensormap_create2d": _encode(2),
    "experimental_tensormap_fenceproxy_acquire": _acquire,
}
"""Functions of `tl.extra.cuda` creating a map in memory."""

FUNCTIONS: dict[str, Callable[..., Operand]] = {
    "reinterpret_tensor_descriptor": reinterpret,
    "_experimental_reinterpret_tensor_descriptor": reinterpret,
    "_experimental_descriptor_load": load,
    "_experimental_descriptor_store": store,
}
"""Functions of `tl` with a tensor map's address as first argument."""

TAKE_DESCRIPTORS = (reinterpret, load, store)
