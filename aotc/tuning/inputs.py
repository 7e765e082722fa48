"""Plan the buffers of a launch from the kernel's tile IR.

Sizes in the manifest or the shapes are used. Others are measured: the interpreter runs programs at
the corners of the grid, and the accessed range is the size. Contents are the same as for `aotc
verify`: random, or as `[kernel.verify]` describes them.

Invariant: equal launches and seeds give equal buffers, for every config.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from aotc.ir.core import Kernel as TileKernel
from aotc.ir.dialects import tile
from aotc.ir.text import parse_kernel
from aotc.package.tuning.shapes import Launch
from aotc.package.verify.conditions import checks_of, grid_blocks
from aotc.package.verify.subjects import Subject, VerifyOptions
from aotc.tuning.buffers import BufferPlan, UnsizedError
from aotc.verify.arrays import Array
from aotc.verify.checks.contents import HEAD_BYTES
from aotc.verify.checks.dataflow import Roles, roles_of
from aotc.verify.checks.inputs import (
    Inputs,
    Range,
    contents_of,
    owners_of,
    pointers_of,
    prepared,
    tensors_of,
)
from aotc.verify.checks.launch import Launch as VerifyLaunch
from aotc.verify.checks.launch import Scalar
from aotc.verify.checks.noise import is_inexact
from aotc.verify.checks.reference import run_launch
from aotc.verify.interpreter.program import Code, InterpretError, Program, Rules
from aotc.verify.interpreter.run import RULES
from aotc.verify.pages import PAGE_BYTES

_MAX_HELD_BYTES = 4 << 30  # by the interpreter, of the pages of one buffer
_MAX_INDEX = 1 << 16
_NUM_INNER_PROGRAMS = 4
_LEAST_SEED = 1 << 12  # buffers behind addresses draw from seeds below it
_NUM_ENDS = 2
_MAX_SECONDS = 1.0  # of a variant, for programs other than the first and the last


def measured_buffers(
    launch: Launch, subjects: Sequence[Subject], seed: int
) -> tuple[BufferPlan, ...]:
    """Return the buffers of a launch, large enough for all `subjects`: variants with their tile IR.

    Raises: UnsizedError.
    """
    variant_plans: list[list[BufferPlan]] = []
    for subject in subjects:
        plans = _buffers_for(launch, subject, seed, ends_only=bool(variant_plans))
        if plans is not None:
            variant_plans.append(plans)
    if not variant_plans:  # the runtime reports the violated guards
        plans = _buffers_for(launch, subjects[0], seed, ends_only=True, admits_all=True)
        variant_plans = [plans or []]
    return tuple(
        replace(
            plans[0],
            size_bytes=max(plan.size_bytes for plan in plans),
            room_bytes=max(plan.room_bytes for plan in plans),
        )
        for plans in zip(*variant_plans, strict=True)
    )


def _buffers_for(
    launch: Launch, subject: Subject, seed: int, *, ends_only: bool, admits_all: bool = False
) -> list[BufferPlan] | None:
    """Return the buffers needed by one variant, None if the launch does not meet its guards.

    With `admits_all` guards are ignored. With `ends_only` only the first and the last program are
    interpreted.
    """
    assert subject.stored is not None
    checks = checks_of(subject, VerifyOptions(), may_be_left_out=True)
    if not admits_all and not checks.conditions.admits(launch.key):
        return None
    tile_kernel = parse_kernel(subject.stored.tile_ir)
    roles = roles_of(tile_kernel, grid_blocks(subject.grid), is_inexact)
    sizes = {name: partial(_constant, size) for name, size in launch.sizes.items()}
    inputs = replace(checks.inputs, sizes={**checks.inputs.sizes, **sizes})
    if any(pointees.shape for pointees in inputs.pointees.values()):
        raise UnsizedError("it takes tensor maps from memory, which tuning cannot make")
    scalars: dict[str, Scalar] = {**launch.key, **launch.scalars}
    grid = launch.grid or (checks.conditions.grid or _no_grid)(launch.key)
    if not grid or any(extent < 0 for extent in grid):
        raise UnsizedError("its grid cannot be evaluated")
    high = max((launch.key[name] for name in roles.extents if name in launch.key), default=1)
    named = VerifyLaunch(
        label="tuned",
        scalars=scalars,
        grid=grid,
        seed=_LEAST_SEED + seed,
        index_high=min(high, _MAX_INDEX),
        misaligned=False,
        is_sparse=True,
    )
    programs = corner_programs(grid)[: _NUM_ENDS if ends_only else None]
    return _measured(tile_kernel, roles, named, inputs, programs)


def _constant(size: int, _: Mapping[str, Scalar]) -> int:
    return size


def _no_grid(_: Mapping[str, int]) -> tuple[int, ...]:
    return ()


def corner_programs(grid: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of programs at the corners of a grid and some between, the ends first."""
    total = math.prod(grid)
    if not total:
        return ()
    numbers = {0, total - 1}
    for corner in itertools.product(*((0, extent - 1) for extent in grid)):
        number = 0
        for extent, coordinate in zip(reversed(grid), reversed(corner), strict=True):
            number = number * extent + coordinate
        numbers.add(number)
    step = total / (_NUM_INNER_PROGRAMS + 1)
    numbers.update(int(step * (index + 1)) for index in range(_NUM_INNER_PROGRAMS))
    return tuple(sorted(numbers, key=lambda number: (number not in (0, total - 1), number)))


