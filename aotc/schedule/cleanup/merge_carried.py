"""Carry once what several variables of a loop carry: they begin alike, and go on alike.

Rings of one loop that are filled and read in step, as those of keys and of values in attention, count their
stages alike, and each count takes several instructions an iteration. CSE does not see it, since each next
value is computed from another variable.

Variables are taken for one if they have the same initial value, and then told apart until what is left of
each class has equal next values, if variables of a class are equal: by induction over iterations they are.

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
    # Inner loops first: where an outer one is replaced, they are as well.
    for loop in reversed([op for op in kernel.walk() if isinstance(op, scf.For)]):
        leaders = _leaders(loop)
        if len({*leaders}) < len(leaders):
            for number, leader in enumerate(leaders):
                loop.carried[number].replace_all_uses_with(loop.carried[leader])
                loop.outs[number].replace_all_uses_with(loop.outs[leader])
            drop_unused_carried(loop)


def _leaders(loop: scf.For) -> list[int]:
    """Return, for each carried variable, the first that it equals in all iterations."""
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
    """Return a number for each key, the same for equal ones."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


class _Numbering:
    """Numbers of values in a loop's body, equal if the values are, if variables of a class are."""

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
        # Operands come before what uses them, so a deep chain is no deep recursion.
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
