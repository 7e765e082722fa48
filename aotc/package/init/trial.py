"""Test whether a table builds: type-check its variants, and compile one.

Compiles stop at PTX: ptxas is the slowest stage, and its only errors come from inline assembly.
Kernels with inline assembly are compiled completely.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from pathlib import Path

from aotc.compiler import autotune_configs, compile_ptx, compile_variant, translate_request
from aotc.ir.diagnostics import DiagnosticError, Loc, one_line
from aotc.ir.dialects.assembly import Assembly
from aotc.ir.types import TileType
from aotc.package.init import rehearsal
from aotc.package.manifest.read import parse
from aotc.package.manifest.variant_grid import Expansion, VariantSpec, expand
from aotc.python_source import parse_python
from aotc.target import parse as parse_target


class Stage(IntEnum):
    """The stage at which a table fails."""

    MANIFEST = 0
    FRONTEND = 1
    COMPILER = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """An error of a table, and the stage of the failure."""

    message: str
    stage: Stage
    loc: Loc | None = None

    @property
    def line(self) -> int:
        """The line of the kernel's source, 0 if none is named."""
        return self.loc.line if self.loc is not None else 0

    @property
    def reached(self) -> tuple[int, ...]:
        """The error's line in the kernel, then in each called function.

        Loop-carried types are compared at the loop's end, but reported at its head: use the end.
        """
        lines: list[int] = []
        loc = self.loc
        while loc is not None:
            is_carried = loc is self.loc and "before this loop" in self.message
            lines.append(_loop_ends(loc.file).get(loc.line, 0) if is_carried else loc.line)
            loc = loc.call_site
        return tuple(reversed(lines))


@lru_cache(maxsize=8)
def _loop_ends(file: str) -> Mapping[int, int]:
    """Return the last line of each loop of a file, by its first."""
    tree = parse_python(Path(file).read_text(encoding="utf-8-sig", errors="replace"), file)
    loops = (node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While))
    return {node.lineno: node.end_lineno or node.lineno for node in loops}


@dataclass(frozen=True, slots=True)
class Trial:
    """Try tables of one package; `head` is the text before them."""

    head: str
    output: str
    targets: Sequence[str]

    def variants(self, text: str) -> list[VariantSpec]:
        """Return the variants of a table. Raises: DiagnosticError."""
        return list(self._expanded(text).variants)

    def num_configs(self, text: str) -> int:
        """Return how many configs a table has. Raises: DiagnosticError."""
        return len(self._expanded(text).configs)

    def _expanded(self, text: str) -> Expansion:
        (kernel,) = parse(f"{self.head}\n{text}", self.output).kernels
        return expand(kernel, [parse_target(self.targets[0])], autotune_configs)

    def typed(self, text: str) -> Problem | None:
        """Return the frontend's error for a table's first variant, None if it passes."""
        try:
            (variant, *_) = self.variants(text)
        except DiagnosticError as error:
            return Problem(error.message, Stage.MANIFEST, error.loc)
        return self.typed_variant(variant)

    def typed_variant(self, variant: VariantSpec) -> Problem | None:
        """Return the frontend's error for a variant, None if it passes."""
        try:
            translate_request(variant.request)
        except DiagnosticError as error:
            return Problem(error.message, Stage.FRONTEND, error.loc)
        except Exception as error:  # noqa: BLE001 - a bug of any type leaves out one kernel
            return _bug(error, Stage.FRONTEND)
        return None

    def rehearsed(self, text: str) -> rehearsal.Outcome:
        """Return what a launch of the first variant does (type-checked)."""
        try:
            return rehearsal.rehearse(self.variants(text)[0])
        except Exception:  # noqa: BLE001 - as above: the compiler's own verdict stands
            return "stores"

    def largest_tile(self, text: str) -> int:
        """Return the elements of the largest tile in a table's first variant (type-checked)."""
        kernel = translate_request(self.variants(text)[0].request).kernel
        types = (result.type for op in kernel.walk() for result in op.results)
        return max(
            (math.prod(tile.shape) for tile in types if isinstance(tile, TileType)), default=0
        )

    def right(self, text: str) -> Problem | None:
        """Return the error for a table's first variant; compile only kernels with assembly."""
        problem = self.typed(text)
        if problem is not None or not _has_assembly(self.variants(text)[0]):
            return problem
        return self.compiled(text)

    def compiled(self, text: str) -> Problem | None:
        """Return the compile error for a table's first variant, None if it compiles."""
        problem = self.typed(text)
        if problem is not None:
            return problem
        try:
            (variant, *_) = self.variants(text)
            if _has_assembly(variant):
                compile_variant(variant.request)
            else:
                compile_ptx(variant.request)
        except DiagnosticError as error:
            return Problem(error.message, Stage.COMPILER, error.loc)
        except Exception as error:  # noqa: BLE001 - as above
            return _bug(error, Stage.COMPILER)
        return None


def _has_assembly(variant: VariantSpec) -> bool:
    ops = translate_request(variant.request).kernel.walk()
    return any(isinstance(op, Assembly) for op in ops)


def _bug(error: Exception, stage: Stage) -> Problem:
    return Problem(f"a bug in aotc: {type(error).__name__}: {one_line(str(error))}", stage)
