"""Schedule of a pipelined loop, as data: its ops and their iteration distances.

A schedule lists ops of a loop's body in the order in which the new body runs them, each with its
*distance*: how many iterations ahead of the loop's own the op is. An op at distance 0 belongs to the
iteration of the induction variable, a load at distance 2 to the one after the next. Passes choose
order and distances; `expand_loop` makes the loop. A schedule prints as one op a line:

    +2 gpu.async_copy a_ptr
    +2 gpu.async_commit
     0 gpu.async_wait
     0 gpu.dot

Pure ops need not be listed: they are computed where they are needed, once for each distance. One
that is listed is computed at its place at the latest; one that is listed ahead only, like the softmax
of the next iteration, is computed there alone, and its value is carried to later uses.

Invariant: an op that is not pure is listed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aotc.ir.core import Op, Value
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import scf
from aotc.ir.rewrite import is_pure


@dataclass(frozen=True)
class Step:
    """An op of the body, `distance` iterations ahead of the loop's own."""

    op: Op
    distance: int = 0

    def __str__(self) -> str:
        names = [value.hint for value in (*self.op.results, *self.op.operands) if value.hint]
        return " ".join(
            [f"{self.distance or 0:+3d}".replace("+0", " 0"), self.op.opcode, *names[:1]]
        )


@dataclass
class LoopSchedule:
    """The steps of a loop, in order.

    The new body runs the steps for `unroll` iterations in turn, so that a value that is carried to
    the next iteration keeps its registers. `carried` are values that the new loop carries first, each
    with the distance of the iteration that it is of. `reorders_dots` if dots and waits for them change
    places though none runs ahead: every wait is then for other numbers of dots.
    """

    loop: scf.For
    steps: list[Step]
    unroll: int = 1
    carried: Sequence[tuple[Value, int]] = ()
    reorders_dots: bool = False

    @classmethod
    def in_order(cls, loop: scf.For) -> LoopSchedule:
        """Return the schedule of a loop as it stands."""
        return cls(loop, [Step(op) for op in loop.body if not op.terminator])

    @property
    def max_distance(self) -> int:
        """How many iterations ahead the first op of an iteration runs."""
        return max((step.distance for step in self.steps), default=0)

    def move(self, ops: Iterable[Op], before: Op | None, distance: int | None = None) -> None:
        """Let ops run before another one, or at the end, in the order given, at a distance of their own."""
        batch = list(ops)
        steps = {step.op: step for step in self.steps if step.op in batch}
        rest = [step for step in self.steps if step.op not in steps]
        position = next((index for index, step in enumerate(rest) if step.op is before), len(rest))
        new = [Step(op, steps[op].distance if distance is None else distance) for op in batch]
        self.steps = [*rest[:position], *new, *rest[position:]]

    def distances(self) -> dict[Op, int]:
        """Return the distance of every op with effects. Raises: IRError if one is listed twice."""
        distances: dict[Op, int] = {}
        for step in self.steps:
            if is_pure(step.op):
                continue
            if step.op in distances:
                raise IRError(f"{step.op.opcode} is scheduled twice", step.op.loc)
            distances[step.op] = step.distance
        return distances

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))
