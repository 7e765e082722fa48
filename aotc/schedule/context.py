"""What every pass of the schedule is given besides the kernel: target, configuration, remarks."""

from __future__ import annotations

from dataclasses import dataclass, field

from aotc.ir.diagnostics import Loc
from aotc.limits import CompileLimits
from aotc.target import Target


@dataclass(frozen=True, slots=True)
class Config:
    """Hold the performance choices a kernel is built with; reserved config keys of a manifest.

    `warp_specialize` of None leaves the choice to the schedule.
    """

    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    maxnreg: int = 0
    warp_specialize: bool | None = None
    num_consumer_groups: int = 1
    mma_stages: int = 1


@dataclass
class Schedule:
    """Carry target, configuration and collected remarks through the passes of one kernel.

    `map_pointers` allows guards, and tensor maps that the launcher encodes. `max_ops` bounds the
    ops of the kernel after unrolling. `specialization_obstacle` says why the kernel is not to be
    warp-specialized, `grouping_obstacle` why it is to have one consumer group; empty if it may.
    """

    target: Target
    config: Config = field(default_factory=Config)
    remarks: list[str] = field(default_factory=list[str])
    map_pointers: bool = False
    max_ops: int = CompileLimits.operations
    specialization_obstacle: str = ""
    grouping_obstacle: str = ""

    def __post_init__(self) -> None:
        if self.config.warp_specialize is False:
            self.specialization_obstacle = "warp_specialize is false"

    def remark(self, loc: Loc, message: str) -> None:
        """Tell the user about a decision; shown by `aotc build -v` and `aotc inspect`."""
        self.remarks.append(f"{loc}: {message}")
