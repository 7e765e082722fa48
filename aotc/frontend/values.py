"""Operands: the values of expressions in kernels and host code.

A run-time value is an `aotc.ir.core.Value`. Every compile-time operand is a plain Python object:
an `int`, `float`, `bool`, `str`, `None` or tuple (possibly of run-time values), a type of
`aotc.ir.types`, or one of the objects below. A constexpr is thus any operand other than a
`Value`, and arithmetic on constants is Python's.

`Operand` is therefore `object`: every user narrows it and reports the expected type.

Invariant: these objects are immutable and hold no run-time value; `BoundMethod`, `Record`, `Draft`
and `Unbound` aside.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TypeAlias, TypeGuard

from aotc.frontend.source import SourceFile
from aotc.ir.core import Value
from aotc.ir.diagnostics import Loc
from aotc.ir.types import (
    DescriptorType,
    PointerType,
    ScalarType,
    TileType,
    element_of,
    shape_of,
)

Operand: TypeAlias = object
DType: TypeAlias = ScalarType | PointerType | TileType


class PropagateNan(Enum):
    """NaN propagation of a minimum or maximum: ALL returns the NaN, NONE the number."""

    NONE = 0
    ALL = 0xFFFF


@dataclass(frozen=True, eq=False)
class Function:
    """A function of a source file; kernels may call it if `is_jit`.

    `decorators` are the evaluated autotuners and heuristics, in order of application. `foreign` is
    the decorator of another language, or "": kernels cannot call such a function.
    """

    file: SourceFile
    node: ast.FunctionDef
    qualname: str
    is_jit: bool = True
    is_constexpr: bool = False
    is_class_method: bool = False
    decorators: tuple[Decorator, ...] = ()
    foreign: str = ""

    def __repr__(self) -> str:
        return self.qualname


@dataclass(frozen=True, eq=False)
class Decorator:
    """An evaluated call of an autotuner or of `triton.heuristics`."""

    name: str
    args: tuple[Operand, ...]
    kwargs: Mapping[str, Operand]
    loc: Loc | None


@dataclass(frozen=True, eq=False)
class Partial:
    """A `functools.partial` in host code: a function with its first arguments."""

    function: Operand
    args: tuple[Operand, ...]
    kwargs: Mapping[str, Operand]


@dataclass(frozen=True, eq=False)
class Closure:
    """A lambda, or a nested host function, with its free variables.

    `within` is the enclosing function of a lambda in a kernel.
    """

    file: SourceFile
    node: ast.Lambda | ast.FunctionDef
    values: Mapping[str, Operand]
    within: Function | None = None

    def __repr__(self) -> str:
        return "the lambda" if isinstance(self.node, ast.Lambda) else self.node.name

    def without_values(self) -> Closure:
        """Return a copy seeing constants only, for elementwise combine functions."""
        reason = "has its value at run time, outside the lambda, which takes elements one by one"
        seen = {
            name: Unbound(reason) if isinstance(value, Value) else value
            for name, value in self.values.items()
        }
        return replace(self, values=seen)


@dataclass(frozen=True, eq=False)
class Class:
    """A class of a source file: a namespace of functions and constants, or a `RecordType`."""

    file: SourceFile
    node: ast.ClassDef
    qualname: str

    def __repr__(self) -> str:
        return self.qualname


@dataclass(frozen=True, eq=False)
class RecordType:
    """Field names and defaults of a `Record`.

    Functions of its `owner` are its methods. Assigning a named tuple makes its numbers run-time
    values; an aggregate keeps its constants.
    """

    name: str
    fields: tuple[str, ...]
    defaults: Mapping[str, Operand] = field(default_factory=dict[str, Operand])
    owner: Class | None = None
    is_aggregate: bool = False

    def __repr__(self) -> str:
        return self.name


class Record(tuple[Operand, ...]):  # noqa: SLOT001 - such a subclass can have none
    """A tuple with items named by the fields of `kind`."""

    kind: RecordType

    @classmethod
    def of(cls, kind: RecordType, items: Iterable[Operand]) -> Record:
        """Return the record with these items, in the order of the fields."""
        record = cls(items)
        record.kind = kind
        return record

    @property
    def by_name(self) -> dict[str, Operand]:
        """The items by the names of their fields."""
        return dict(zip(self.kind.fields, self, strict=True))


@dataclass(eq=False)
class Draft:
    """The fields of an aggregate during its `__init__`, at one branch depth."""

    kind: RecordType
    depth: int
    items: dict[str, Operand] = field(default_factory=dict[str, Operand])


@dataclass(frozen=True)
class Parameters:
    """Parameters of `owner`, for `arguments.bind_arguments`.

    `required` are the parameters without a default, `vararg` and `kwarg` the names after `*` and
    `**`, or "".
    """

    owner: str
    positional: tuple[str, ...]
    required: tuple[str, ...]
    keyword_only: tuple[str, ...] = ()
    vararg: str = ""
    num_positional_only: int = 0
    noun: str = "argument"
    kwarg: str = ""

    @cached_property
    def by_name(self) -> tuple[str, ...]:
        """The parameters accepted as keywords."""
        return (*self.positional[self.num_positional_only :], *self.keyword_only)


@dataclass(frozen=True, eq=False)
class Builtin:
    """A builtin of the language; `run` takes the emitter, then the arguments."""

    name: str
    run: Callable[..., Operand]
    parameters: Parameters

    def __repr__(self) -> str:
        return f"tl.{self.name}"


@dataclass(frozen=True, eq=False)
class Missing:
    """An unsupported feature of the language."""

    name: str


@dataclass(frozen=True, eq=False)
class Loop:
    """An iterator for `for` statements, such as `tl.range`."""

    name: str
    is_static: bool = False
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Module:
    """A module without a file, such as `triton.language`."""

    name: str


@dataclass(frozen=True, eq=False)
class UserModule:
    """A module with a source file."""

    file: SourceFile


@dataclass(frozen=True)
class External:
    """An unknown object of another module, such as `torch.float16`."""

    path: str


@dataclass(frozen=True)
class Argument(External):
    """A launch argument in a heuristic: unknown, but not None."""


@dataclass(frozen=True)
class Constexpr:
    """A host constant made with `tl.constexpr(...)`, readable in kernels."""

    value: Operand


@dataclass(frozen=True, eq=False)
class StaticCall:
    """A function of plain Python values, such as `float` or `dtype.is_fp16`.

    With `takes_values`, its arguments may be run-time values.
    """

    name: str
    call: Callable[..., Operand]
    takes_values: bool = False
    members: Mapping[str, Operand] = field(default_factory=dict[str, Operand])


@dataclass(frozen=True, eq=False)
class BoundMethod:
    """A function with its first argument, as in `x.to`."""

    receiver: Operand
    function: Builtin | Missing | Function


@dataclass(frozen=True, eq=False)
class BlockPointer:
    """A pointer to a tile of a tensor: the tensor's base, extents and strides, and the tile.

    `offsets` are the indices of the tile's first element, i32; extents are i32 or i64, and
    strides, in elements, i64.
    """

    base: Value
    shape: tuple[Value, ...]
    strides: tuple[Value, ...]
    offsets: tuple[Value, ...]
    block: tuple[int, ...]

    @property
    def parts(self) -> tuple[Value, ...]:
        """The run-time values of the block pointer."""
        return self.base, *self.shape, *self.strides, *self.offsets

    def with_parts(self, parts: Sequence[Value]) -> BlockPointer:
        """Return the block pointer with other values, in the order of `parts`."""
        base, *sizes = parts
        rank = len(self.block)
        shape, strides, offsets = (
            tuple(sizes[start : start + rank]) for start in range(0, 3 * rank, rank)
        )
        return BlockPointer(base, shape, strides, offsets, self.block)


@dataclass(frozen=True)
class Slice:
    """The parts of `start:stop:step` inside brackets."""

    start: Operand
    stop: Operand
    step: Operand


@dataclass(frozen=True)
class Unbound:
    """Placeholder for a variable without a value; `reason` completes "it …"."""

    reason: str
    loc: Loc | None = None
    remedy: str = ""


@dataclass(frozen=True, eq=False)
class Config:
    """A `triton.Config` of an autotuner, mutable by host code."""

    kwargs: dict[str, Operand] = field(default_factory=dict[str, Operand])
    options: dict[str, Operand] = field(default_factory=dict[str, Operand])

    @property
    def values(self) -> Mapping[str, Operand]:
        """The constants and the options, such as `num_warps`."""
        return {**self.kwargs, **self.options}


# ---- names for messages -----------------------------------------------------------------------

DTYPE_NAMES = {
    "int1": "i1",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "float8e4nv": "fp8e4nv",
    "float8e4b15": "fp8e4b15",
    "float8e5": "fp8e5",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
}
"""Names of dtypes in Triton's language, and in ours."""

