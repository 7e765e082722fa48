"""A random program: tile IR as text, its launch, and its compile options.

Invariant: a program is a function of the generator's choices, and prints as text that can be run
again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from hypothesis import strategies as st

from aotc.config import Config
from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import scf, tile
from aotc.ir.effects import Resource, Trait
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.types import shape_of
from aotc.ir.verify import verify
from tests.fuzz import memory, tensors
from tests.fuzz.arguments import Argument, Array, Buffer, Scalar, Tensor
from tests.fuzz.choices import Choices, Drawn, Seeded
from tests.fuzz.control import CONTROL
from tests.fuzz.elementwise import ELEMENTWISE
from tests.fuzz.generator import Counter, Generator, Item, Limits, Maker
from tests.fuzz.indexing import INDEXING
from tests.fuzz.matmuls import make_matmul
from tests.fuzz.movement import MOVEMENT
from tests.fuzz.products import PRODUCTS
from tests.fuzz.reductions import REDUCTIONS
from tests.fuzz.row_loops import make_row_loop

MEMORY: list[tuple[int, Maker]] = [
    (4, memory.make_load),
    (1, memory.make_gather),
    (1, memory.make_round_trip),
    (1, memory.make_atomic),
    (2, tensors.make_load),
    (1, tensors.make_rows),
    (1, tensors.make_reduction),
]

GROUPS: tuple[tuple[int, list[tuple[int, Maker]]], ...] = (
    (4, MEMORY),
    (8, ELEMENTWISE),
    (6, MOVEMENT),
    (4, REDUCTIONS),
    (2, INDEXING),
    (3, PRODUCTS),
    (4, [*CONTROL, (3, make_row_loop), (5, make_matmul)]),
)


def one_of(makers: Sequence[tuple[int, Maker]]) -> Maker:
    def make(g: Generator) -> None:
        g.choices.weighted(makers)(g)

    return make


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of program: its first ops, possible next ops, compile options and launch."""

    first: Maker | None
    makers: list[tuple[int, Maker]]
    ops: tuple[int, ...]
    grids: tuple[tuple[int, ...], ...]
    num_warps: tuple[int, ...]
    targets: tuple[str, ...]
    nesting: int = 2
    outputs: int = 4
    elems: tuple[int, ...] = (512, 64, 1024, 2048)
    min_size: int = 0
    """The program grows until it has so many operations."""


# Around loops with a producer warp: no makers that order accesses.
_AROUND_LOOPS: list[tuple[int, Maker]] = [
    (2, one_of(ELEMENTWISE)),
    (1, one_of(MOVEMENT)),
    (1, one_of(REDUCTIONS)),
    (1, one_of(INDEXING)),
    (1, tensors.make_load),
    (1, memory.make_load),
]
_KINDS: list[tuple[int, Kind]] = [
    (
        6,
        Kind(
            first=None,
            makers=[(weight, one_of(makers)) for weight, makers in GROUPS],
            ops=(14, 6, 22),
            grids=((1,), (1,), (1,), (2,), (3,), (1, 2), (1, 1, 2)),
            num_warps=(4, 1, 2, 8),
            targets=("sm_90a", "sm_80", "sm_90a", "sm_89", "sm_120a"),
        ),
    ),
    (
        4,
        Kind(
            first=make_matmul,
            makers=[(6, make_matmul), *_AROUND_LOOPS],
            ops=(1, 2, 5),
            grids=((1,), (2,), (3,), (5,), (2, 2), (2, 1, 2)),
            num_warps=(4, 4, 8, 2),
            targets=("sm_90a", "sm_90a", "sm_90a", "sm_90a", "sm_90a", "sm_80", "sm_120a"),
        ),
    ),
    (
        1,
        Kind(
            first=make_row_loop,
            makers=[(4, make_row_loop), *_AROUND_LOOPS],
            ops=(2, 4, 1),
            grids=((1,), (2,), (3,)),
            num_warps=(4, 8, 2, 1),
            targets=("sm_90a", "sm_90a", "sm_90a", "sm_80"),
        ),
    ),
]

_OPS_PER_STORE = 10

# More of a tile do not fit in the registers of a thread, with all else.
_ELEMS_PER_WARP = 32 * 128

_HEAD = re.compile(
    r"(?P<target>\w+), (?P<warps>\d+) warps, (?P<stages>\d+) stages"
    r"(?:, (?P<blocks>\d+) blocks)?(?:, (?P<groups>\d+) groups)?"
    r"(?:, specialized (?P<specialized>\w+))?(?P<mapped>, mapped)?(?P<ahead>, ahead)?, grid (?P<grid>.+)"
)


