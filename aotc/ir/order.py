"""Number the ops of a kernel in program order, to compare where two of them stand."""

from __future__ import annotations

from aotc.ir.core import Block, Kernel, Op


def number_ops(kernel: Kernel) -> dict[Op, tuple[int, int]]:
    """Number all ops in program order: each op's own number and the last one nested in it."""
    numbers: dict[Op, tuple[int, int]] = {}
    _number(kernel.body, numbers, 0)
    return numbers


def _number(block: Block, numbers: dict[Op, tuple[int, int]], counter: int) -> int:
    for op in block:
        first = counter
        numbers[op] = (first, first)
        counter += 1
        for nested in op.blocks:
            counter = _number(nested, numbers, counter)
        numbers[op] = (first, counter)
        counter += 1
    return counter


def enclosing_in(user: Op, block: Block | None) -> Op:
    """Return `user` or its ancestor directly in `block`."""
    outer = user
    for ancestor in user.ancestors():
        if outer.block is block:
            break
        outer = ancestor
    return outer
