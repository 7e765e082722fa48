"""Source lines of a compiled kernel, each with its layouts, remarks and instructions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from aotc.ir.core import Kernel
from aotc.ir.diagnostics import Loc, source_line
from aotc.ir.layout import LinearLayout
from aotc.ir.types import TileType
from aotc.package.inspect.sass_lines import Instruction, instructions_of

_REMARK = re.compile(r"(?P<file>[^\s:]+):(?P<line>\d+)(?::\d+)?: (?P<text>.*)", re.DOTALL)
_CONTEXT = 1  # lines before and after those with code
_LARGEST_GAP = 8  # lines without code that are shown


@dataclass(frozen=True, slots=True)
class TileLayout:
    """A tile at a line: the op that makes it, its type, and where its elements are.

    `spread` has the extents of a tile along its axes that registers, lanes and warps hold.
    """

    opcode: str
    type: str
    spread: str
    layout: str


@dataclass(slots=True)
class SourceLine:
    """A line of a file, and its place in the compiled kernel."""

    file: str
    number: int
    text: str
    remarks: list[str] = field(default_factory=list[str])
    layouts: list[TileLayout] = field(default_factory=list[TileLayout])
    instructions: list[Instruction] = field(default_factory=list[Instruction])

    @property
    def live_registers(self) -> int:
        """The most registers live at an instruction of the line."""
        return max((instruction.live_registers for instruction in self.instructions), default=0)

    @property
    def is_plain(self) -> bool:
        """Return whether nothing was compiled from the line."""
        return not (self.remarks or self.layouts or self.instructions)


def lines_of(
    cubin: bytes, remarks: Iterable[str], root: str = "", kernel: Kernel | None = None
) -> list[SourceLine]:
    """Return the lines of each file in order. Raises: IRError if it is no cubin.

    Layouts are those of `kernel`, the kernel as gpu IR. Line tables name files relative to `root`.
    """
    lines: dict[tuple[str, int], SourceLine] = {}
    names: dict[str, str] = {}  # of files, by the name that line tables have

    def line_at(file: str, number: int) -> SourceLine:
        return lines.setdefault(
            (file, number), SourceLine(file, number, source_line(Loc(file, number)) or "")
        )

    for op in kernel.walk() if kernel is not None else ():
        if op.loc.line == 0:
            continue
        names.setdefault(PurePath(op.loc.file).name, op.loc.file)
        line = line_at(op.loc.file, op.loc.line)
        for result in op.results:
            if isinstance(result.type, TileType) and result.type.layout is not None:
                tile = _tile_layout(op.opcode, result.type)
                if tile not in line.layouts:
                    line.layouts.append(tile)
    for instruction in instructions_of(cubin):
        if instruction.line:
            path = _path(instruction.file, root, names)
            line_at(path, instruction.line).instructions.append(instruction)
    for remark in remarks:
        match = _REMARK.fullmatch(remark)
        if match is not None:
            path = _path(match["file"], "", names)
            line_at(path, int(match["line"])).remarks.append(match["text"])
    return _with_context(lines)


def _path(file: str, root: str, names: dict[str, str]) -> str:
    path = (Path(root) / file).as_posix()
    return path if Path(path).exists() else names.get(PurePath(file).name, path)


def _tile_layout(opcode: str, tile: TileType) -> TileLayout:
    assert tile.layout is not None
    spread = [
        f"{name} {'×'.join(map(str, _extents(tile.layout, name)))}" for name in tile.layout.in_dims
    ]
    type_text = str(tile.with_layout(None))
    return TileLayout(opcode, type_text, ", ".join(spread), tile.layout.to_text())


def _extents(layout: LinearLayout, in_dim: str) -> list[int]:
    """Return how far the places of `in_dim` reach along each axis of the tile."""
    bases = layout.bases(in_dim)
    return [1 << sum(coords[axis] != 0 for coords in bases) for axis in range(len(layout.out_dims))]


def _with_context(lines: dict[tuple[str, int], SourceLine]) -> list[SourceLine]:
    """Return the lines in order with short runs of others between them."""
    files = dict.fromkeys(file for file, _ in lines)
    shown: list[SourceLine] = []
    for file in files:
        numbers = sorted(number for name, number in lines if name == file)
        wanted: set[int] = set()
        for number, following in zip(numbers, [*numbers[1:], numbers[-1]], strict=True):
            gap = following - number
            reach = gap if gap <= _LARGEST_GAP else _CONTEXT
            wanted.update(range(number - _CONTEXT, number + max(reach, _CONTEXT) + 1))
        for number in sorted(wanted):
            text = source_line(Loc(file, number))
            line = lines.get((file, number))
            if line is not None or text is not None:
                shown.append(line or SourceLine(file, number, text or ""))
    return shown
