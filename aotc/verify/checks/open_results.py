"""Whether the result of a launch is open: it depends on undefined values, or on who comes first.

Invariant: what is asked here changes no reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotc.ir.core import Kernel
from aotc.ir.dialects import tile
from aotc.verify.arrays import reshape
from aotc.verify.checks.dataflow import Roles
from aotc.verify.checks.inputs import Inputs, owners_of, prepared
from aotc.verify.checks.launch import Launch
from aotc.verify.checks.reference import Reference, run_launch
from aotc.verify.interpreter.numerics import ALL_ZERO
from aotc.verify.interpreter.program import InterpretError, Rules
from aotc.verify.interpreter.run import RULES
from aotc.verify.pages import PAGE_BYTES

POISON_SEEDS = (ALL_ZERO, 1, 2, 3)  # a bit that is undefined is what it was in half of all runs


def depends_on_order(kernel: Kernel, roles: Roles, reference: Reference, inputs: Inputs) -> str:
    """Return the exact buffer whose results change with the order of programs, or "".

    They may where a kernel uses what its atomics return.
    """
    used = (tile.AtomicRmw, tile.AtomicCas)
    if not any(
        isinstance(op, used) and any(out.users for out in op.results) for op in kernel.walk()
    ):
        return ""
    exact = [name for name, buffer in reference.buffers.items() if buffer.is_exact]
    return changed_buffer(kernel, roles, reference, inputs, exact, backwards=True)


def depends_on_undefined(
    kernel: Kernel,
    roles: Roles,
    reference: Reference,
    inputs: Inputs,
    seeds: Sequence[int] = POISON_SEEDS,
) -> str:
    """Return the buffer whose results change with what undefined values happen to be, or ""."""
    if not reference.met_undefined:
        return ""
    for seed in seeds:
        found = changed_buffer(
            kernel, roles, reference, inputs, [*reference.buffers], poison_seed=seed
        )
        if found:
            return found
    return ""


def leaves_buffers(kernel: Kernel, roles: Roles, launch: Launch, inputs: Inputs) -> bool:
    """Return whether a launch leaves a buffer of stated size whatever undefined values are."""
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
    backwards: bool = False,
) -> str:
    """Return the first of the buffers whose results are others when interpreted so, or ""."""
    launch = reference.launch
    memory, args = prepared(kernel, roles, launch, inputs, is_traced=True)
    try:
        run_launch(kernel, launch, memory, args, rules, poison_seed, backwards=backwards)
    except InterpretError:
        return ""
    for index, name in enumerate(owners_of(kernel, launch, inputs)):
        if name not in names:
            continue
        known = reference.buffers[name]
        pages = sorted({*known.pages, *memory.pages(index)})
        size = max(known.initial.size, memory.size_bytes(index))
        expected, found = memory.initial(index, size, pages), memory.result(index, size, pages)
        # What the first interpretation did not touch is as it was.
        if pages:
            held = np.isin(pages, known.pages)
            reshape(expected, -1, PAGE_BYTES)[held] = reshape(known.expected, -1, PAGE_BYTES)
        else:
            expected[: known.expected.size] = known.expected
        if expected.tobytes() != found.tobytes():
            return name
    return ""
