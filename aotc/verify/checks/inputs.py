"""The arguments of a launch: buffers, their contents, and the tensors in them.

Invariant: equal launches and inputs give equal memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from aotc.ir.core import Kernel
from aotc.ir.dialects.descriptor import TENSOR_ALIGNMENT_BYTES, DescriptorAt
from aotc.ir.types import DescriptorType, PointerType, ScalarType, TensorMapType
from aotc.verify.arrays import view
from aotc.verify.checks import input_data
from aotc.verify.checks.contents import Contents, Listed, loaded_dtype
from aotc.verify.checks.dataflow import Roles
from aotc.verify.checks.launch import Launch, Scalar
from aotc.verify.checks.lazy_memory import ElasticMemory
from aotc.verify.emulator.async_copies.tensor_argument import PlacedTensor
from aotc.verify.interpreter.memory import TensorAddress
from aotc.verify.interpreter.program import InterpretError
from aotc.verify.interpreter.run import Argument

DEFAULT_MAX_BUFFER_BYTES = 1 << 28
# The most numbers a buffer may list without repeats; a longer list would not fit in memory.
_MAX_LISTED = 1 << 24
_NUM_POINTEES = 32
_NUM_DISTINCT = 4096  # indices before they repeat
_ROOM_BEFORE_BYTES = 1 << 35  # for rows in reverse; a hole in sparse memory


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a buffer's values, from `low` to `high`, exclusive, as functions of the scalars.

    Integers are multiples of `multiple_of`. If `is_distinct`, each value comes once before any
    repeats. If `is_cumulative`, the buffer holds 0 and then running sums of the values, such as
    sequence starts.
    """

    low: Callable[[Mapping[str, Scalar]], Scalar]
    high: Callable[[Mapping[str, Scalar]], Scalar]
    is_distinct: bool = False
    is_cumulative: bool = False
    multiple_of: int = 1


@dataclass(frozen=True, slots=True)
class Pointees:
    """The targets of a buffer of addresses: `count` separate buffers of `element`.

    With a `shape` the buffer holds tensor maps instead, for the tiles the kernel copies by TMA;
    `map_of` gives the map type of a descriptor.
    """

    element: ScalarType
    count: Callable[[Mapping[str, Scalar]], Scalar]
    shape: tuple[Callable[[Mapping[str, Scalar]], Scalar], ...] = ()
    map_of: Callable[[DescriptorType], TensorMapType] | None = None

    def names(self, pointer: str, launch: Launch) -> list[str]:
        """Return the names of the buffers at a launch, such as "a_ptrs[0]"."""
        return [f"{pointer}[{k}]" for k in range(max(1, int(self.count(launch.scalars))))]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The contents of buffers: `ranges` and `pointees` by name, and the size limit.

    `sizes` gives the number of elements of a buffer, by name, at the scalars of a launch. With
    `is_rescaled` the compiled kernel may keep the shift of an online softmax: its weights are
    rounded after another scale (config key `conditional_rescaling`).
    """

    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    pointees: Mapping[str, Pointees] = field(default_factory=dict[str, Pointees])
    max_buffer_bytes: int = DEFAULT_MAX_BUFFER_BYTES
    sizes: Mapping[str, Callable[[Mapping[str, Scalar]], Scalar]] = field(
        default_factory=dict[str, Callable[[Mapping[str, Scalar]], Scalar]]
    )
    is_rescaled: bool = False

    def with_addresses(self, roles: Roles) -> Inputs:
        """Return the inputs with buffers behind the addresses that the kernel loads."""
        behind = {name: Pointees(kind, _num_pointees) for name, kind in roles.addresses.items()}
        return replace(self, pointees={**behind, **self.pointees})

    def size_of(self, name: str, launch: Launch) -> int | None:
        """Return the declared number of elements of a buffer, None without a declaration.

        A buffer shared by several arguments has the largest of their sizes.
        """
        users = [name, *(alias for alias, owner in launch.aliases.items() if owner == name)]
        if any(user not in self.sizes for user in users):
            return None
        return max(max(0, int(self.sizes[user](launch.scalars))) for user in users)


def _num_pointees(scalars: Mapping[str, Scalar]) -> int:
    """Return the buffers behind addresses, enough for a program each."""
    del scalars
    return _NUM_POINTEES


def pointers_of(kernel: Kernel) -> dict[str, ScalarType]:
    """Return the element types of pointers and descriptors among the parameters, in order."""
    pointees: dict[str, ScalarType] = {}
    for info, arg in zip(kernel.params, kernel.body.args, strict=True):
        if isinstance(arg.type, PointerType):
            pointees[info.name] = arg.type.pointee
        elif isinstance(arg.type, DescriptorType):
            pointees[info.name] = arg.type.element
    return pointees


def owners_of(kernel: Kernel, launch: Launch, inputs: Inputs) -> dict[str, ScalarType]:
    """Return the owners of memory at a launch: parameters, then targets of addresses."""
    pointers = pointers_of(kernel)
    owners = {name: pointee for name, pointee in pointers.items() if name not in launch.aliases}
    for name, pointees in inputs.pointees.items():
        owners.update(dict.fromkeys(pointees.names(name, launch), pointees.element))
    return owners


def tensors_of(
    kernel: Kernel, launch: Launch
) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the shape and the strides, in elements, of each tensor of a launch.

    Rows are padded to the alignment of tensor copies, and further in every other launch.
    """
    tensors: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for info, arg in zip(kernel.params, kernel.body.args, strict=True):
        kind = arg.type
        if not isinstance(kind, DescriptorType):
            continue
        axes = range(len(kind.block))
        shape = tuple(int(launch.scalars[f"{info.name}.shape[{axis}]"]) for axis in axes)
        tensors[info.name] = shape, _padded(shape, kind.element, launch)
    return tensors


