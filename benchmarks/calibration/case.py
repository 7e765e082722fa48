"""A case run on both sides: a kernel, its arguments, and how its results are compared.

Code and seeds alone determine a case on every machine. So only cubins travel from the machine
with ptxas to the one with the GPU.

Invariant: a case's arguments are drawn from its name; asking twice gives equal arrays.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.verify.emulator.async_copies.tensor_argument import TensorArgument

Array: TypeAlias = npt.NDArray[Any]
Argument: TypeAlias = "Array | TensorArgument | int | float"

HEAD = ".version 8.8\n.target sm_90a\n.address_size 64\n"


@dataclass(frozen=True, slots=True)
class Bound:
    """Say how far the GPU may be from the emulator: not at all, if nothing is given.

    `ulps` counts steps of the type. `absolute` and `relative` are allowed beyond half a step, the
    emulator's own rounding, and the larger of them counts. `scaled` is relative to the sum of the
    magnitudes of an element's terms.
    """

    ulps: int = 0
    absolute: float = 0.0
    relative: float = 0.0
    scaled: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Return whether results must be identical."""
        return self == EXACT

    def __str__(self) -> str:
        parts = [f"{self.ulps} ulp"] if self.ulps else []
        for value, unit in (
            (self.absolute, "absolute"),
            (self.relative, "relative"),
            (self.scaled, "of Σ\\|a·b\\|"),
        ):
            if value:
                parts.append(f"2^{np.log2(value):.4g} {unit}")
        return " or ".join(parts) or "identical"


EXACT = Bound()


@dataclass(frozen=True, slots=True)
class Output:
    """Name the result argument and its element type: "f32", "bf16", "u32", …."""

    index: int
    kind: str
    bound: Bound = EXACT


@dataclass(frozen=True, slots=True)
class Case:
    """One launch of one kernel.

    `ptx` is the text of an entry named `{entry}`. `draw` makes the arguments. `magnitudes` makes
    arguments with the sums of the terms' magnitudes as results; bounds may be relative to these.
    Cases with bounds share the line `row` of the table, or have their own. `is_probe` reports
    the values themselves.
    """

    name: str
    ptx: str
    draw: Callable[[np.random.Generator], list[Argument]]
    outputs: tuple[Output, ...]
    grid: tuple[int, ...] = (1,)
    shared_bytes: int = 0
    magnitudes: Callable[[Sequence[Argument]], list[Argument]] | None = None
    row: str = ""
    is_probe: bool = False

    def arguments(self) -> list[Argument]:
        """Return fresh arguments: both sides change them in place."""
        return self.draw(np.random.default_rng(zlib.crc32(self.name.encode())))


@dataclass(frozen=True, slots=True)
class Group:
    """Cases of one PTX module and one row of the table."""

    name: str
    title: str
    cases: tuple[Case, ...]
    variables: str = field(default="", repr=False)

    @property
    def ptx(self) -> str:
        """The module, case `i` being the entry `entry_name(i)`."""
        entries = [
            case.ptx.replace("{entry}", entry_name(index)) for index, case in enumerate(self.cases)
        ]
        return HEAD + self.variables + "\n".join(entries)


def entry_name(index: int) -> str:
    """Return the entry name of a group's case."""
    return f"case_{index}"
