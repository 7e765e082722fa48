"""What the audit reports: plain records, and the words for them."""

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
"""Kinds that say something of a cubin's speed, and nothing against it."""


@dataclass(frozen=True, slots=True)
class Step:
    """A branch that lanes took, and the address that they came to."""

    branch: int
    target: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Say what is wrong at one instruction.

    `ways` are the branches by which each group of lanes gets there, one tuple for a group: several
    where groups arrive one after the other, one where a part of the warp arrives alone. `source` is the
    file and line that the cubin names, empty if it names none.
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
        """Return the finding in lines: what and where, the meaning, and how lanes get there."""
        place = f" ({self.source})" if self.source else ""
        lines = [f"{self.kind}: {self.address:#06x}: {self.text}{place}", f"  {self.meaning}"]
        for at, way in enumerate(self.ways):
            steps = ", ".join(f"{step.branch:#06x} → {step.target:#06x}" for step in way)
            lines.append(f"  {'others' if at else 'some lanes'} come by {steps}")
        return "\n".join(lines)
