"""Check that a launcher refuses invalid launches, and that its plans meet the kernel's needs.

A kernel's needs are read off its tile IR: multiples of a number, the dtypes of pointers, CTAs that
wait for each other. So a promise, limit or flag lost on the way to the archive is noticed, even
though every valid launch still computes the same.

Invariant: nothing here runs; a launch is planned or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from aotc.ir.core import Kernel
from aotc.ir.dialects.grid import GridBarrier
from aotc.ir.types import DescriptorType, PointerType, ScalarType
from aotc.runtime import AotcError, Pointer, Tensor
from aotc.runtime.info import Plan
from aotc.verify.checks.check import ExecutionFault

Grid: TypeAlias = tuple[int, ...]
Planner: TypeAlias = Callable[[Sequence[object], "Grid | None", int], Plan | None]
"""Plan a launch of arguments and a grid, given the number of resident programs. Raises:
AotcError."""

_LARGEST_GRID = ((1 << 31) - 1, 65535, 65535)
_OTHER_DTYPES = {
    "fp64": "i64",
    "fp32": "i32",
    "fp16": "bf16",
    "bf16": "fp16",
    "fp8e4nv": "fp8e5",
    "fp8e5": "fp8e4nv",
    "i64": "fp64",
    "u64": "fp64",
    "i32": "fp32",
    "u32": "fp32",
    "i16": "fp16",
    "u16": "fp16",
    "i8": "fp8e5",
    "u8": "fp8e5",
}
"""For each dtype another one of the same size, wrong for every kernel."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of a kernel.

    The divisor and bounds of each argument, the types of integers, whether programs wait for each other, and a
    program's scratch bytes and number of CTAs.
    """

    divisors: Mapping[str, int]
    scalars: Mapping[str, ScalarType]
    meets_grid: bool
    scratch_bytes: int
    cluster: Grid
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])


def needs_of(kernel: Kernel, scratch_bytes: int, num_ctas: int) -> Needs:
    """Return the needs of a kernel in tile IR."""
    divisors: dict[str, int] = {}
    scalars: dict[str, ScalarType] = {}
    for info, arg in zip(kernel.params, kernel.body.args, strict=True):
        if info.source or isinstance(arg.type, DescriptorType):
            continue
        if isinstance(arg.type, PointerType | ScalarType) and info.divisibility > 1:
            divisors[info.name] = info.divisibility
        if isinstance(arg.type, ScalarType) and arg.type.is_int:
            scalars[info.name] = arg.type
    meets_grid = any(isinstance(op, GridBarrier) for op in kernel.walk())
    bounds = {info.name: info.bounds for info in kernel.params if info.bounds is not None}
    return Needs(divisors, scalars, meets_grid, scratch_bytes, (num_ctas, 1, 1), bounds)


def check_refusals(
    needs: Needs,
    names: Sequence[str],
    args: Sequence[object],
    grid: Grid | None,
    at_once: int,
    plan: Planner,
) -> None:
    """Check that launches with one wrong argument, or a wrong grid, are refused.

    Raises: ExecutionFault.
    """
    for index, value, why in _wrong_arguments(needs, names, args):
        changed = [*args[:index], value, *args[index + 1 :]]
        if _takes(plan, changed, grid, at_once):
            raise ExecutionFault(f"the launcher takes {names[index]} = {_shown(value)}, {why}")
    for wrong in _wrong_grids(needs.cluster):
        if _takes(plan, args, wrong, at_once):
            raise ExecutionFault(f"the launcher takes a grid of {wrong}, which no GPU does")
    for largest in () if needs.meets_grid else _largest_grids(needs.cluster):
        if not _takes(plan, args, largest, at_once):
            raise ExecutionFault(f"the launcher refuses a grid of {largest} programs")
    if needs.meets_grid and at_once > 1 and _takes(plan, args, grid, at_once - 1):
        raise ExecutionFault(
            f"the launcher takes {at_once} programs that wait for each other where no more than "
            f"{at_once - 1} run at a time"
        )


def check_plan(needs: Needs, plan: Plan) -> None:
    """Check the parts of a plan besides parameters. Raises: ExecutionFault."""
    if needs.meets_grid and not plan.is_cooperative:
        raise ExecutionFault("the launch is not cooperative, and its programs wait for each other")
    for extent, most in zip(plan.grid, _LARGEST_GRID, strict=True):
        if not 1 <= extent <= most:
            raise ExecutionFault(f"the launcher takes a grid of {plan.grid}, which no GPU does")


def check_scratch(plan: Plan, pointer: int, size_bytes: int, align: int) -> None:
    """Check the scratch memory a launch takes from the device's pool, and passes on.

    `pointer` is the kernel's argument; it uses `size_bytes` at a multiple of `align`. Raises:
    ExecutionFault.
    """
    start, reserved_bytes = plan.scratch
    if not start <= pointer <= pointer + size_bytes <= start + reserved_bytes or pointer % align:
        raise ExecutionFault(
            f"the launcher passes scratch memory at {pointer:#x}, where {reserved_bytes} bytes at {start:#x} are "
            f"its own, and {size_bytes} at a multiple of {align} needed"
        )
    if not plan.is_scratch_returned:
        raise ExecutionFault("the launcher keeps the scratch memory of a launch")


def _wrong_arguments(
    needs: Needs, names: Sequence[str], args: Sequence[object]
) -> Iterator[tuple[int, object, str]]:
    """Yield arguments that must be refused, each with its index and the reason."""
    for index, (name, arg) in enumerate(zip(names, args, strict=True)):
        divisor = needs.divisors.get(name, 1)
        promise = f"whose code relies on multiples of {divisor}"
        if isinstance(arg, Pointer | Tensor):
            if arg.address and divisor > 1:
                yield index, arg._replace(address=arg.address + divisor // 2), promise
            other = _OTHER_DTYPES.get(arg.dtype)
            if other is not None and arg.address:
                yield index, arg._replace(dtype=other), f"where a pointer to {arg.dtype} is meant"
        elif isinstance(arg, int) and not isinstance(arg, bool):
            if divisor > 1:
                yield index, arg + divisor // 2, promise
            kind = needs.scalars.get(name)
            if kind is not None and name in needs.bounds:
                low, high = needs.bounds[name]
                for outside in (low - 1 - (low - 1) % divisor, (high // divisor + 1) * divisor):
                    if _holds(kind, outside):
                        yield index, outside, f"whose code relies on {low} to {high}"
            if kind is not None and not kind.is_bool and kind.bits < 64:
                beyond = 1 << (kind.bits - kind.is_signed)
                yield index, beyond, f"which {kind} does not hold"


def _holds(kind: ScalarType, value: int) -> bool:
    beyond = 1 << (kind.bits - kind.is_signed)
    return (-beyond if kind.is_signed else 0) <= value < beyond


def _wrong_grids(cluster: Grid) -> Iterator[Grid]:
    for axis, most in enumerate(_LARGEST_GRID):
        for extent in (most // cluster[axis] + 1, -1):
            yield (*(1,) * axis, extent, *(1,) * (2 - axis))


def _largest_grids(cluster: Grid) -> Iterator[Grid]:
    for axis, most in enumerate(_LARGEST_GRID):
        yield (*(1,) * axis, most // cluster[axis], *(1,) * (2 - axis))


def _takes(plan: Planner, args: Sequence[object], grid: Grid | None, at_once: int) -> bool:
    try:
        plan(args, grid, at_once)
    except (AotcError, OverflowError):
        return False
    return True


def _shown(value: object) -> str:
    if isinstance(value, Pointer | Tensor):
        return f"a pointer to {value.dtype} at {value.address:#x}"
    return str(value)
