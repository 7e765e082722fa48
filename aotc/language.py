"""The kernel language for its users: `import aotc.language as tl`.

The names are Triton's, so a kernel written against `triton.language` reads and type-checks the same
with this module, on machines without Triton. Kernels are never executed in Python: `aotc` parses
them. So here are only signatures and documentation. A decorated kernel is an ordinary function,
never called, and calling one of these functions raises an error.

docs/reference/language.md defines the contents and behaviour of kernels.
"""

# ruff: noqa: A001, A002, ARG001, ARG002, FBT001, FBT002
# The names, parameters and defaults are Triton's, and no function here looks at its arguments.

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class OutsideKernelError(RuntimeError):
    """Report a call of the kernel language from Python."""


def _outside(name: str) -> OutsideKernelError:
    return OutsideKernelError(
        f"tl.{name} has a meaning in kernels only: compile the @jit function that uses it with "
        "aotc.compile or `aotc build`, which parse it and do not run it"
    )


# ---- decorators -------------------------------------------------------------------------------


@overload
def jit(function: FunctionT) -> FunctionT: ...
@overload
def jit(**options: object) -> Callable[[FunctionT], FunctionT]: ...
def jit(function: Any = None, **options: object) -> Any:
    """Mark a function as a kernel, or as a callee of kernels; the function is unchanged."""
    del options
    return _unchanged if function is None else function


def _unchanged(function: FunctionT) -> FunctionT:
    return function


def constexpr_function(function: FunctionT) -> FunctionT:
    """Mark a function of constants for calls by kernels; the function is unchanged."""
    return function


# ---- types ------------------------------------------------------------------------------------


