"""Merge loop-carried variables equal in every iteration.

Rings filled and read in step, such as those of keys and values in attention, count their stages alike.
Each counter takes several instructions an iteration. CSE misses them: their next values are computed
from different variables.

Variables with equal initial values start in one class. Classes are split until, assuming variables of a
class are equal, their next values are equal too. Equality then follows by induction over iterations.

Invariant: only pure ops are compared, by class, attributes and operands.
"""

from __future__ import annotations

from collections.abc import Hashable

from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import arith, scf
from aotc.schedule.cleanup.drop_carried import drop_unused_carried
from aotc.schedule.cleanup.eliminate_common import distinct
from aotc.schedule.context import Schedule


def merge_carried(kernel: Kernel, schedule: Schedule) -> None:
    """Merge equal variables of every loop."""
    del schedule
    # Inner loops first: replacing an outer loop replaces them too.
    for loop in reversed([op for op in kernel.walk() if isinstance(op, scf.For)]):
        leaders = _leaders(loop)
        if len({*leaders}) < len(leaders):
            for number, leader in enumerate(leaders):
                loop.carried[number].replace_all_uses_with(loop.carried[leader])
                loop.outs[number].replace_all_uses_with(loop.outs[leader])
            drop_unused_carried(loop)


def _leaders(loop: scf.For) -> list[int]:
    """Return, for each carried variable, the index of the first in its class."""
    classes = _numbered([_initial(value) for value in loop.init])
    while True:
        numbering = _Numbering(loop, classes)
        yielded = [numbering.of(value) for value in loop.body.terminator.operands]
        finer = _numbered(list(zip(classes, yielded, strict=True)))
        if len({*finer}) == len({*classes}):
            return [finer.index(label) for label in finer]
        classes = finer


def _initial(value: Value) -> Hashable:
    op = value.op
    if isinstance(op, arith.Constant):
        return value.type, distinct(op.value)
    return id(value)


def _numbered(keys: list[Hashable]) -> list[int]:
    """Number keys; equal keys get the same number."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


class _Numbering:
    """Value numbers in a loop's body, assuming variables of a class are equal."""

    def __init__(self, loop: scf.For, classes: list[int]) -> None:
        self.loop = loop
        self.numbers: dict[Hashable, int] = {}
        self.known: dict[Value, int] = {
            arg: self._number(("carried", class_))
            for arg, class_ in zip(loop.carried, classes, strict=True)
        }

    def _number(self, key: Hashable) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def of(self, value: Value) -> int:
        """Return the number of a value."""
        # A worklist, operands before users, since chains may be deeper than the recursion limit.
        worklist = [value]
        while worklist:
            top = worklist[-1]
            op = top.op
            if top in self.known:
                worklist.pop()
                continue
            if op is None or op.block is not self.loop.body or not op.pure or op.blocks:
                self.known[top] = self._number(("value", id(top)))
                continue
            unknown = [operand for operand in op.operands if operand not in self.known]
            if unknown:
                worklist += unknown
                continue
            attributes = tuple(map(distinct, op.attributes.values()))
            slots = tuple(None if operand is None else self.known[operand] for operand in op.slots)
            key = type(op), attributes, slots, top.index, top.type
            self.known[top] = self._number(key)
        return self.known[value]
