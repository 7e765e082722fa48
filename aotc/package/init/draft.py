"""A `[[kernel]]` table in progress: its lines by section, and their text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tomli

from aotc.package.init.subject import Line
from aotc.package.manifest.toml_text import toml

SECTIONS = ("signature", "types", "captures", "constants", "choices", "configs")


@dataclass(frozen=True, slots=True)
class Axis:
    """A line with several values; variants are the cross product of all axes."""

    section: str
    name: str
    values: tuple[object, ...]


@dataclass
class Draft:
    """The lines of a `[[kernel]]` table, or the `problem` preventing one.

    `sections` hold the lines of `[kernel.SECTION]`; `left_out` gives the reason for each argument
    without a type. Constants `computed` by heuristics or `tuned` by an autotuner have no lines.
    Floats are stored through the pointers `results`.
    """

    head: list[str]
    problem: str = ""
    grid: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    where: list[str] = field(default_factory=list[str])
    is_autotuned: bool = False
    computed: tuple[str, ...] = ()
    tuned: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    sections: dict[str, dict[str, Line]] = field(
        default_factory=lambda: {section: {} for section in SECTIONS}
    )

    def text(self, picked: Mapping[tuple[str, str], object] | None = None) -> str:
        """Return the table as TOML; with `picked`, each axis has one value (default: its first)."""
        return "\n".join([*self.head, *self.grid, *self._rest(picked)]) + "\n"

    def axes(self) -> list[Axis]:
        """Return the lines with several values."""
        return [
            Axis(section, name, values)
            for section, lines in self.sections.items()
            for name, line in lines.items()
            if len(values := listed(line)) > 1
        ]

    def _rest(self, picked: Mapping[tuple[str, str], object] | None) -> Sequence[str]:
        rest = [*self.notes]
        if self.where:
            rest.append(f"where = {toml(' and '.join(self.where))}")
        if any("?" in line.value for line in self.sections["signature"].values()):
            rest.append('guards = "together"')
        if self.is_autotuned:
            rest.append('configs = "autotune"')
        for section, lines in self.sections.items():
            if lines or section == "signature":
                rest.append(f"[kernel.{section}]")
            if section == "signature":
                rest += [f"# {name}: {reason}" for name, reason in self.left_out.items()]
            for name, line in lines.items():
                rest.append(f"{name} = {_value(section, name, line, picked)}{line.comment}")
        return rest


def listed(line: Line) -> tuple[object, ...]:
    """Return the values of a list line; empty for a scalar line."""
    if not line.value.startswith("["):
        return ()
    value = tomli.loads(f"value = {line.value}")["value"]
    return tuple(value)


def as_list(values: Sequence[object]) -> str:
    """Return values as a TOML list."""
    return f"[{', '.join(toml(literal) for literal in values)}]"


def _value(
    section: str, name: str, line: Line, picked: Mapping[tuple[str, str], object] | None
) -> str:
    values = listed(line)
    if picked is None or not values:
        return line.value
    value = picked.get((section, name), values[0])
    return toml(value) if section == "signature" else as_list([value])
