"""The state shared by all passes of the schedule: target, configuration, remarks."""

from __future__ import annotations

from dataclasses import dataclass, field

from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.diagnostics import Loc
from aotc.ir.dialects import scf
from aotc.limits import CompileLimits
from aotc.target import Target


@dataclass(frozen=True, slots=True)
class RoleStrategy:
    """Bound the warp roles of an attempt; `reason` explains the bounds.

    A kernel may have a producer warp, and then consumer groups as in the config. Unless it
    `has_full_rings`, tiles read by one op only have one buffer where others are read by several.
    Loops have no more stages than `max_stages`, if that is not 0.
    """

    has_producer: bool = True
    has_groups: bool = True
    has_full_rings: bool = True
    reason: str = ""
    max_stages: int = 0

    def allows(self, kernel: Kernel, *, can_shorten_rings: bool) -> bool:
        """Return whether an attempt may choose the roles and rings of `kernel`."""
        return (
            (self.has_producer or not kernel.producer_warps)
            and (self.has_groups or kernel.num_consumer_groups == 1)
            and (self.has_full_rings or not can_shorten_rings)
        )


@dataclass
class Schedule:
    """Carry target, configuration and collected remarks through the passes of one kernel.

    `map_pointers` allows guards, and tensor maps encoded by the launcher. `max_ops` bounds the ops
    of the kernel after unrolling. `strategy` bounds the roles of warps. With `can_shorten_rings`
    the kernel would take less shared memory without `has_full_rings`. With `awaits_dots`, each dot
    is waited for where it is issued.
    """

    target: Target
    config: Config = field(default_factory=Config)
    remarks: list[str] = field(default_factory=list[str])
    map_pointers: bool = False
    max_ops: int = CompileLimits.operations
    strategy: RoleStrategy = RoleStrategy()
    can_shorten_rings: bool = False
    awaits_dots: bool = False

    @property
    def may_specialize(self) -> bool:
        """True if a warp may become a producer."""
        return self.strategy.has_producer and self.config.warp_specialize is not False

    def stages_of(self, loop: scf.For) -> int:
        """Return how many iterations of a loop are in flight at a time."""
        num_stages = loop.num_stages or self.config.num_stages
        return min(num_stages, self.strategy.max_stages or num_stages)

    def remark(self, loc: Loc, message: str) -> None:
        """Tell the user about a decision; shown by `aotc build -v` and `aotc inspect`."""
        self.remarks.append(f"{loc}: {message}")
