"""Define the content of an archive: frozen records of kernels, variants and launches. No I/O.

The build makes an `Archive`, `file.py` encodes and decodes it, `header.py` writes its C header,
`aotc inspect` prints it. The meaning of every field at launch is in
`docs/reference/archive-format.md`.

Invariant: the records hold decisions, and everything derived from them is computed, so equal
archives have equal bytes. Kernels and variants may be given in any order; `canonical` sorts them
into the stored order.

    Archive
    └── Kernel ── Param, TypeVariable, Choice, Guard, configs, constants, Selection
        └── Variant ── CubinParam, TensorMap
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from aotc.ir.diagnostics import one_line
from aotc.ir.expression import Binary, Expression, Integer, Name
from aotc.package.archive.selection import Selection
from aotc.target import ON_CHIP

Value: TypeAlias = bool | int | float | str | None
NamedValues: TypeAlias = tuple[tuple[str, Value], ...]
ErrorClass: TypeAlias = Literal["IO", "FORMAT", "VERSION", "LIMIT", "CHECKSUM", "NOT_FOUND"]
ParamKind: TypeAlias = Literal["pointer", "scalar", "tensor"]
Access: TypeAlias = Literal["unknown", "read", "write", "both"]
CubinParamSource: TypeAlias = Literal["argument", "scratch", "tensor_map", "expression", "grid"]

DTYPE_BYTES: Mapping[str, int] = {
    "i1": 1,
    "i8": 1,
    "i16": 2,
    "i32": 4,
    "i64": 8,
    "u8": 1,
    "u16": 2,
    "u32": 4,
    "u64": 8,
    "fp16": 2,
    "bf16": 2,
    "fp32": 4,
    "fp64": 8,
    "fp8e4nv": 1,
    "fp8e5": 1,
}
"""Sizes by dtype, in the order of their codes, from 1."""

DTYPE_CODES: Mapping[str, int] = {name: code for code, name in enumerate(DTYPE_BYTES, 1)}


class ArchiveError(Exception):
    """An archive cannot be read or written; `kind` is the status of the C library.

    `path` is the archive's file, "" if the message names it or there is none.
    """

    def __init__(self, kind: ErrorClass, message: str, path: str = "") -> None:
        super().__init__(f"{kind}: {message}")
        self.kind: ErrorClass = kind
        self.message = message
        self.path = path

    def render(self) -> str:
        """Return the report in the form of a `DiagnosticError`."""
        return one_line(f"{self.path}: error: {self.message}".removeprefix(": "))


@dataclass(frozen=True, slots=True)
class Param:
    """A launch argument.

    `element` is the dtype, or type variable, of the scalar or of the pointer's or tensor's
    elements. `rank` is a tensor's. The value or address is a multiple of `divisibility`; with
    `is_optional` there are variants without this promise.
    """

    name: str
    kind: ParamKind
    element: str
    rank: int = 0
    divisibility: int = 1
    is_optional: bool = False
    access: Access = "unknown"


@dataclass(frozen=True, slots=True)
class TypeVariable:
    """A dtype picked by the arguments at launch, and its candidates."""

    name: str
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A functional choice, named by the caller at launch."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on the arguments, and its text in messages.

    A promise must hold for every variant; any other guard only chooses between variants.
    """

    expression: Expression
    text: str
    is_promise: bool = False


@dataclass(frozen=True, slots=True)
class CubinParam:
    """A parameter of the compiled function: its offset, and the value written by the launcher.

    `index` is a launch argument (for `source` "argument"), a tensor map of the variant
    ("tensor_map"), or an axis of the grid of program instances ("grid"); only "expression" has an
    `expression`.
    """

    offset: int
    size: int
    source: CubinParamSource = "argument"
    index: int = 0
    expression: Expression | None = None