class dtype:  # noqa: N801 - Triton's name
    """The type of a number: `tl.float16`, or in a kernel `x.dtype`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"tl.{self.name}"

    primitive_bitwidth: int
    """Width in bits."""
    element_ty: dtype
    """What a pointer points at, or what a tile consists of."""
    scalar: dtype
    """The type of one element."""

    def is_floating(self) -> bool:
        """Return whether this is a float; `is_int`, `is_fp16`, `is_ptr` and more go likewise."""
        raise _outside("dtype.is_floating")

    def __getattr__(self, name: str) -> Any:
        raise _outside(f"dtype.{name}")


if TYPE_CHECKING:
    # A parameter of this type has any value, number or dtype as its default and is accepted
    # wherever one is expected; and the name can be called. No type Python can write is all of this,
    # but an unresolved import is.
    from aotc._unknown_to_type_checkers import (  # type: ignore[import-not-found]
        constexpr as constexpr,  # noqa: PLC0414  # pyright: ignore[reportUnknownVariableType, reportMissingImports]
    )
else:

    class constexpr:  # noqa: N801 - Triton's name
        """A value known while compiling.

        As an annotation it marks parameters and local variables as constants; called, at module
        level, it makes a global readable by kernels.
        """

        def __init__(self, value: Any) -> None:
            self.value = value

        def __getattr__(self, name: str) -> Any:
            return getattr(self.value, name)

        def __index__(self) -> int:
            return int(self.value)


class PropagateNan(Enum):
    """Say whether a minimum or maximum of a NaN and a number is the NaN."""

    NONE = 0
    ALL = 0xFFFF


class tensor:  # noqa: N801 - Triton's name
    """A tile: a block of elements with a shape of powers of two; a scalar has the shape ().

    Operators work element by element, broadcast, and promote as docs/reference/language.md says. Most
    functions of this module are methods, too: `x.sum(axis=0)` is `tl.sum(x, axis=0)`.
    """

    shape: tuple[int, ...]
    """The extents, known while compiling."""
    dtype: dtype
    """The type of one element."""
    numel: int
    """The number of elements."""
    T: tensor
    """The tile with its last two axes swapped."""

    def to(
        self, dtype: dtype, fp_downcast_rounding: str | None = None, bitcast: bool = False
    ) -> tensor:
        """Convert to another type; see `cast`."""
        raise _outside("tensor.to")

    def __getitem__(self, index: Any) -> tensor:
        """Insert axes of extent 1 with `None`; `:` keeps an axis."""
        raise _outside("tensor.__getitem__")

    def __getattr__(self, name: str) -> Any:
        raise _outside(f"tensor.{name}")

    def __iter__(self) -> Iterator[Any]:
        raise _outside("tensor.__iter__")

    def __add__(self, other: Any) -> tensor:
        raise _outside("tensor.__add__")

    def __radd__(self, other: Any) -> tensor:
        raise _outside("tensor.__radd__")

    def __sub__(self, other: Any) -> tensor:
        raise _outside("tensor.__sub__")

    def __rsub__(self, other: Any) -> tensor:
        raise _outside("tensor.__rsub__")

    def __mul__(self, other: Any) -> tensor:
        raise _outside("tensor.__mul__")

    def __rmul__(self, other: Any) -> tensor:
        raise _outside("tensor.__rmul__")

    def __truediv__(self, other: Any) -> tensor:
        raise _outside("tensor.__truediv__")

    def __rtruediv__(self, other: Any) -> tensor:
        raise _outside("tensor.__rtruediv__")

    def __floordiv__(self, other: Any) -> tensor:
        raise _outside("tensor.__floordiv__")

    def __rfloordiv__(self, other: Any) -> tensor:
        raise _outside("tensor.__rfloordiv__")

    def __mod__(self, other: Any) -> tensor:
        raise _outside("tensor.__mod__")

    def __rmod__(self, other: Any) -> tensor:
        raise _outside("tensor.__rmod__")

    def __and__(self, other: Any) -> tensor:
        raise _outside("tensor.__and__")

    def __rand__(self, other: Any) -> tensor:
        raise _outside("tensor.__rand__")

    def __or__(self, other: Any) -> tensor:
        raise _outside("tensor.__or__")

    def __ror__(self, other: Any) -> tensor:
        raise _outside("tensor.__ror__")

    def __xor__(self, other: Any) -> tensor:
        raise _outside("tensor.__xor__")

    def __rxor__(self, other: Any) -> tensor:
        raise _outside("tensor.__rxor__")

    def __lshift__(self, other: Any) -> tensor:
        raise _outside("tensor.__lshift__")

    def __rshift__(self, other: Any) -> tensor:
        raise _outside("tensor.__rshift__")

    def __lt__(self, other: Any) -> tensor:
        raise _outside("tensor.__lt__")

    def __le__(self, other: Any) -> tensor:
        raise _outside("tensor.__le__")

    def __gt__(self, other: Any) -> tensor:
        raise _outside("tensor.__gt__")

    def __ge__(self, other: Any) -> tensor:
        raise _outside("tensor.__ge__")

    def __neg__(self) -> tensor:
        raise _outside("tensor.__neg__")

    def __pos__(self) -> tensor:
        raise _outside("tensor.__pos__")

    def __invert__(self) -> tensor:
        raise _outside("tensor.__invert__")


Operand: TypeAlias = "tensor | int | float | bool"
"""A tile, a run-time scalar, or a number."""

Shape: TypeAlias = "Sequence[int] | int"


class pointer_type(dtype):  # noqa: N801 - Triton's name
    """The type of a pointer to `element_ty` in global memory."""

    def __init__(self, element_ty: dtype, address_space: str = "global") -> None:
        super().__init__(f"pointer_type({element_ty}, {address_space!r})")
        self.element_ty = element_ty


class block_type(dtype):  # noqa: N801 - Triton's name
    """The type of a tile of `element_ty`."""

    def __init__(self, element_ty: dtype, shape: Sequence[int]) -> None:
        super().__init__(f"block_type({element_ty}, {[*shape]})")


class constexpr_type:  # noqa: N801 - Triton's name
    """The type of a constant."""

    def __init__(self, value: object) -> None:
        self.value = value


class tuple_type:  # noqa: N801 - Triton's name
    """The type of a tuple."""

    def __init__(self, types: Sequence[object], fields: Sequence[str] | None = None) -> None:
        self.types = types
        self.fields = fields


int1 = dtype("int1")
int8 = dtype("int8")
int16 = dtype("int16")
int32 = dtype("int32")
int64 = dtype("int64")
uint8 = dtype("uint8")
uint16 = dtype("uint16")
uint32 = dtype("uint32")
uint64 = dtype("uint64")
float8e4nv = dtype("float8e4nv")
float8e4b15 = dtype("float8e4b15")
float8e5 = dtype("float8e5")
float16 = dtype("float16")
bfloat16 = dtype("bfloat16")
float32 = dtype("float32")
float64 = dtype("float64")


class _Submodule:
    """Stand for `tl.math` or `tl.extra`: their functions have a meaning in kernels only."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return _Submodule(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise _outside(self._name)


math: Any = _Submodule("math")
"""Elementwise functions under their other name, `tl.math.exp` is `tl.exp`, and libdevice's."""
libdevice: Any = _Submodule("libdevice")
"""The functions of NVIDIA's libdevice, where older releases had them."""
target_info: Any = _Submodule("target_info")
"""What is known of the GPU that is compiled for, such as `cuda_capability_geq(9, 0)`."""
extra: Any = _Submodule("extra")
"""`tl.extra.libdevice`: the functions of NVIDIA's libdevice, such as `tanh` and `pow`.

`tl.extra.cuda.gdc_wait()` waits for the grids before this one in its stream, and
`tl.extra.cuda.gdc_launch_dependents()` lets the next one start: programmatic dependent launch.
`tl.extra.cuda.globaltimer()` is the GPU's clock, `smid()` the multiprocessor that runs the program,
`num_warps()` and `num_threads()` are constants.
"""


# ---- the program ---------------------------------------------------------------------------


def cluster_rank() -> tensor:
    """Return the rank of this CTA in its cluster, from 0, as an int32 scalar.

    A kernel with one of the `cluster_` words is written for one CTA: with `num_ctas` above 1 all
    CTAs of a cluster run it, each with tiles of its own, and a grid counts clusters. Triton does
    not have them: `from aotc.language import cluster_rank`.
    """
    raise _outside("cluster_rank")


def cluster_size() -> int:
    """Return how many CTAs a cluster has, a constant: `num_ctas` of the configuration."""
    raise _outside("cluster_size")


def cluster_barrier() -> None:
    """Wait for all CTAs of the cluster; their writes to global memory are then visible to all."""
    raise _outside("cluster_barrier")


