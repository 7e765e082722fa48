"""Detect launches with several right results, by undefined values or program order.

Invariant: these queries change no reference.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from aotc.ir.core import Kernel
from aotc.ir.dialects import tile
from aotc.verify.arrays import reshape
from aotc.verify.checks.compare import compare
from aotc.verify.checks.dataflow import Roles
from aotc.verify.checks.inputs import Inputs, owners_of, prepared
from aotc.verify.checks.launch import Launch
from aotc.verify.checks.reference import (
    Buffer,
    Bytes,
    ConflictError,
    Reference,
    interpret,
    run_launch,
)
from aotc.verify.interpreter.numerics import ALL_ZERO
from aotc.verify.interpreter.program import InterpretError, Rules
from aotc.verify.interpreter.run import RULES
from aotc.verify.pages import PAGE_BYTES

_MAX_REORDERED = 4  # programs: all 24 orders of them are tried
POISON_SEEDS = (ALL_ZERO, 1, 2, 3)  # an undefined bit keeps its value in half of the runs


def depends_on_order(kernel: Kernel, roles: Roles, reference: Reference, inputs: Inputs) -> str:
    """Return the buffer whose results change with the order of programs, or "".

    A kernel may depend on the order through its atomics' results. An inexact buffer counts as
    changed if it is out of bounds.
    """
    if not _uses_atomics(kernel):
        return ""
    launch = reference.launch
    backwards = replace(launch, programs=tuple(reversed(_programs(launch))))
    exact = [name for name, buffer in reference.buffers.items() if buffer.is_exact]
    if changed := changed_buffer(kernel, roles, reference, inputs, exact, launch=backwards):
        return changed
    try:
        other = interpret(kernel, roles, backwards, inputs).buffers
    except (ConflictError, InterpretError):
        return ""
    rounded = [buffer for buffer in reference.buffers.values() if not buffer.is_exact]
    return next((b.name for b in rounded if not _is_as(b, other[b.name].expected, 0.0)), "")


def is_right_in_another_order(
    kernel: Kernel,
    roles: Roles,
    launch: Launch,
    inputs: Inputs,
    actual: Mapping[str, Bytes],
    tolerance: float,
) -> bool:
    """Return whether `actual` is right for some other order of a few programs.

    Programs taking turns at a lock may run in any order.
    """
    numbers = _programs(launch)
    if not _uses_atomics(kernel) or not 2 <= len(numbers) <= _MAX_REORDERED:
        return False
    for order in itertools.permutations(numbers):
        try:
            reference = interpret(kernel, roles, replace(launch, programs=order), inputs)
        except (ConflictError, InterpretError):
            continue
        if all(
            name in actual and _is_as(buffer, actual[name], tolerance)
            for name, buffer in reference.buffers.items()
        ):
            return True
    return False


def _is_as(buffer: Buffer, actual: Bytes, tolerance: float) -> bool:
    """Return whether `actual` is right for a buffer with the same accessed bytes."""
    is_alike = buffer.expected.size == actual.size
    return is_alike and compare(buffer, actual, tolerance) is None


def _uses_atomics(kernel: Kernel) -> bool:
    """Return whether a kernel uses its atomics' results."""
    kinds = (tile.AtomicRmw, tile.AtomicCas)
    return any(
        isinstance(op, kinds) and any(out.users for out in op.results) for op in kernel.walk()
    )


def _programs(launch: Launch) -> Sequence[int]:
    return launch.programs or range(math.prod(launch.grid))


def depends_on_undefined(
    kernel: Kernel,
    roles: Roles,
    reference: Reference,
    inputs: Inputs,
    seeds: Sequence[int] = POISON_SEEDS,
) -> str:
    """Return the buffer whose results change with undefined values, or ""."""
    if not reference.met_undefined:
        return ""
    for seed in seeds:
        name = changed_buffer(
            kernel, roles, reference, inputs, [*reference.buffers], poison_seed=seed
        )
        if name:
            return name
    return ""


def leaves_buffers(kernel: Kernel, roles: Roles, launch: Launch, inputs: Inputs) -> bool:
    """Return whether a launch leaves a buffer of declared size for all undefined values."""
    for seed in POISON_SEEDS:
        memory, args = prepared(kernel, roles, launch, inputs)
        try:
            run_launch(kernel, launch, memory, args, RULES, seed)
        except InterpretError as error:
            if error.is_out_of_bounds:
                continue
        return False
    return True


def changed_buffer(
    kernel: Kernel,
    roles: Roles,
    reference: Reference,
    inputs: Inputs,
    names: Sequence[str],
    *,
    rules: Rules = RULES,
    poison_seed: int = 0,
    launch: Launch | None = None,
) -> str:
    """Return the first of the buffers changed in another interpretation, or ""."""
    launch = launch or reference.launch
    memory, args = prepared(kernel, roles, launch, inputs, is_traced=True)
    try:
        run_launch(kernel, launch, memory, args, rules, poison_seed)
    except InterpretError:
        return ""
    for index, name in enumerate(owners_of(kernel, launch, inputs)):
        if name not in names:
            continue
        buffer = reference.buffers[name]
        pages = sorted({*buffer.pages, *memory.pages(index)})
        size = max(buffer.initial.size, memory.size_bytes(index))
        expected, actual = memory.initial(index, size, pages), memory.result(index, size, pages)
        # Memory untouched by the first interpretation is unchanged.
        if pages:
            is_old = np.isin(pages, buffer.pages)
            reshape(expected, -1, PAGE_BYTES)[is_old] = reshape(buffer.expected, -1, PAGE_BYTES)
        else:
            expected[: buffer.expected.size] = buffer.expected
        if expected.tobytes() != actual.tobytes():
            return name
    return ""