LANGUAGE_NAMES = {ours: theirs for theirs, ours in DTYPE_NAMES.items()}


def show_type(type_: object) -> str:
    """Format a type in Triton's spelling: `float32[16, 32]`, `pointer<float16>`."""
    if isinstance(type_, DescriptorType):
        return f"tensordesc<{type_.element}{list(type_.block)}>"
    if isinstance(type_, TileType):
        return f"{show_type(type_.element)}[{', '.join(map(str, type_.shape))}]"
    if isinstance(type_, PointerType):
        return f"pointer<{show_type(type_.pointee)}>"
    if isinstance(type_, ScalarType):
        return LANGUAGE_NAMES.get(type_.name, type_.name)
    return str(type_)


def show(operand: Operand) -> str:
    """Describe an operand for a message: its type, or the constant itself."""
    if isinstance(operand, Value):
        return show_type(operand.type)
    if isinstance(operand, BlockPointer):
        return f"a block pointer {show_type(operand.base.type)}{list(operand.block)}"
    if is_tuple(operand):
        return "(" + ", ".join(show(item) for item in operand) + ")"
    if isinstance(operand, ScalarType | PointerType | TileType):
        return f"the type {show_type(operand)}"
    if isinstance(operand, Unbound):
        return f"a variable that {operand.reason}"
    if isinstance(operand, Function):
        return f"the function {operand.qualname}"
    if isinstance(operand, Closure):
        return str(operand) if isinstance(operand.node, ast.Lambda) else f"the function {operand}"
    if isinstance(operand, Class | RecordType):
        return f"the class {operand}"
    if isinstance(operand, Draft):
        return f"a {operand.kind} that is being made"
    if isinstance(operand, Builtin | Missing):
        return f"the function tl.{operand.name}"
    if isinstance(operand, BoundMethod):
        return f"a method of {show(operand.receiver)}"
    if isinstance(operand, Config):
        return "a triton.Config"
    if isinstance(operand, Module):
        return f"the module {operand.name}"
    if isinstance(operand, UserModule):
        return f"the module {operand.file.path}"
    if isinstance(operand, Argument):
        return f"the argument {operand.path}, which is known at launch only"
    if isinstance(operand, External):
        return f"{operand.path}, which is not known without running the file,"
    if isinstance(operand, Slice):
        parts = ("" if bound is None else show(bound) for bound in (operand.start, operand.stop))
        step = "" if operand.step is None else f":{show(operand.step)}"
        return ":".join(parts) + step
    return repr(operand)


