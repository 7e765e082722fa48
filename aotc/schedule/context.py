"""What every pass of the schedule is given besides the kernel: target, configuration, remarks."""

from __future__ import annotations

from dataclasses import dataclass, field

from aotc.config import Config
from aotc.ir.diagnostics import Loc
from aotc.limits import CompileLimits
from aotc.target import Target


@dataclass
class Schedule:
    """Carry target, configuration and collected remarks through the passes of one kernel.

    `map_pointers` says that the kernel may get guards, and tensor maps that the launcher makes.
    `max_ops` is how many ops unrolling may leave it with. `specialization_obstacle` says why all warps are to
    do the same, if they are, and `grouping_obstacle` why one group of warps is to compute.
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
