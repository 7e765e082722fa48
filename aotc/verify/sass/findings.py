"""The audit's findings: plain records, and their texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal[
    "issued apart",
    "warpgroup apart",
    "collective apart",
    "barrier apart",
    "serialized",
    "matrix instructions merged",
    "setmaxnreg dropped",
    "in flight",
    "stack overwritten",
    "unreadable",
    "spill in a loop",
    "other code",
]

INFORMATION: Final[frozenset[Kind]] = frozenset({"spill in a loop"})
"""Kinds about a cubin's speed, not its correctness."""


@dataclass(frozen=True, slots=True)
class Step:
    """A branch taken by lanes, and its target."""

    branch: int
    target: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault at one instruction.

    `ways` are the branches by which each group of lanes arrives, one tuple for a group: several
    if groups arrive one after the other, one if a part of the warp arrives alone. `source` is
    the file and line in the cubin's debug information, empty without it.
    """

    kind: Kind
    address: int
    text: str
    meaning: str
    ways: tuple[tuple[Step, ...], ...] = ()
    source: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether the cubin must not be shipped."""
        return self.kind not in INFORMATION

    def render(self) -> str:
        """Return the finding in lines: its place, its meaning, and the lanes' ways there."""
        location = f" ({self.source})" if self.source else ""
        lines = [f"{self.kind}: {self.address:#06x}: {self.text}{location}", f"  {self.meaning}"]
        for index, way in enumerate(self.ways):
            steps = ", ".join(f"{step.branch:#06x} → {step.target:#06x}" for step in way)
            lines.append(f"  {'others' if index else 'some lanes'} come by {steps}")
        return "\n".join(lines)