def cluster_shift(value: Operand, distance: int = 1) -> tensor:
    """Pass a tile or scalar on to the CTA `distance` ranks further, around the cluster.

    Returns the value passed on by the CTA `distance` ranks before. All CTAs of the cluster come
    here together. Tiles are stored asynchronously in the shared memory of the other CTA
    (`st.async`), and the compiler keeps buffers, mbarriers and phases. The transfer overlaps with
    everything up to the first use of the result, other shifts included.
    """
    raise _outside("cluster_shift")


def cluster_permute(value: Operand, to: Sequence[int | None]) -> tensor:
    """Give a tile or scalar to the CTA of rank `to[rank]`, as `cluster_shift` does by a distance.

    `to` has each rank once, or None for a CTA that gives to no other and so waits for none. Returns
    the received value, or zeros.
    """
    raise _outside("cluster_permute")


def cluster_read(value: Operand, rank: Operand) -> tensor:
    """Return this tile or scalar of the CTA of a rank; each CTA chooses the rank by itself.

    All CTAs of the cluster come here together. Each keeps its tile in shared memory, and the others
    read it there (`ld.shared::cluster`), between barriers of the cluster.
    """
    raise _outside("cluster_read")


def cluster_transpose(value: Operand) -> tensor:
    """Give element i of a tile's first axis to the CTA of rank i; return the received elements.

    The first axis has `cluster_size()` elements, and element i of the result comes from the CTA of
    rank i. So each CTA may reduce its part of all tiles. All CTAs of the cluster come here
    together.
    """
    raise _outside("cluster_transpose")


def grid_barrier(counter: tensor) -> None:
    """Wait for all programs of the launch; their writes to global memory are then visible to all.

    They count themselves in the int32 at `counter`, 0 before its first launch and never touched by
    the caller afterwards. Launches that may overlap have one counter each. A launch of more
    programs than the GPU runs at a time is refused.
    """
    raise _outside("grid_barrier")


def program_id(axis: int) -> tensor:
    """Return the index of this program along a grid axis, 0 to 2, as an int32 scalar."""
    raise _outside("program_id")


def num_programs(axis: int) -> tensor:
    """Return the extent of the grid along an axis, 0 to 2, as an int32 scalar."""
    raise _outside("num_programs")


# ---- making tiles --------------------------------------------------------------------------


def arange(start: int, end: int) -> tensor:
    """Return the int32 tile (start, start + 1, …, end - 1); its extent must be a power of two."""
    raise _outside("arange")


def full(shape: Shape, value: Operand, dtype: dtype) -> tensor:
    """Return a tile with `value` in every element."""
    raise _outside("full")


def zeros(shape: Shape, dtype: dtype) -> tensor:
    """Return a tile of zeros."""
    raise _outside("zeros")


def zeros_like(input: tensor) -> tensor:
    """Return zeros of the shape and type of `input`."""
    raise _outside("zeros_like")


def to_tensor(x: Operand) -> tensor:
    """Return a number as a run-time scalar."""
    raise _outside("to_tensor")


# ---- memory --------------------------------------------------------------------------------


def load(
    pointer: tensor,
    mask: Operand | None = None,
    other: Operand | None = None,
    *,
    boundary_check: Sequence[int] = (),
    padding_option: str = "",
    cache_modifier: str = "",
    eviction_policy: str = "",
    volatile: bool = False,
) -> tensor:
    """Read through pointers; where the mask is false, `other`, or anything.

    `mask` and `other` broadcast to the pointers' shape. For a block pointer, `boundary_check` names
    the axes with reads past the end: they give zero, or NaN with `padding_option` "nan".
    `cache_modifier` is ".ca", ".cg", ".cs" or ".cv", `eviction_policy` "evict_first" or
    "evict_last".
    """
    raise _outside("load")


def store(
    pointer: tensor,
    value: Operand,
    mask: Operand | None = None,
    *,
    boundary_check: Sequence[int] = (),
    cache_modifier: str = "",
    eviction_policy: str = "",
) -> None:
    """Write `value`, converted to the pointee's type, where the mask is true.

    For a block pointer, `boundary_check` names the axes to check: nothing is written past their
    ends. `cache_modifier` is ".wb", ".cg", ".cs" or ".wt".
    """
    raise _outside("store")


# ---- atomics ------------------------------------------------------------------------------- Each
# returns the old contents of memory. `sem` is "relaxed", "acquire", "release" or "acq_rel" (the
# default), `scope` is "cta", "gpu" (the default) or "sys". Where `mask` is false nothing happens.