@dataclass(frozen=True, slots=True)
class TensorMap:
    """The encoding of a `CUtensorMap` by the launcher; enumerations have the numbers of `cuda.h`.

    Dimension 0 is the innermost. `dims` are in elements, `strides` in bytes from dimension 1 on;
    `param` is the index of the launch argument, named in messages.
    """

    param: int
    data_type: int
    address: Expression
    dims: tuple[Expression, ...]
    strides: tuple[Expression, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int = 0
    swizzle: int = 0
    l2_promotion: int = 0
    oob_fill: int = 0


@dataclass(frozen=True, slots=True)
class Variant:
    """One compiled function, its conditions of use and its launch.

    `types` and `choices` follow the kernel's type variables and choices. `guards` are indices of
    guards that must hold; `config` is an index into the kernel's configs. A `condition` restricts
    this compile of the config: where it is 0, the launcher uses the same variant without a
    condition. `grid` counts program instances (with a cluster each) and is empty if the caller
    gives it; `scratch_bytes` is for one of them. A kernel with `is_persistent` is launched with
    only as many CTAs as run at once. The CTAs of a `cooperative` kernel wait for each other, so all
    of a launch run at once, or it is refused.
    """

    target: str
    symbol: str
    cubin: bytes
    num_threads: int
    types: tuple[str, ...] = ()
    choices: tuple[Value, ...] = ()
    guards: tuple[int, ...] = ()
    config: int = 0
    condition: Expression | None = None
    cluster: tuple[int, int, int] = (1, 1, 1)
    dynamic_shared_bytes: int = 0
    static_shared_bytes: int = 0
    registers: int = 0
    spill_bytes: int = 0
    stack_bytes: int = 0
    cubin_params: tuple[CubinParam, ...] = ()
    grid: tuple[Expression, ...] = ()
    scratch_bytes: Expression | None = None
    scratch_align: int = 0
    tensor_maps: tuple[TensorMap, ...] = ()
    waits_pdl: bool = False
    is_persistent: bool = False
    cooperative: bool = False
    remarks: tuple[str, ...] = ()
    ptx: bytes | None = None

    @property
    def param_bytes(self) -> int:
        """Size of the parameter buffer."""
        return max((param.offset + param.size for param in self.cubin_params), default=0)


def null_test(pointer: str, *, is_null: bool) -> Expression:
    """Return the guard of variants where a pointer is None, or where it is not."""
    return Binary("==" if is_null else "!=", Name(pointer), Integer(0))


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel as seen by the caller, and its variants.

    `configs` are in the manifest's order; `constants` have the same value in all of them.
    `selections` rank the configs for a launch: at most one for each target, GPU and combination.
    """

    name: str
    source_sha256: bytes
    variants: tuple[Variant, ...]
    params: tuple[Param, ...] = ()
    type_variables: tuple[TypeVariable, ...] = ()
    choices: tuple[Choice, ...] = ()
    guards: tuple[Guard, ...] = ()
    configs: tuple[NamedValues, ...] = ((),)
    constants: NamedValues = ()
    selections: tuple[Selection, ...] = ()

    @property
    def nullable(self) -> tuple[str, ...]:
        """Pointers that may be null (None in the source); variants differ by it."""
        tests = [guard.expression for guard in self.guards]
        pointers = [param.name for param in self.params if param.kind == "pointer"]
        return tuple(name for name in pointers if null_test(name, is_null=True) in tests)

    @property
    def grid_rank(self) -> int:
        """Number of grid expressions, 0 if the caller gives the grid."""
        return len(self.variants[0].grid) if self.variants else 0

    @property
    def targets(self) -> tuple[str, ...]:
        """Targets of the variants, in their order."""
        return tuple(dict.fromkeys(variant.target for variant in self.variants))

    def alone(self, variant: Variant) -> Kernel:
        """Return the kernel with a single variant, without a choice."""
        return replace(self, variants=(variant,), selections=())

    def elements(self, param: Param) -> tuple[str, ...]:
        """Return the dtypes allowed for a param's element."""
        for variable in self.type_variables:
            if variable.name == param.element:
                return variable.dtypes
        return (param.element,)


@dataclass(frozen=True, slots=True)
class Archive:
    """Kernels shipped together; `toolchain` names their compilers."""

    name: str
    version: str
    kernels: tuple[Kernel, ...]
    toolchain: str = ""

    @property
    def targets(self) -> tuple[str, ...]:
        """Targets in use, sorted by name."""
        return tuple(sorted({target for kernel in self.kernels for target in kernel.targets}))


class TargetName(NamedTuple):
    """The parts of a target's name; `feature` is "", "a" or "f"."""

    major: int
    minor: int
    feature: str

    def runs_on(self, major: int, minor: int) -> bool:
        """Return whether a cubin for this target loads on a device of this compute capability.

        Those of a system on chip run on it alone, and it runs no others.
        """
        own = self.major, self.minor
        if self.feature == "a" or own in ON_CHIP or (major, minor) in ON_CHIP:
            return (major, minor) == own
        return major == self.major and minor >= self.minor

    @property
    def preference(self) -> tuple[int, int]:
        """Sort key: of the targets that run on a device, use the greatest."""
        return ("", "f", "a").index(self.feature), self.minor


_TARGET = re.compile(r"sm_([1-9][0-9]?)([0-9])([af]?)", re.ASCII)


def parse_target(name: str) -> TargetName:
    """Split the name of a target, such as "sm_90a".

    Raises: `ArchiveError` FORMAT if it is not one.
    """
    match = _TARGET.fullmatch(name)
    if match is None:
        raise ArchiveError("FORMAT", f"expected a target such as sm_90a, got {name!r}")
    return TargetName(int(match[1]), int(match[2]), match[3])


def value_key(value: Value) -> tuple[str, Value]:
    """Return a key that separates values Python calls equal, such as `True` and `1`."""
    return type(value).__name__, value


def num_combinations(type_variables: tuple[TypeVariable, ...], choices: tuple[Choice, ...]) -> int:
    """Return the number of combinations of dtypes and choices."""
    dtypes = math.prod(len(variable.dtypes) for variable in type_variables)
    return dtypes * math.prod(len(choice.values) for choice in choices)


def combination(kernel: Kernel, types: tuple[str, ...], choices: tuple[Value, ...]) -> int:
    """Number dtypes and choices: a mixed radix, type variables first, the first most significant.

    Raises: `ArchiveError` FORMAT for dtypes or choices not listed by the kernel.
    """
    if len(types) != len(kernel.type_variables) or len(choices) != len(kernel.choices):
        message = "a variant does not name each type variable and each choice once"
        raise ArchiveError("FORMAT", f"kernel {kernel.name!r}: {message}")
    number = 0
    for variable, dtype in zip(kernel.type_variables, types, strict=True):
        if dtype not in variable.dtypes:
            message = f"kernel {kernel.name!r}: {variable.name} cannot be {dtype}"
            raise ArchiveError("FORMAT", message)
        number = number * len(variable.dtypes) + variable.dtypes.index(dtype)
    for choice, value in zip(kernel.choices, choices, strict=True):
        keys = [value_key(choice_value) for choice_value in choice.values]
        if value_key(value) not in keys:
            message = f"kernel {kernel.name!r}: {choice.name} cannot be {value!r}"
            raise ArchiveError("FORMAT", message)
        number = number * len(keys) + keys.index(value_key(value))
    return number


def split_combination(
    type_variables: tuple[TypeVariable, ...], choices: tuple[Choice, ...], number: int
) -> tuple[tuple[str, ...], tuple[Value, ...]]:
    """Invert `combination`: return the dtypes and choices of a number.

    Requires: no list is empty, and `number` is below the product of their lengths.
    """
    values: list[Value] = []
    for choice in reversed(choices):
        number, digit = divmod(number, len(choice.values))
        values.append(choice.values[digit])
    dtypes: list[str] = []
    for variable in reversed(type_variables):
        number, digit = divmod(number, len(variable.dtypes))
        dtypes.append(variable.dtypes[digit])
    return tuple(reversed(dtypes)), tuple(reversed(values))


def guard_mask(guards: tuple[int, ...]) -> int:
    """Return guards as a bit mask."""
    return sum(1 << guard for guard in dict.fromkeys(guards))


def variant_key(kernel: Kernel, variant: Variant) -> tuple[str, int, int, int, int, bool]:
    """Return the sort key of a variant, unique in its kernel."""
    mask = guard_mask(variant.guards)
    number = combination(kernel, variant.types, variant.choices)
    is_last = variant.condition is None
    return variant.target, number, -mask.bit_count(), mask, variant.config, is_last


def selection_key(selection: Selection) -> tuple[str, bytes, int]:
    """Return the sort key of a selection, unique in its kernel."""
    return selection.target, selection.gpu.encode(), selection.combination


def canonical(archive: Archive) -> Archive:
    """Sort kernels, variants with their guards, and selections into the stored order."""

    def ordered(kernel: Kernel) -> Kernel:
        variants = [replace(v, guards=tuple(sorted(v.guards))) for v in kernel.variants]
        variants.sort(key=lambda variant: variant_key(kernel, variant))
        selections = tuple(sorted(kernel.selections, key=selection_key))
        return replace(kernel, variants=tuple(variants), selections=selections)

    kernels = sorted(archive.kernels, key=lambda kernel: kernel.name.encode())
    return replace(archive, kernels=tuple(ordered(kernel) for kernel in kernels))