def _padded(shape: tuple[int, ...], element: ScalarType, launch: Launch) -> tuple[int, ...]:
    """Return strides, in elements, with rows padded to the alignment of tensor copies.

    For rows far apart, the outermost axis with several rows has the large stride.
    """
    grain = TENSOR_ALIGNMENT_BYTES // element.size_bytes
    strides = (1,)
    for extent in shape[:0:-1]:
        rows = -(-extent * strides[0] // grain) + int(launch.misaligned)
        strides = (rows * grain, *strides)
    axis = next((axis for axis, extent in enumerate(shape[:-1]) if extent > 1), None)
    if not launch.apart or axis is None:
        return strides
    step = max(strides[axis], launch.apart // (shape[axis] - 1) // grain * grain)
    return (*(step,) * (axis + 1), *strides[axis + 1 :])


def maps_at(
    kernel: Kernel, pointer: str, pointees: Pointees, launch: Launch
) -> dict[str, PlacedTensor]:
    """Return the tensors, by name and without memory, of the maps in a pointer's buffer.

    Raises: InterpretError if the kernel takes no such map from memory.
    """
    assert pointees.map_of is not None
    shape = tuple(max(1, int(extent(launch.scalars))) for extent in pointees.shape)
    kinds = [op.out.type for op in kernel.walk() if isinstance(op, DescriptorAt)]
    fitting = [
        kind
        for kind in kinds
        if isinstance(kind, DescriptorType)
        and (kind.element, len(kind.block)) == (pointees.element, len(shape))
    ]
    if not fitting:
        message = (
            f"{kernel.name} takes no map of {len(shape)} axes of {pointees.element} from memory"
        )
        raise InterpretError(f"{message}, as [kernel.verify] says of {pointer}", kernel.loc)
    form = pointees.map_of(fitting[0])
    strides = _padded(shape, pointees.element, launch)
    tensor = PlacedTensor(
        np.empty(0, np.uint8), pointees.element.name, shape, strides, form.box, form.swizzle_bytes
    )
    return dict.fromkeys(pointees.names(pointer, launch), tensor)


def prepared(
    kernel: Kernel, roles: Roles, launch: Launch, inputs: Inputs, *, is_traced: bool = False
) -> tuple[ElasticMemory, list[Argument]]:
    """Return memory as it is before a launch, and the kernel's arguments."""
    memory = ElasticMemory(inputs.max_buffer_bytes, is_traced=is_traced, is_sparse=launch.is_sparse)
    tensors = tensors_of(kernel, launch)
    args: list[Argument] = []
    owners = list(owners_of(kernel, launch, inputs))
    shared: list[tuple[int, str]] = []
    for position, (info, arg) in enumerate(zip(kernel.params, kernel.body.args, strict=True)):
        kind = arg.type
        if not isinstance(kind, PointerType | DescriptorType):
            args.append(launch.scalars[info.name])
            continue
        if info.name in launch.aliases:
            shared.append((position, launch.aliases[info.name]))
            args.append(0)
            continue
        pointee = kind.pointee if isinstance(kind, PointerType) else kind.element
        is_free = launch.misaligned and info.divisibility == 1 and isinstance(kind, PointerType)
        misaligned = pointee.size_bytes if is_free and info.name not in inputs.pointees else 0
        if info.name in inputs.pointees and inputs.pointees[info.name].shape:
            maps = maps_at(kernel, info.name, inputs.pointees[info.name], launch)
            encoded = (
                placed_tensor.encode_at(memory.address_of(owners.index(name)), name)
                for name, placed_tensor in maps.items()
            )
            filled = Listed(view(np.frombuffer(b"".join(encoded), np.uint8), loaded_dtype(pointee)))
        elif info.name in inputs.pointees:
            names = inputs.pointees[info.name].names(info.name, launch)
            addresses = [memory.address_of(owners.index(name)) for name in names]
            filled = Listed(np.array(addresses, np.int64))
        else:
            filled = contents_of(info.name, pointee, roles, launch, inputs, launch.seed + position)
        size = inputs.size_of(info.name, launch)
        before = _ROOM_BEFORE_BYTES if _goes_back(info.name, roles, launch, filled) else 0
        address = memory.add_buffer(info.name, pointee, filled, before + misaligned, size)
        tensor = tensors.get(info.name)
        args.append(address if tensor is None else TensorAddress(address, *tensor))
    for position, name in enumerate(name for name in owners if "[" in name):
        element = inputs.pointees[name.partition("[")[0]].element
        memory.add_buffer(
            name,
            element,
            contents_of(name, element, roles, launch, inputs, launch.seed + ~position),
        )
    for position, owner in shared:
        args[position] = memory.share_buffer(owners.index(owner))
    return memory, args


def _goes_back(name: str, roles: Roles, launch: Launch, filled: Contents | Listed) -> bool:
    """Return whether rows lie before a pointer; never for a buffer with listed values."""
    strides = [term.stride for term in roles.strides.get(name, ())]
    is_reversed = any(launch.scalars[stride] < 0 for stride in strides)
    return launch.is_backwards and is_reversed and isinstance(filled, Contents)


def contents_of(
    name: str, pointee: ScalarType, roles: Roles, launch: Launch, inputs: Inputs, seed: int
) -> Contents | Listed:
    """Return a buffer's contents before a launch."""
    bounds = inputs.ranges.get(name)
    if bounds is not None:
        low, high = bounds.low(launch.scalars), bounds.high(launch.scalars)
        if bounds.is_distinct:
            if high - low > _MAX_LISTED:
                raise InterpretError(f"{name} would list {int(high - low)} numbers")
            return input_data.shuffled(pointee, int(low), int(high), seed)
        if bounds.is_cumulative:
            return input_data.cumulative(pointee, int(low), int(high), seed)
        return input_data.between(pointee, low, high, seed, bounds.multiple_of)
    if name in roles.locks and pointee.is_int:
        return Listed(np.array([roles.locks[name]]).astype(loaded_dtype(pointee)))
    if name in roles.indices and pointee.is_int:
        return _indices(name, pointee, roles, launch, seed)
    if pointee.is_float and launch.is_positive:
        return input_data.between(pointee, 0.25, 1.0, seed)
    if pointee.is_float:
        return (input_data.special if launch.is_special else input_data.floats)(pointee, seed)
    return input_data.integers(pointee, seed)


def _indices(
    name: str, pointee: ScalarType, roles: Roles, launch: Launch, seed: int
) -> Contents | Listed:
    """Return indices as the launch wants them; starts of sequences are running sums."""
    if launch.indices == "cumulative" or (launch.indices == "any" and name in roles.offsets):
        return input_data.cumulative(pointee, 0, launch.index_high, seed)
    if launch.indices == "distinct":
        return input_data.shuffled(pointee, 0, _NUM_DISTINCT, seed)
    if launch.indices == "few" and name in roles.offsets:
        return input_data.cumulative(pointee, 1, launch.index_high, seed)
    return input_data.between(pointee, 0, 2 if launch.indices == "few" else launch.index_high, seed)
