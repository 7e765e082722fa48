"""What ends a segment of code: the registry of rules for instructions that lanes may not pass.

A rule is run once for each instruction of the text and returns an *end*: a function of the
scheduler and the group that is there, which says where the group's lanes go on, or parks them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from aotc.verify.emulator.engine.barriers import NamedBarriers
from aotc.verify.emulator.engine.decode import Decoder
from aotc.verify.emulator.engine.divergence import Group, Ints, lane_array
from aotc.verify.emulator.engine.lane_context import LaneContext
from aotc.verify.emulator.engine.machine import Batch
from aotc.verify.emulator.engine.warp_barriers import ClusterBarriers, WarpBarriers
from aotc.verify.emulator.engine.warpgroups import Warpgroups
from aotc.verify.emulator.syntax import Instruction


class LaneControl(Protocol):
    """What the end of a segment asks of the scheduler, which implements it."""

    batch: Batch
    named_barriers: NamedBarriers
    warp_barriers: WarpBarriers
    cluster_barriers: ClusterBarriers
    warpgroups: Warpgroups

    def context(self, instruction: Instruction, group: Group) -> LaneContext:
        """Return the context of an instruction for all lanes of a group."""
        ...

    def go_on(self, group: Group, pc: int) -> None:
        """Let a group go on at `pc`, once its warps are complete there."""
        ...

    def fork(self, group: Group, ways: Sequence[Ints], meeting: int) -> list[Group]:
        """Return groups of the lanes of each way; warps that diverge reconverge at `meeting`."""
        ...

    def exit(self, group: Group) -> None:
        """Let all lanes of a group exit."""
        ...


End: TypeAlias = Callable[[LaneControl, Group], None]


@dataclass(frozen=True, slots=True)
class Site:
    """Say where an instruction stands; `reconvergence` is where lanes that part here meet again."""

    instruction: Instruction
    index: int
    reconvergence: int
    decoder: Decoder

    @property
    def following(self) -> int:
        """The instruction after this one."""
        return self.index + 1


EndRule: TypeAlias = "Callable[[Site], End | None]"
END_RULES: dict[str, EndRule] = {}


def ends(*opcodes: str) -> Callable[[EndRule], EndRule]:
    """Register a rule for instructions that end a segment."""

    def register(rule: EndRule) -> EndRule:
        END_RULES.update(dict.fromkeys(opcodes, rule))
        return rule

    return register


def end_of(site: Site) -> End | None:
    """Return what ends a segment at an instruction; None if it ends none.

    Raises: Unsupported for a form of an instruction that is not known.
    """
    instruction = site.instruction
    rule = END_RULES.get(instruction.opcode)
    if rule is None:
        return None
    end = rule(site)
    if end is None or instruction.guard is None or instruction.opcode == "bra":
        return end
    return _guarded(site, end)


def falls_through(following: int) -> End:
    """Return the end of a segment after which another one begins."""
    return lambda scheduler, group: scheduler.go_on(group, following)


def _guarded(site: Site, end: End) -> End:
    """Let lanes that the guard holds back go past the instruction."""
    predicate = site.decoder.predicate(site.instruction)
    following = site.following
    # Who exits is never met again.
    meeting = site.reconvergence if site.instruction.opcode in ("ret", "exit") else following

    def guarded(scheduler: LaneControl, group: Group) -> None:
        mask = predicate(group.lanes)
        if mask.all():
            end(scheduler, group)
        elif not mask.any():
            scheduler.go_on(group, following)
        else:
            lanes = lane_array(group.lanes)
            acting, passing = scheduler.fork(group, (lanes[mask], lanes[~mask]), meeting)
            end(scheduler, acting)
            scheduler.go_on(passing, following)

    return guarded