@dataclass(frozen=True, slots=True)
class Program:
    """Tile IR, its arguments, the launch grid and the compile target."""

    text: str
    arguments: tuple[Argument, ...]
    grid: tuple[int, ...]
    target: str
    num_warps: int
    num_stages: int
    num_ctas: int = 1
    num_consumer_groups: int = 1
    warp_specialize: bool | None = None
    map_pointers: bool = False
    mma_stages: int = 1

    def kernel(self) -> Kernel:
        """Return the tile IR, parsed anew."""
        return parse_kernel(self.text)

    @property
    def config(self) -> Config:
        """Configuration of the schedule."""
        return Config(
            *(self.num_warps, self.num_stages, self.num_ctas),
            warp_specialize=self.warp_specialize,
            num_consumer_groups=self.num_consumer_groups,
            mma_stages=self.mma_stages,
        )

    def make(self) -> dict[str, Array | int]:
        """Return the arguments by name, made anew."""
        return {argument.name: argument.make() for argument in self.arguments}

    def with_kernel(self, kernel: Kernel) -> Program:
        """Return the program with another kernel of the same parameters."""
        return replace(self, text=print_kernel(kernel))

    def __str__(self) -> str:
        config = f"{self.target}, {self.num_warps} warps, {self.num_stages} stages"
        config += f", {self.num_ctas} blocks" if self.num_ctas > 1 else ""
        config += f", {self.num_consumer_groups} groups" if self.num_consumer_groups > 1 else ""
        specialized = self.warp_specialize
        config += f", specialized {specialized}" if specialized is not None else ""
        config += ", mapped" if self.map_pointers else ""
        config += ", ahead" if self.mma_stages > 1 else ""
        arguments = "\n".join(f"// {argument}" for argument in self.arguments)
        return f"// {config}, grid {self.grid}\n{arguments}\n{self.text}"


def parse_program(text: str) -> Program:
    """Return the program printed as `text`."""
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
        num_consumer_groups=int(match["groups"] or 1),
        warp_specialize=ast.literal_eval(match["specialized"] or "None"),
        map_pointers=match["mapped"] is not None,
        mma_stages=1 + (match["ahead"] is not None),
    )


def _parse_argument(text: str) -> Argument:
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"expected an argument, got {text!r}")  # noqa: TRY004 - of text
    values = {word.arg or "": ast.literal_eval(word.value) for word in call.keywords}
    return {"Scalar": Scalar, "Buffer": Buffer, "Tensor": Tensor}[call.func.id](**values)


def generate(choices: Choices, kind: Kind | None = None) -> Program:
    """Return a program made from `choices`, of some kind unless one is given."""
    kind = kind or choices.weighted(_KINDS)
    grid = choices.pick(kind.grids)
    limits = Limits(
        ops=choices.pick(kind.ops),
        elems=choices.pick(kind.elems),
        nesting=kind.nesting,
        outputs=kind.outputs,
    )
    g = Generator(choices, limits, grid, kind.makers, memory.load, _store)
    for axis, extent in enumerate(grid):
        index = g.add(tile.ProgramId(axis)).out
        g.scopes[0].counters.append(Counter(index, extent, is_program=True))
    if kind.first is not None:
        kind.first(g)
    g.grow(limits.ops)
    while _size(g) < kind.min_size and g.has_room:
        g.left = limits.ops
        g.grow(limits.ops)
    _store_results(g)
    g.add(scf.Return())
    kernel = Kernel("fuzzed", tuple(g.params), g.body)
    verify(kernel)
    target = choices.pick(kind.targets)
    has_maps = target == "sm_90a"
    return Program(
        text=print_kernel(kernel),
        arguments=tuple(g.arguments),
        grid=grid,
        target=target,
        num_warps=_some_warps(choices, kernel, kind.num_warps),
        num_stages=choices.pick([3, 1, 2, 4]),
        num_ctas=choices.pick([1, 1, 2, 4]) if has_maps and _may_be_split(kernel) else 1,
        num_consumer_groups=choices.pick([1, 1, 2]) if has_maps else 1,
        warp_specialize=choices.pick([None, None, True, False]) if has_maps else None,
        map_pointers=has_maps and choices.chance(2, 3),
        mma_stages=1 + (has_maps and choices.chance(1, 2)),
    )


def _some_warps(choices: Choices, kernel: Kernel, counts: Sequence[int]) -> int:
    """Choose a number of warps, mostly with enough registers for the largest tile.

    Others would take most of a fuzzer's time, since ptxas assembles spilling kernels repeatedly.
    """
    largest = max(prod(shape_of(value.type)) for op in kernel.walk() for value in op.results)
    roomy = [count for count in counts if largest <= _ELEMS_PER_WARP * count]
    if choices.chance(1, 8):
        return choices.pick(counts)
    return choices.pick(roomy or [max(counts)])


def _may_be_split(kernel: Kernel) -> bool:
    """Return whether the CTAs of a cluster can share a program: see `split_across_cluster`."""
    return not any(
        op.has(Trait.BARRIER)
        or op.writes(Resource.OUTPUT)
        or (op.writes(Resource.GLOBAL) and any(value.users for value in op.results))
        for op in kernel.walk()
    )


def _size(g: Generator) -> int:
    """Return about how many operations a program has once its results are stored."""
    unused = {item.value for item in g.scopes[-1].pool if not item.value.users}
    return sum(1 for _ in g.body.walk()) + _OPS_PER_STORE * min(len(unused), g.limits.outputs)


def _store_results(g: Generator) -> None:
    """Store some of the unused values, the newest first; at least one value."""
    unused = g.candidates(lambda item: not item.value.users) or g.candidates(lambda _: True)
    seen: dict[Value, None] = {}
    for item in unused:
        if item.value not in seen and len(seen) < g.limits.outputs:
            seen[item.value] = None
            g.store(g, item)


def _store(g: Generator, item: Item) -> None:
    """Store a value through pointers, or as a block of a tensor."""
    if tensors.is_block(item) and g.choices.chance(1, 4):
        tensors.store(g, item)
    else:
        memory.store(g, item)


def from_seed(seed: int) -> Program:
    """Return the program of a seed."""
    return generate(Choices(Seeded(seed)))


@st.composite
def programs(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Program:
    """Draw programs that Hypothesis can shrink."""
    return generate(Choices(Drawn(draw)))
