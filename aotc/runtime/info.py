"""The contents of a kernel: its arguments, its choices and configs, and its variants.

These are the records behind `lib["name"].info`: plain tuples with names, made on access.
Nothing here takes part in a launch.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

Value: TypeAlias = "bool | int | float | str | None"

_KINDS = ("", "pointer", "scalar", "tensor")
_ACCESSES = ("unknown", "read", "write", "both")


class ParamInfo(NamedTuple):
    """An argument of a launch.

    `element` is the dtype, or the name of a type variable, of the scalar or of the memory
    behind the pointer or tensor. `divisibility` is the promised divisor of the value or
    address; with `is_optional` there are variants without the promise. `rank` is a tensor's,
    else 0. A pointer that `may_be_none` has variants for None.
    """

    name: str
    kind: str
    element: str
    rank: int
    divisibility: int
    is_optional: bool
    access: str
    may_be_none: bool

    def __str__(self) -> str:
        prefix = {"pointer": "*", "scalar": "", "tensor": "tensor "}[self.kind]
        promise = f":{self.divisibility}" if self.divisibility != 1 else ""
        optional = "?" if self.is_optional else ""
        suffix = " or None" if self.may_be_none else ""
        return f"{self.name}: {prefix}{self.element}{promise}{optional}{suffix}"


class GuardInfo(NamedTuple):
    """A condition on the arguments; a promise must hold for every variant."""

    text: str
    expression: str
    is_promise: bool


class VariantInfo(NamedTuple):
    """One compiled function; `registers`, `spill_bytes` and `stack_bytes` are of a thread.

    A `condition` must hold besides the guards: of two variants that differ only in it, the one
    with it is launched where it holds, the other elsewhere. A launch of an `is_persistent`
    variant has as many CTAs as are resident at a time, and each runs several program instances.
    The CTAs of a `cooperative` variant wait for each other, so a launch of more CTAs than are
    resident is refused.
    """

    target: str
    symbol: str
    types: dict[str, str]
    choices: dict[str, Value]
    guards: tuple[str, ...]
    config: dict[str, Value]
    num_threads: int
    registers: int
    spill_bytes: int
    stack_bytes: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    cubin_bytes: int
    cluster: tuple[int, int, int]
    waits_pdl: bool
    remarks: tuple[str, ...]
    condition: str = ""
    is_persistent: bool = False
    cooperative: bool = False


class KernelInfo(NamedTuple):
    """A kernel: arguments in order, type variables, choices, constants, guards, configs, variants.

    `grid_rank` is 0 if the caller gives the grid. Variants are in the order of the archive: for
    each target and combination the most specialized first. `num_selections` counts the decision
    trees for a launch's config.
    """

    name: str
    grid_rank: int
    params: tuple[ParamInfo, ...]
    types: dict[str, tuple[str, ...]]
    choices: dict[str, tuple[Value, ...]]
    constants: dict[str, Value]
    guards: tuple[GuardInfo, ...]
    configs: tuple[dict[str, Value], ...]
    variants: tuple[VariantInfo, ...]
    num_selections: int = 0

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets with a variant."""
        return tuple(dict.fromkeys(variant.target for variant in self.variants))


class Selection(NamedTuple):
    """The effect of a launch: the variant (an index into `KernelInfo.variants`) and dimensions.

    `grid` is CUDA's gridDim: program instances times cluster, or fewer if the kernel is
    persistent. `function` is the driver's handle.
    """

    variant: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_shared_bytes: int
    scratch_bytes: int
    scratch_align: int
    function: int


class PlannedMap(NamedTuple):
    """The arguments of `cuTensorMapEncodeTiled` for the map at `offset` in the parameters.

    Dimension 0 is the innermost; `strides` are in bytes, of dimensions 1 on; the numbers are those of
    cuda.h.
    """

    offset: int
    data_type: int
    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int
    swizzle: int
    l2_promotion: int
    oob_fill: int


