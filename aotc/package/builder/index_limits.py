"""Report the extents where a kernel's addresses overflow 32 bits, from its variants' remarks.

Invariant: a limit only names arguments and constants if the manifest gives the grid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aotc.ir.expression import Expression, Name, to_text
from aotc.package.archive.index import Kernel

_REMARK = re.compile(
    r"(?P<place>\S+:\d+:\d+): this int32 product of an address overflows where (?P<limit>[^:]+):"
)
_PROGRAMS = re.compile(r"num_programs\((\d)\)")
_MAX_KERNELS = 4


@dataclass(frozen=True, slots=True)
class IndexLimit:
    """The `condition` for overflow of the product at `location` (file:line:column)."""

    kernel: str
    location: str
    condition: str


def index_limits(kernels: Iterable[Kernel]) -> tuple[IndexLimit, ...]:
    """Return the limits of kernels, one for each product, from its first variant."""
    limits: dict[tuple[str, str], IndexLimit] = {}
    for kernel in kernels:
        for variant in kernel.variants:
            for remark in variant.remarks:
                if match := _REMARK.match(remark):
                    limit = IndexLimit(
                        kernel.name, match["place"], _of_arguments(match["limit"], variant.grid)
                    )
                    limits.setdefault((limit.kernel, limit.location), limit)
    return tuple(limits.values())


def notes(limits: Sequence[IndexLimit]) -> list[str]:
    """Return a line for each of the first kernels, and the number of the others."""
    by_kernel: dict[str, list[IndexLimit]] = {}
    for limit in limits:
        by_kernel.setdefault(limit.kernel, []).append(limit)
    lines: list[str] = []
    for name, (first, *more_limits) in list(by_kernel.items())[:_MAX_KERNELS]:
        line = first.location.rpartition(":")[0]
        more = f", and {len(more_limits)} more (-v lists them)" if more_limits else ""
        lines.append(
            f"{name}: addresses overflow 32 bits where {first.condition} ({line}){more}; "
            "`.to(tl.int64)` on an operand avoids it"
        )
    if (rest := len(by_kernel) - _MAX_KERNELS) > 0:
        noun = "kernel" if rest == 1 else "kernels"
        lines.append(f"addresses of {rest} more {noun} overflow 32 bits (-v lists them)")
    return lines


def _of_arguments(limit: str, grid: Sequence[Expression]) -> str:
    """Replace numbers of programs by the grid, where the manifest gives it."""

    def extent(match: re.Match[str]) -> str:
        axis = int(match[1])
        if not grid:
            return match[0]
        node = grid[axis] if axis < len(grid) else None
        text = "1" if node is None else to_text(node)
        is_atom = node is None or isinstance(node, Name) or text.startswith("cdiv(")
        return text if is_atom else f"({text})"

    return _PROGRAMS.sub(extent, limit)