def atomic_add(
    pointer: tensor,
    val: Operand,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> tensor:
    """Add to memory: 32- and 64-bit integers, and floats of 16 bits or more."""
    raise _outside("atomic_add")


def atomic_max(
    pointer: tensor,
    val: Operand,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> tensor:
    """Raise memory to `val`: 32- and 64-bit integers and floats."""
    raise _outside("atomic_max")


def atomic_min(
    pointer: tensor,
    val: Operand,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> tensor:
    """Lower memory to `val`: 32- and 64-bit integers and floats."""
    raise _outside("atomic_min")


def atomic_and(
    pointer: tensor,
    val: Operand,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> tensor:
    """Clear the bits in memory that are clear in `val`: 32- and 64-bit integers."""
    raise _outside("atomic_and")


def atomic_or(
    pointer: tensor,
    val: Operand,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> tensor:
    """Set the bits of `val` in memory: 32- and 64-bit integers."""
    raise _outside("atomic_or")


def atomic_xor(
    pointer: tensor,
    val: Operand,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> tensor:
    """Flip the bits of `val` in memory: 32- and 64-bit integers."""
    raise _outside("atomic_xor")


def atomic_xchg(
    pointer: tensor,
    val: Operand,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> tensor:
    """Replace the contents of memory: 32 and 64 bits."""
    raise _outside("atomic_xchg")


def atomic_cas(
    pointer: tensor,
    cmp: Operand,
    val: Operand,
    sem: str | None = None,
    scope: str | None = None,
) -> tensor:
    """Replace memory by `val` where its bits equal `cmp`: 16, 32 and 64 bits."""
    raise _outside("atomic_cas")


def atomic_load(
    pointer: tensor,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> tensor:
    """Return the contents of memory: 32 and 64 bits, 16 without a mask.

    `sem` is "acquire" or "relaxed".
    """
    raise _outside("atomic_load")


def atomic_store(
    pointer: tensor,
    val: Operand,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> None:
    """Write to memory: 32 and 64 bits. `sem` is "release", the default, or "relaxed"."""
    raise _outside("atomic_store")


def atomic_poll(
    pointer: tensor,
    expected_value: Operand,
    sem: str | None = None,
    scope: str | None = None,
    timeout_ns: Operand | None = None,
) -> tensor:
    """Wait until an integer in memory is the expected one; False if the time ran out first."""
    raise _outside("atomic_poll")


def make_block_ptr(
    base: tensor,
    shape: Sequence[Operand],
    strides: Sequence[Operand],
    offsets: Sequence[Operand],
    block_shape: Sequence[int],
    order: Sequence[int],
) -> tensor:
    """Return the block at `offsets` of the tensor at `base`; strides in elements."""
    raise _outside("make_block_ptr")


def advance(base: tensor, offsets: Sequence[Operand]) -> tensor:
    """Return a block pointer moved on by so many elements along each axis."""
    raise _outside("advance")


# ---- tensors by blocks ---------------------------------------------------------------------


class tensor_descriptor:  # noqa: N801 - Triton's name
    """A tensor described by the host, accessed by blocks of one shape.

    Offsets name the first element of a block, and may lie outside. Elements outside of the tensor
    read as zero, or NaN if the argument's type says so, and are not written.
    """

    dtype: dtype
    block_shape: tuple[int, ...]
    shape: tuple[tensor, ...]
    strides: tuple[tensor, ...]

    def load(self, offsets: Sequence[Operand]) -> tensor:
        """Read the block at `offsets`."""
        raise _outside("tensor_descriptor.load")

    def store(self, offsets: Sequence[Operand], value: Operand) -> None:
        """Write the block at `offsets`, converted to the tensor's dtype."""
        raise _outside("tensor_descriptor.store")

    def prefetch(self, offsets: Sequence[Operand]) -> None:
        """Begin to bring the block at `offsets` to the L2 cache, where there are tensor copies.

        It is a hint and no access, so it may come before `gdc_wait` even if the kernel before
        writes there. Triton does not have it.
        """
        raise _outside("tensor_descriptor.prefetch")

    def gather(self, x_offsets: tensor, y_offset: Operand) -> tensor:
        """Read the rows `x_offsets`, from the column `y_offset` on; the block is one row."""
        raise _outside("tensor_descriptor.gather")

    def scatter(self, value: Operand, x_offsets: tensor, y_offset: Operand) -> None:
        """Write the rows `x_offsets`, from the column `y_offset` on; the block is one row."""
        raise _outside("tensor_descriptor.scatter")

    def atomic_add(self, offsets: Sequence[Operand], value: Operand) -> None:
        """Add to the block at `offsets`, element by element."""
        raise _outside("tensor_descriptor.atomic_add")

    def atomic_min(self, offsets: Sequence[Operand], value: Operand) -> None:
        """Take the minimum with the block at `offsets`, element by element."""
        raise _outside("tensor_descriptor.atomic_min")

    def atomic_max(self, offsets: Sequence[Operand], value: Operand) -> None:
        """Take the maximum with the block at `offsets`, element by element."""
        raise _outside("tensor_descriptor.atomic_max")

    def atomic_and(self, offsets: Sequence[Operand], value: Operand) -> None:
        """Take the bits set in both in the block at `offsets`, element by element."""
        raise _outside("tensor_descriptor.atomic_and")

    def atomic_or(self, offsets: Sequence[Operand], value: Operand) -> None:
        """Set bits in the block at `offsets`, element by element."""
        raise _outside("tensor_descriptor.atomic_or")

    def atomic_xor(self, offsets: Sequence[Operand], value: Operand) -> None:
        """Flip bits in the block at `offsets`, element by element."""
        raise _outside("tensor_descriptor.atomic_xor")


def load_tensor_descriptor(desc: tensor_descriptor, offsets: Sequence[Operand]) -> tensor:
    """Read a block, as `desc.load(offsets)`."""
    raise _outside("load_tensor_descriptor")


def store_tensor_descriptor(
    desc: tensor_descriptor, offsets: Sequence[Operand], value: Operand
) -> None:
    """Write a block, as `desc.store(offsets, value)`."""
    raise _outside("store_tensor_descriptor")


def make_tensor_descriptor(
    base: tensor,
    shape: Sequence[Operand],
    strides: Sequence[Operand],
    block_shape: Sequence[int],
    padding_option: str = "zero",
) -> tensor_descriptor:
    """Return the descriptor of the tensor at `base`; `strides` are in elements.

    The last axis is dense, its stride a constant 1. Elements outside read as zero, or as NaN.
    """
    raise _outside("make_tensor_descriptor")


def reinterpret_tensor_descriptor(
    desc_ptr: tensor, block_shape: Sequence[int], dtype: dtype
) -> tensor_descriptor:
    """Return the descriptor for a map of 128 bytes encoded by the host, at a pointer.

    Its `shape` and `strides` are not known. For targets with tensor copies: sm_90a and newer.
    """
    raise _outside("reinterpret_tensor_descriptor")


def _experimental_reinterpret_tensor_descriptor(  # pyright: ignore[reportUnusedFunction]
    desc_ptr: tensor, block_shape: Sequence[int], dtype: dtype
) -> tensor_descriptor:
    """Do as `reinterpret_tensor_descriptor`."""
    raise _outside("_experimental_reinterpret_tensor_descriptor")


def _experimental_descriptor_load(  # pyright: ignore[reportUnusedFunction]
    desc_pointer: tensor | tensor_descriptor,
    offsets: Sequence[Operand],
    shape: Sequence[int],
    dtype: dtype,
) -> tensor:
    """Read a block, as `reinterpret_tensor_descriptor(desc_pointer, shape, dtype).load(offsets)`."""
    raise _outside("_experimental_descriptor_load")


def _experimental_descriptor_store(  # pyright: ignore[reportUnusedFunction]
    desc_pointer: tensor | tensor_descriptor, value: tensor, offsets: Sequence[Operand]
) -> None:
    """Write a tile as a block of the tensor with its map at a pointer."""
    raise _outside("_experimental_descriptor_store")


# ---- dots ------------------------------------------------------------------------------------


def dot(
    input: tensor,
    other: tensor,
    acc: tensor | None = None,
    input_precision: str | None = None,
    allow_tf32: bool | None = None,
    max_num_imprecise_acc: int | None = None,
    out_dtype: dtype | None = None,
    trans_a: bool = False,
    trans_b: bool = False,
) -> tensor:
    """Multiply (M, K) by (K, N), or batches of them, and add `acc`.

    The result is float32 (int32 of 8-bit integers, float64 of float64), or float16 of operands of
    at most 16 bits if `out_dtype` or `acc` says so. `input_precision` selects the float32
    multiplication: "tf32" (the default), "tf32x3", "bf16x3", "bf16x6" or "ieee".
    """
    raise _outside("dot")


def dot_scaled(
    lhs: tensor,
    lhs_scale: tensor | None,
    lhs_format: str,
    rhs: tensor,
    rhs_scale: tensor | None,
    rhs_format: str,
    acc: tensor | None = None,
    fast_math: bool = False,
    lhs_k_pack: bool = True,
    rhs_k_pack: bool = True,
    out_dtype: dtype = float32,
) -> tensor:
    """Return the dot of two tiles in microscaling formats, accumulated in fp32 onto `acc`.

    Formats are e2m1 (two in a uint8), e4m3, e5m2, bf16 and fp16; scales are uint8 (exponents) or
    float8e4nv, (M, K / group) and (N, K / group).
    """
    raise _outside("dot_scaled")


# ---- shapes --------------------------------------------------------------------------------


def reshape(input: tensor, *shape: Any, can_reorder: bool = False) -> tensor:
    """Return the elements in row-major order under another shape."""
    raise _outside("reshape")


def view(input: tensor, *shape: Any) -> tensor:
    """Return the elements in row-major order under another shape."""
    raise _outside("view")


def ravel(x: tensor, can_reorder: bool = False) -> tensor:
    """Return the elements in one row."""
    raise _outside("ravel")


def item(input: tensor) -> tensor:
    """Return the only element of a tile as a scalar."""
    raise _outside("item")


def expand_dims(input: Operand, axis: int | Sequence[int]) -> tensor:
    """Insert axes of extent 1, counted in the result."""
    raise _outside("expand_dims")


def squeeze(x: tensor, dim: int) -> tensor:
    """Drop an axis of extent 1."""
    raise _outside("squeeze")


def unsqueeze(x: Operand, dim: int) -> tensor:
    """Insert an axis of extent 1."""
    raise _outside("unsqueeze")


def permute(input: tensor, *dims: Any) -> tensor:
    """Reorder the axes: result axis `i` is axis `dims[i]` of `input`."""
    raise _outside("permute")


def trans(input: tensor, *dims: Any) -> tensor:
    """Reorder the axes; without `dims`, swap the last two."""
    raise _outside("trans")


def broadcast_to(input: Operand, *shape: Any) -> tensor:
    """Repeat a scalar, or a tile along its axes of extent 1."""
    raise _outside("broadcast_to")


def broadcast(input: Operand, other: Operand) -> tuple[tensor, tensor]:
    """Bring two values to their common shape."""
    raise _outside("broadcast")


def join(a: Operand, b: Operand) -> tensor:
    """Put two tiles side by side along a new last axis of extent 2."""
    raise _outside("join")


def split(a: tensor) -> tuple[tensor, tensor]:
    """Return the two halves of a tile along its last axis, of extent 2."""
    raise _outside("split")


def interleave(a: Operand, b: Operand) -> tensor:
    """Alternate the elements of two tiles along their last axis."""
    raise _outside("interleave")


def cat(input: tensor, other: tensor, can_reorder: bool = False, dim: int = 0) -> tensor:
    """Put two tiles of one shape one after the other along an axis, always in order."""
    raise _outside("cat")


def flip(x: tensor, dim: int | None = None) -> tensor:
    """Reverse a tile along an axis, by default the last."""
    raise _outside("flip")


# ---- types ---------------------------------------------------------------------------------


def cast(
    input: Operand, dtype: dtype, fp_downcast_rounding: str | None = None, bitcast: bool = False
) -> tensor:
    """Convert to another type, or with `bitcast` read the same bits as one.

    `fp_downcast_rounding` is "rtne" (the default) or "rtz", for a narrowing float conversion.
    """
    raise _outside("cast")


# ---- elementwise ---------------------------------------------------------------------------


def exp(x: Operand) -> tensor:
    """Return e to the power, for float32 and float64."""
    raise _outside("exp")


def exp2(x: Operand) -> tensor:
    """Return 2 to the power, for float32 and float64."""
    raise _outside("exp2")


def log(x: Operand) -> tensor:
    """Return the natural logarithm, for float32 and float64."""
    raise _outside("log")


def log2(x: Operand) -> tensor:
    """Return the logarithm to base 2, for float32 and float64."""
    raise _outside("log2")


def sin(x: Operand) -> tensor:
    """Return the sine, for float32 and float64."""
    raise _outside("sin")


def cos(x: Operand) -> tensor:
    """Return the cosine, for float32 and float64."""
    raise _outside("cos")


def sqrt(x: Operand) -> tensor:
    """Return the square root, possibly approximate, for float32 and float64."""
    raise _outside("sqrt")


def rsqrt(x: Operand) -> tensor:
    """Return the reciprocal of the square root, for float32 and float64."""
    raise _outside("rsqrt")


def erf(x: Operand) -> tensor:
    """Return the error function, for float32 and float64."""
    raise _outside("erf")


def floor(x: Operand) -> tensor:
    """Return the largest integer not above, as a float, for float32 and float64."""
    raise _outside("floor")


def ceil(x: Operand) -> tensor:
    """Return the smallest integer not below, as a float, for float32 and float64."""
    raise _outside("ceil")


def sigmoid(x: Operand) -> tensor:
    """Return 1 / (1 + exp(-x)), for float32 and float64."""
    raise _outside("sigmoid")


def sqrt_rn(x: Operand) -> tensor:
    """Return the correctly rounded square root, for float32."""
    raise _outside("sqrt_rn")


def abs(x: Operand) -> tensor:
    """Return the absolute value."""
    raise _outside("abs")


def minimum(x: Operand, y: Operand, propagate_nan: PropagateNan = PropagateNan.NONE) -> tensor:
    """Return the smaller of two values, element by element."""
    raise _outside("minimum")


def maximum(x: Operand, y: Operand, propagate_nan: PropagateNan = PropagateNan.NONE) -> tensor:
    """Return the larger of two values, element by element."""
    raise _outside("maximum")


def clamp(
    x: Operand, min: Operand, max: Operand, propagate_nan: PropagateNan = PropagateNan.NONE
) -> tensor:
    """Limit `x` to the range from `min` to `max`."""
    raise _outside("clamp")


def fma(x: Operand, y: Operand, z: Operand) -> tensor:
    """Return x * y + z, rounded once."""
    raise _outside("fma")


def div_rn(x: Operand, y: Operand) -> tensor:
    """Return the correctly rounded quotient, for float32."""
    raise _outside("div_rn")


def fdiv(x: Operand, y: Operand, ieee_rounding: bool = False, approx: bool = False) -> tensor:
    """Return the quotient of floats, correctly rounded with `ieee_rounding`."""
    raise _outside("fdiv")


def umulhi(x: Operand, y: Operand) -> tensor:
    """Return the high half of the unsigned product, for integers of 32 and 64 bits."""
    raise _outside("umulhi")


def inline_asm_elementwise(
    asm: str,
    constraints: str,
    args: Sequence[Operand],
    dtype: dtype | Sequence[dtype],
    is_pure: bool,
    pack: int,
) -> Any:
    """Apply PTX to the elements of `args`, broadcast to one shape.

    Every instance of `asm` handles `pack` elements of each argument. Elements below 32 bits share a
    register as far as they fit, others have one each. `$0`, `$1`, … are the registers of the
    results and then of the arguments, and `constraints` gives the kind of each, as in "=r,r,f". A
    tuple of dtypes gives as many results. Assembly that is not pure may do more than compute: it is
    neither moved nor removed.
    """
    raise _outside("inline_asm_elementwise")


def map_elementwise(scalar_fn: Callable[..., Any], *args: Operand, pack: int = 1) -> Any:
    """Apply a @jit function of scalars to each element of `args`, broadcast to one shape.

    The function may have branches and loops, taken by each element separately. With `pack` it takes
    so many elements of the first argument, then of the next, and returns as many of each result.
    """
    raise _outside("map_elementwise")


def cdiv(x: Operand, div: Operand) -> tensor:
    """Divide integers, rounding up."""
    raise _outside("cdiv")


def swizzle2d(
    i: Operand, j: Operand, size_i: Operand, size_j: Operand, size_g: Operand
) -> tuple[tensor, tensor]:
    """Return where place (i, j) comes if rows are walked in groups of `size_g`, column by column."""
    raise _outside("swizzle2d")


def where(condition: Operand, x: Operand, y: Operand) -> tensor:
    """Return `x` where the condition holds, else `y`; both are computed."""
    raise _outside("where")


def add(x: Operand, y: Operand, sanitize_overflow: bool = True) -> tensor:
    """Return x + y."""
    raise _outside("add")


def sub(x: Operand, y: Operand, sanitize_overflow: bool = True) -> tensor:
    """Return x - y."""
    raise _outside("sub")


def mul(x: Operand, y: Operand, sanitize_overflow: bool = True) -> tensor:
    """Return x * y."""
    raise _outside("mul")


# ---- reductions and scans ------------------------------------------------------------------


def reduce(
    input: tensor | tuple[tensor, ...],
    axis: int | None,
    combine_fn: Callable[..., Any],
    keep_dims: bool = False,
) -> Any:
    """Combine the elements of a tile, or of several in step, along an axis, or all of them.

    `combine_fn` is an associative and commutative @jit function of two scalars (or of two for each
    tile).
    """
    raise _outside("reduce")


def associative_scan(
    input: tensor | tuple[tensor, ...],
    axis: int,
    combine_fn: Callable[..., Any],
    reverse: bool = False,
) -> Any:
    """Combine each element with all before it along an axis, or with `reverse` all after it."""
    raise _outside("associative_scan")


def sum(
    input: tensor, axis: int | None = None, keep_dims: bool = False, dtype: dtype | None = None
) -> tensor:
    """Add the elements along an axis, or all; integers below 32 bits are added in 32."""
    raise _outside("sum")


def max(
    input: tensor,
    axis: int | None = None,
    return_indices: bool = False,
    return_indices_tie_break_left: bool = True,
    keep_dims: bool = False,
) -> Any:
    """Return the largest element along an axis, or of all; on request with its index."""
    raise _outside("max")


def min(
    input: tensor,
    axis: int | None = None,
    return_indices: bool = False,
    return_indices_tie_break_left: bool = True,
    keep_dims: bool = False,
) -> Any:
    """Return the smallest element along an axis, or of all; on request with its index."""
    raise _outside("min")


def argmax(
    input: tensor, axis: int | None, tie_break_left: bool = True, keep_dims: bool = False
) -> tensor:
    """Return the index of the largest element along an axis; among equals the smallest index."""
    raise _outside("argmax")


def argmin(
    input: tensor, axis: int | None, tie_break_left: bool = True, keep_dims: bool = False
) -> tensor:
    """Return the index of the smallest element along an axis; among equals the smallest index."""
    raise _outside("argmin")


def xor_sum(input: tensor, axis: int | None = None, keep_dims: bool = False) -> tensor:
    """Combine integers along an axis by exclusive or."""
    raise _outside("xor_sum")


def reduce_or(input: tensor, axis: int | None = None, keep_dims: bool = False) -> tensor:
    """Combine integers along an axis by or."""
    raise _outside("reduce_or")


def cumsum(
    input: tensor, axis: int = 0, reverse: bool = False, dtype: dtype | None = None
) -> tensor:
    """Return the running sum along an axis."""
    raise _outside("cumsum")


def cumprod(
    input: tensor, axis: int = 0, reverse: bool = False, dtype: dtype | None = None
) -> tensor:
    """Return the running product along an axis."""
    raise _outside("cumprod")


def softmax(
    x: tensor, dim: int | None = None, keep_dims: bool | None = None, ieee_rounding: bool = False
) -> tensor:
    """Return exp(x - max) over its sum along an axis, by default the first."""
    raise _outside("softmax")


# ---- random numbers ------------------------------------------------------------------------


def philox_impl(
    c0: Operand,
    c1: Operand,
    c2: Operand,
    c3: Operand,
    k0: Operand,
    k1: Operand,
    n_rounds: int = 10,
) -> tuple[tensor, tensor, tensor, tensor]:
    """Return the counter, four words of 32 or 64 bits, after rounds of Philox under a key."""
    raise _outside("philox_impl")


def philox(
    seed: Operand, c0: Operand, c1: Operand, c2: Operand, c3: Operand, n_rounds: int = 10
) -> tuple[tensor, tensor, tensor, tensor]:
    """Return four random words for a seed of 64 bits and a counter of four words."""
    raise _outside("philox")


def randint4x(
    seed: Operand, offset: Operand, n_rounds: int = 10
) -> tuple[tensor, tensor, tensor, tensor]:
    """Return four tiles of random uint32."""
    raise _outside("randint4x")


def randint(seed: Operand, offset: Operand, n_rounds: int = 10) -> tensor:
    """Return a tile of random uint32."""
    raise _outside("randint")


def uint_to_uniform_float(x: Operand) -> tensor:
    """Return random words as fp32, uniform from 0 up to but without 1."""
    raise _outside("uint_to_uniform_float")


def pair_uniform_to_normal(u1: Operand, u2: Operand) -> tuple[tensor, tensor]:
    """Return two normal numbers for two uniform ones."""
    raise _outside("pair_uniform_to_normal")


def rand4x(
    seed: Operand, offsets: Operand, n_rounds: int = 10
) -> tuple[tensor, tensor, tensor, tensor]:
    """Return four blocks of fp32, uniform from 0 up to but without 1."""
    raise _outside("rand4x")


def rand(seed: Operand, offset: Operand, n_rounds: int = 10) -> tensor:
    """Return a block of fp32, uniform from 0 up to but without 1."""
    raise _outside("rand")


def randn4x(
    seed: Operand, offset: Operand, n_rounds: int = 10
) -> tuple[tensor, tensor, tensor, tensor]:
    """Return four blocks of fp32, normal with mean 0 and variance 1."""
    raise _outside("randn4x")


def randn(seed: Operand, offset: Operand, n_rounds: int = 10) -> tensor:
    """Return a block of fp32, normal with mean 0 and variance 1."""
    raise _outside("randn")


# ---- sorting -------------------------------------------------------------------------------


def sort(x: tensor, dim: int | None = None, descending: bool = False) -> tensor:
    """Sort along the last axis, the least first; floats in the total order of IEEE 754."""
    raise _outside("sort")


def topk(x: tensor, k: int, dim: int | None = None, descending: bool = True) -> tensor:
    """Return the greatest `k` along the last axis, the greatest first.

    `k` is a power of two. Without `descending` it is the least `k`, upwards. Types below 32 bits
    are widened as by `max`, unless all elements are kept.
    """
    raise _outside("topk")


def bitonic_merge(x: tensor, dim: int | None = None, descending: bool = False) -> tensor:
    """Sort rising-then-falling runs along the last axis, or the other way round."""
    raise _outside("bitonic_merge")


# ---- data-dependent indices ----------------------------------------------------------------


def gather(src: tensor, index: tensor, axis: int) -> tensor:
    """Return the elements of `src` at `index` along an axis, modulo its extent.

    The shapes are the same on all other axes.
    """
    raise _outside("gather")


def histogram(input: tensor, num_bins: int, mask: tensor | None = None) -> tensor:
    """Return how often each of 0, 1, …, `num_bins` - 1 is in a tile of one axis, as int32.

    The tile is of int32 or uint32, `num_bins` a power of two; other values are not counted.
    """
    raise _outside("histogram")


# ---- promises, checks, messages ------------------------------------------------------------


def multiple_of(input: Operand, values: int | Sequence[int]) -> Any:
    """Promise a first element of each run divisible by `values`."""
    raise _outside("multiple_of")


def max_contiguous(input: Operand, values: int | Sequence[int]) -> Any:
    """Promise runs of `values` consecutive elements."""
    raise _outside("max_contiguous")


def max_constancy(input: Operand, values: int | Sequence[int]) -> Any:
    """Promise runs of `values` equal elements."""
    raise _outside("max_constancy")


def assume(cond: Operand) -> None:
    """Promise a true condition."""
    raise _outside("assume")


def static_assert(cond: Any, msg: str = "") -> None:
    """Stop the compilation unless a condition known while compiling holds."""
    raise _outside("static_assert")


def static_print(
    *values: Any, sep: str = " ", end: str = "\n", file: Any = None, flush: bool = False
) -> None:
    """Print while compiling."""
    raise _outside("static_print")


def device_print(prefix: str, *args: Operand, hex: bool = False) -> None:
    """Print values while the kernel runs; `print` in a kernel means the same."""
    raise _outside("device_print")


def device_assert(cond: Operand, msg: str = "", mask: Operand | None = None) -> None:
    """Stop the program with a message unless a condition holds in every element."""
    raise _outside("device_assert")


def debug_barrier() -> None:
    """Wait for all threads of the program."""
    raise _outside("debug_barrier")


# ---- loops ---------------------------------------------------------------------------------


def static_range(arg1: int, arg2: int | None = None, step: int | None = None) -> Iterator[int]:
    """Count like `range`, in constants: the body is repeated for every value."""
    raise _outside("static_range")


def range(
    arg1: Operand,
    arg2: Operand | None = None,
    step: Operand | None = None,
    num_stages: int | None = None,
    loop_unroll_factor: int | None = None,
    disallow_acc_multi_buffer: bool = False,
    flatten: bool = False,
    warp_specialize: bool = False,
    disable_licm: bool = False,
) -> Iterator[Any]:
    """Count like `range`, with hints for the compiler: pipeline stages, unroll factor."""
    raise _outside("range")
