"""A random program: tile IR as text, what it is launched with, and how it is compiled.

Invariant: a program is a function of the choices it was made from, and prints as text from which it
can be run again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import scf, tile
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from tests.fuzz import memory
from tests.fuzz.arguments import Argument, Array, Buffer, Scalar
from tests.fuzz.choices import Choices, Drawn, Seeded
from tests.fuzz.control import CONTROL
from tests.fuzz.elementwise import ELEMENTWISE
from tests.fuzz.generator import Counter, Generator, Limits, Maker
from tests.fuzz.movement import MOVEMENT
from tests.fuzz.products import PRODUCTS
from tests.fuzz.reductions import REDUCTIONS
from tests.fuzz.row_loops import make_row_loop

MEMORY: list[tuple[int, Maker]] = [
    (4, memory.make_load),
    (1, memory.make_gather),
    (1, memory.make_round_trip),
    (1, memory.make_atomic),
]
TARGETS = ("sm_90a", "sm_80", "sm_90a", "sm_89", "sm_120a")

_GROUPS = (
    (4, MEMORY),
    (8, ELEMENTWISE),
    (6, MOVEMENT),
    (4, REDUCTIONS),
    (3, PRODUCTS),
    (3, [*CONTROL, (3, make_row_loop)]),
)


def _one_of(makers: Sequence[tuple[int, Maker]]) -> Maker:
    def make(g: Generator) -> None:
        g.choices.weighted(makers)(g)

    return make


MAKERS: list[tuple[int, Maker]] = [(weight, _one_of(makers)) for weight, makers in _GROUPS]

_HEAD = re.compile(
    r"(?P<target>\w+), (?P<warps>\d+) warps, (?P<stages>\d+) stages"
    r"(?:, (?P<blocks>\d+) blocks)?, grid (?P<grid>.+)"
)


@dataclass(frozen=True, slots=True)
class Program:
    """Hold tile IR, its arguments, the grid it is launched with and what it is compiled for."""

    text: str
    arguments: tuple[Argument, ...]
    grid: tuple[int, ...]
    target: str
    num_warps: int
    num_stages: int
    num_ctas: int = 1

    def kernel(self) -> Kernel:
        """Return the tile IR, parsed anew."""
        return parse_kernel(self.text)

    def make(self) -> list[Array | int]:
        """Return the arguments, made anew."""
        return [argument.make() for argument in self.arguments]

    def with_kernel(self, kernel: Kernel) -> Program:
        """Return the program with another kernel of the same parameters."""
        return replace(self, text=print_kernel(kernel))

    def __str__(self) -> str:
        config = f"{self.target}, {self.num_warps} warps, {self.num_stages} stages"
        config += f", {self.num_ctas} blocks" if self.num_ctas > 1 else ""
        given = "\n".join(f"// {argument}" for argument in self.arguments)
        return f"// {config}, grid {self.grid}\n{given}\n{self.text}"


def parse_program(text: str) -> Program:
    """Return the program that was printed as `text`."""
    head = [line[3:] for line in text.splitlines() if line.startswith("// ")]
    body = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("//"))
    match = _HEAD.fullmatch(head[0])
    if match is None:
        raise ValueError(f"expected target, warps, stages and grid, got {head[0]!r}")
    return Program(
        text=print_kernel(parse_kernel(body)),
        arguments=tuple(_parse_argument(line) for line in head[1:]),
        grid=ast.literal_eval(match["grid"]),
        target=match["target"],
        num_warps=int(match["warps"]),
        num_stages=int(match["stages"]),
        num_ctas=int(match["blocks"] or 1),
    )


def _parse_argument(text: str) -> Argument:
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"expected an argument, got {text!r}")  # noqa: TRY004 - of text
    values = {word.arg or "": ast.literal_eval(word.value) for word in call.keywords}
    return {"Scalar": Scalar, "Buffer": Buffer}[call.func.id](**values)


def generate(choices: Choices, limits: Limits | None = None) -> Program:
    """Return a program made from `choices`."""
    grid = choices.pick([(1,), (1,), (1,), (2,), (3,), (1, 2), (1, 1, 2)])
    limits = limits or Limits(
        ops=choices.pick([14, 6, 22]), elems=choices.pick([512, 64, 1024, 2048])
    )
    g = Generator(choices, limits, grid, MAKERS, memory.load, memory.store)
    for axis, extent in enumerate(grid):
        index = g.add(tile.ProgramId(axis)).out
        g.scopes[0].counters.append(Counter(index, extent, is_program=True))
    g.grow(limits.ops)
    _store_results(g)
    g.add(scf.Return())
    kernel = Kernel("fuzzed", tuple(g.params), g.body)
    verify(kernel)
    target = choices.pick(TARGETS)
    return Program(
        text=print_kernel(kernel),
        arguments=tuple(g.arguments),
        grid=grid,
        target=target,
        num_warps=choices.pick([4, 1, 2, 8]),
        num_stages=choices.pick([3, 1, 2, 4]),
        num_ctas=choices.pick([1, 1, 2, 4]) if target == "sm_90a" else 1,
    )


def _store_results(g: Generator) -> None:
    """Store some of the values that nothing else uses, the newest first; at least one value."""
    unused = g.candidates(lambda item: not item.value.users) or g.candidates(lambda _: True)
    seen: dict[Value, None] = {}
    for item in unused:
        if item.value not in seen and len(seen) < g.limits.outputs:
            seen[item.value] = None
            memory.store(g, item)


def from_seed(seed: int) -> Program:
    """Return the program of a seed."""
    return generate(Choices(Seeded(seed)))


@st.composite
def programs(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Program:
    """Draw programs that Hypothesis can shrink."""
    return generate(Choices(Drawn(draw)))