class Plan(NamedTuple):
    """The driver's arguments for a launch; `variant` is an index into `KernelInfo.variants`.

    `params` is the parameter block, with placeholders for maps: see `maps`. `grid` is CUDA's
    gridDim. `scratch` is the address and the size of the launch's memory from the device's
    pool, or zeros; it was returned afterwards if `is_scratch_returned`.
    """

    variant: int
    symbol: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_shared_bytes: int
    is_pdl: bool
    params: bytes
    maps: tuple[PlannedMap, ...]
    is_cooperative: bool = False
    scratch: tuple[int, int] = (0, 0)
    is_scratch_returned: bool = False


_Pairs: TypeAlias = tuple[tuple[str, Value], ...]
_RawParam: TypeAlias = tuple[str, int, str, int, int, int, bool, int, bool]
_RawVariant: TypeAlias = tuple[
    str, str, int, int, int, int, int, int, int, int, int, int, tuple[int, int, int], bool,
    str, str, bool, bool,
]  # fmt: skip
Description: TypeAlias = tuple[
    str,
    int,
    tuple[_RawParam, ...],
    tuple[tuple[str, tuple[str, ...]], ...],
    tuple[tuple[str, tuple[Value, ...]], ...],
    _Pairs,
    tuple[tuple[str, str, bool], ...],
    tuple[_Pairs, ...],
    tuple[_RawVariant, ...],
    int,
]
"""The result of `_native_describe.c`."""


def _split(number: int, digits: dict[str, tuple[Value, ...]]) -> dict[str, Value]:
    """Return the value of each digit of a combination: the first is the most significant."""
    values: dict[str, Value] = {}
    for name in reversed(digits):
        number, digit = divmod(number, len(digits[name]))
        values[name] = digits[name][digit]
    return {name: values[name] for name in digits}


def kernel_info(description: Description) -> KernelInfo:
    """Give names to the extension's description of a kernel."""
    name, grid_rank, params, types, choices, constants, guards = description[:7]
    configs, variants, num_selections = description[7:]
    type_names = [variable for variable, _ in types]
    texts = [text for text, _, _ in guards]
    digits: dict[str, tuple[Value, ...]] = {**dict(types), **dict(choices)}

    def variant_info(raw: _RawVariant) -> VariantInfo:
        values = _split(raw[2], digits)
        mask = raw[3]
        return VariantInfo(
            raw[0],
            raw[1],
            {variable: str(values[variable]) for variable in type_names},
            {choice: values[choice] for choice, _ in choices},
            tuple(text for bit, text in enumerate(texts) if mask >> bit & 1),
            dict(configs[raw[4]]),
            *raw[5:14],
            tuple(raw[14].splitlines()),
            *raw[15:],
        )

    return KernelInfo(
        name,
        grid_rank,
        tuple(_param_info(raw, type_names) for raw in params),
        dict(types),
        dict(choices),
        dict(constants),
        tuple(GuardInfo(*guard) for guard in guards),
        tuple(dict(config) for config in configs),
        tuple(variant_info(raw) for raw in variants),
        num_selections,
    )


def _param_info(raw: _RawParam, type_names: list[str]) -> ParamInfo:
    name, kind, dtype, variable, rank, divisibility, is_optional, access, may_be_none = raw
    element = dtype if variable < 0 else type_names[variable]
    promise = (divisibility, is_optional)
    return ParamInfo(name, _KINDS[kind], element, rank, *promise, _ACCESSES[access], may_be_none)


def kernel_repr(description: Description) -> str:
    """Return a kernel's signature, as it is called, and the number of its variants."""
    info = kernel_info(description)
    words = [str(param) for param in info.params]
    words += [f"{name}={'|'.join(map(repr, values))}" for name, values in info.choices.items()]
    types = [f"{name} in {', '.join(dtypes)}" for name, dtypes in info.types.items()]
    where = f" where {'; '.join(types)}" if types else ""
    count = len(info.variants)
    variants = f"{count} variant{'' if count == 1 else 's'} for {', '.join(info.targets)}"
    return f"<aotc kernel {info.name}({', '.join(words)}){where}; {variants}>"
