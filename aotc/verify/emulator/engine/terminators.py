"""Ends of segments: the registry of rules for instructions that may redirect or park lanes.

A rule runs once per instruction of the text and returns an *end*: a function of the scheduler and
the group there, which continues the group's lanes or parks them.
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
    """The scheduler's interface for ends of segments."""

    batch: Batch
    named_barriers: NamedBarriers
    warp_barriers: WarpBarriers
    cluster_barriers: ClusterBarriers
    warpgroups: Warpgroups

    def context(self, instruction: Instruction, group: Group) -> LaneContext:
        """Return the context of an instruction for all lanes of a group."""
        ...

    def continue_at(self, group: Group, pc: int) -> None:
        """Continue a group at `pc`, once its warps are complete there."""
        ...

    def fork(self, group: Group, ways: Sequence[Ints], meeting: int) -> list[Group]:
        """Return a group for the lanes of each way; diverging warps reconverge at `meeting`."""
        ...

    def exit(self, group: Group) -> None:
        """Exit all lanes of a group."""
        ...


End: TypeAlias = Callable[[LaneControl, Group], None]


@dataclass(frozen=True, slots=True)
class Site:
    """Locate an instruction; lanes that diverge here meet again at `reconvergence`."""

    instruction: Instruction
    index: int
    reconvergence: int
    decoder: Decoder

    @property
    def following(self) -> int:
        """The index of the next instruction."""
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
    """Return the segment end at an instruction, or None.

    Raises: Unsupported for an unsupported form of an instruction.
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
    """Return an end that continues with the next segment."""
    return lambda scheduler, group: scheduler.continue_at(group, following)


def _guarded(site: Site, end: End) -> End:
    """Let lanes with a false guard pass the instruction."""
    predicate = site.decoder.predicate(site.instruction)
    following = site.following
    # Exited lanes never reconverge.
    meeting = site.reconvergence if site.instruction.opcode in ("ret", "exit") else following

    def guarded(scheduler: LaneControl, group: Group) -> None:
        mask = predicate(group.lanes)
        if mask.all():
            end(scheduler, group)
        elif not mask.any():
            scheduler.continue_at(group, following)
        else:
            lanes = lane_array(group.lanes)
            acting, passing = scheduler.fork(group, (lanes[mask], lanes[~mask]), meeting)
            end(scheduler, acting)
            scheduler.continue_at(passing, following)

    return guarded
