"""What every pass of the schedule is given besides the kernel: target, configuration, remarks."""

from __future__ import annotations

from dataclasses import dataclass, field

from aotc.ir.diagnostics import Loc
from aotc.target import Target


@dataclass(frozen=True, slots=True)
class Config:
    """Hold the performance choices a kernel is built with; reserved config keys of a manifest."""

    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    maxnreg: int = 0


@dataclass
class Schedule:
    """Carry target, configuration and collected remarks through the passes of one kernel."""

    target: Target
    config: Config = field(default_factory=Config)
    remarks: list[str] = field(default_factory=list[str])

    def remark(self, loc: Loc, message: str) -> None:
        """Tell the user about a decision; shown by `aotc build -v` and `aotc inspect`."""
        self.remarks.append(f"{loc}: {message}")