def _measured(
    kernel: TileKernel,
    roles: Roles,
    launch: VerifyLaunch,
    inputs: Inputs,
    programs: Sequence[int],
) -> list[BufferPlan]:
    owners = owners_of(kernel, launch, inputs)
    tensors = tensors_of(kernel, launch)
    counts = {name: inputs.size_of(name, launch) for name in owners}
    for name, (shape, strides) in tensors.items():
        counts[name] = shape[0] * strides[0]
    is_known = all(size is not None for size in counts.values())
    pages: dict[str, int] = {}
    if programs and not is_known:
        pages = _touched(kernel, roles, launch, inputs, programs)
    integers = sorted((v for v in launch.scalars.values() if isinstance(v, int)), reverse=True)
    product = math.prod(integers[:2]) if len(integers) > 1 else 0
    positions = {info.name: index for index, info in enumerate(kernel.params)}
    plans: list[BufferPlan] = []
    for name, element in owners.items():
        size = pages.get(name, HEAD_BYTES)
        # Programs between may access beyond it.
        room = max(size, min(2 * size, HEAD_BYTES + product * element.size_bytes))
        count = counts[name]
        if count is not None:
            size = room = HEAD_BYTES + count * element.size_bytes
        index = positions.get(name, ~len(plans))
        plans.append(
            BufferPlan(
                name,
                element,
                size,
                room,
                contents_of(name, element, roles, launch, inputs, launch.seed + index),
                *tensors.get(name, ((), ())),
                pointees=tuple(inputs.pointees[name].names(name, launch))
                if name in inputs.pointees
                else (),
            )
        )
    return plans


def _touched(
    kernel: TileKernel,
    roles: Roles,
    launch: VerifyLaunch,
    inputs: Inputs,
    programs: Sequence[int],
) -> dict[str, int]:
    """Return the number of accessed bytes of each buffer. Raises: UnsizedError."""
    bounded = replace(inputs, ranges=_largest(kernel, roles, launch, inputs))
    bounded = replace(bounded, max_buffer_bytes=_MAX_HELD_BYTES)
    try:
        memory, args = prepared(kernel, roles, launch, bounded)
        code, rules, start = Code(), _quick_rules(), time.monotonic()
        for position, number in enumerate(programs):
            if position >= _NUM_ENDS and time.monotonic() - start > _MAX_SECONDS:
                break
            run_launch(
                kernel, replace(launch, programs=(number,)), memory, args, rules, 0, code=code
            )
    except (InterpretError, MemoryError) as error:
        reason = error.message if isinstance(error, InterpretError) else "it needs too much memory"
        message = f"cannot tell how large its buffers are: {reason}"
        remedy = 'give the sizes in the shapes or in [kernel.verify], such as "x.size" = "n"'
        raise UnsizedError(f"{message}; {remedy}") from None
    touched: dict[str, int] = {}
    for index, name in enumerate(owners_of(kernel, launch, inputs)):
        pages = memory.pages(index)
        touched[name] = (pages[-1] + 1) * PAGE_BYTES if pages else HEAD_BYTES
    return touched


def _largest(
    kernel: TileKernel, roles: Roles, launch: VerifyLaunch, inputs: Inputs
) -> dict[str, Range]:
    """Narrow ranges to their largest number: an index then reaches the furthest."""
    ranges = dict(inputs.ranges)
    for name, element in pointers_of(kernel).items():
        value_range = ranges.get(name)
        if value_range is None and name in roles.indices and name not in roles.locks:
            high = launch.index_high
            ranges[name] = Range(partial(_constant, high - 1), partial(_constant, high))
        elif value_range is not None and element.is_int and not _is_listed(value_range):
            high = int(value_range.high(launch.scalars))
            ranges[name] = replace(
                value_range, low=partial(_constant, high - value_range.multiple_of)
            )
    return ranges


def _is_listed(value_range: Range) -> bool:
    """Return whether a range lists numbers in an order."""
    return value_range.is_distinct or value_range.is_cumulative


def _quick_rules() -> Rules:
    """Return interpreter rules with free dots: only addresses matter."""
    return {**RULES, tile.Dot: _no_dot}


def _no_dot(program: Program, op: tile.Dot, a: Array, b: Array, acc: Array) -> Array:
    del program, op, a, b
    return acc