def text_of(operand: Operand) -> str:
    """Format a constant as in an f-string; a dtype is `fp16` or `int32`, as in Triton."""
    if isinstance(operand, ScalarType) and not operand.is_int:
        return operand.name
    if isinstance(operand, ScalarType | PointerType | TileType):
        return show_type(operand)
    return str(operand)


def is_descriptor(operand: Operand) -> TypeGuard[Value]:
    """Return whether `operand` is a tensor descriptor."""
    return isinstance(operand, Value) and isinstance(operand.type, DescriptorType)


def with_items(like: tuple[Operand, ...], items: Iterable[Operand]) -> tuple[Operand, ...]:
    """Return a tuple of other items, named by the fields of `like` if it is a `Record`."""
    return Record.of(like.kind, items) if isinstance(like, Record) else tuple(items)


def is_tuple(operand: Operand) -> TypeGuard[tuple[Operand, ...]]:
    """Return whether `operand` is a tuple; its items are operands too."""
    return isinstance(operand, tuple)


def element(value: Value) -> ScalarType | PointerType:
    """Return the element type of a tile, or the type of a scalar."""
    return element_of(value.type)


def shape(value: Value) -> tuple[int, ...]:
    """Return the shape of a tile, and () for a scalar."""
    return shape_of(value.type)
