"""Describe the content of an archive, as rows for a table and as plain data for `--json`.

Both come from the same records, so they cannot differ. Scripts rely on the data: keys are added,
never renamed.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from aotc.ir.diagnostics import one_line
from aotc.ir.expression import to_text
from aotc.package.archive.index import (
    Archive,
    Kernel,
    NamedValues,
    Param,
    TensorMap,
    Value,
    Variant,
)
from aotc.package.archive.label import variant_label
from aotc.package.inspect.drivers import drivers_text, first_releases
from aotc.package.tuning import tree_text

if TYPE_CHECKING:
    from rich.table import Table

Data: TypeAlias = dict[str, Any]

COLUMNS = (
    *("target", "types", "choices", "guards", "config", "cluster", "overlaps"),
    *("persistent", "threads", "registers"),
    *("spill bytes", "shared bytes", "scratch bytes", "cubin bytes", "PTX bytes"),
)
_GUARDS, _FIRST_NUMBER = COLUMNS.index("guards"), COLUMNS.index("threads")
_INDENT = 2


@dataclass(frozen=True, slots=True)
class Row:
    """One variant: its cells in the order of `COLUMNS`, and the texts of its guards."""

    cells: tuple[str, ...]
    guards: tuple[str, ...]


def rows(kernel: Kernel) -> Iterator[Row]:
    """Yield a row for each variant, in the archive's order.

    Guards and conditions are shown as numbers: their positions in `guards`.
    """
    numbers = {text: str(number) for number, text in enumerate(guards(kernel), 1)}
    for variant in kernel.variants:
        shared_bytes = variant.dynamic_shared_bytes + variant.static_shared_bytes
        alternatives = _alternatives(kernel, variant)
        cells = (
            variant.target,
            " ".join(_types(kernel, variant).values()),
            _pairs(tuple(_choices(kernel, variant).items())),
            " ".join(numbers[text] for text in alternatives),
            _pairs(kernel.configs[variant.config]),
            _cluster(variant),
            "pdl" if variant.waits_pdl else "",
            "yes" if variant.is_persistent else "",
            str(variant.num_threads),
            str(variant.registers),
            str(variant.spill_bytes),
            str(shared_bytes),
            _scratch(variant) or "",
            str(len(variant.cubin)),
            "" if variant.ptx is None else str(len(variant.ptx)),
        )
        yield Row(tuple(one_line(cell) for cell in cells), tuple(alternatives))


def guards(kernel: Kernel) -> tuple[str, ...]:
    """Return the distinct guards and conditions that select among the variants."""
    texts = (text for variant in kernel.variants for text in _alternatives(kernel, variant))
    return tuple(dict.fromkeys(texts))


def text(archive: Archive, width: int) -> str:
    """Format a table for each kernel, `width` characters wide, with a legend of its guards."""
    from rich.console import Console  # noqa: PLC0415 - `--json` does without
    from rich.padding import Padding  # noqa: PLC0415

    written = io.StringIO()
    console = Console(file=written, width=width, color_system=None, highlight=False, emoji=False)
    for kernel in archive.kernels:
        console.print(one_line(kernel.name), markup=False)
        guard_texts = guards(kernel)
        console.print(Padding(_table(kernel), (0, 0, 0, _INDENT)))
        if guard_texts:
            console.print(Padding(_legend(guard_texts), (0, 0, 0, _INDENT)))
        console.print()
    return "\n".join(line.rstrip() for line in written.getvalue().rstrip().splitlines())


def _table(kernel: Kernel) -> Table:
    """Return the variants of a kernel as a table, without empty columns."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    cells = [row.cells for row in rows(kernel)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = [column for column in range(len(COLUMNS)) if any(line[column] for line in cells)]
    for column in columns:
        if column < _FIRST_NUMBER:
            word = max(map(len, COLUMNS[column].split()))
            table.add_column(COLUMNS[column], overflow="fold", no_wrap=column == 0, min_width=word)
        else:
            # As narrow as its numbers and the words of its heading.
            words = [*COLUMNS[column].split(), *(line[column] for line in cells)]
            width = max(map(len, words))
            table.add_column(COLUMNS[column], justify="right", width=width)
    for line in cells:
        table.add_row(*(Text(line[column]) for column in columns))
    return table


def _legend(guard_texts: Sequence[str]) -> Table:
    """Explain the numbers in the column of guards."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for number, guard in enumerate(guard_texts, 1):
        table.add_row("guard", str(number), Text(one_line(guard)))
    return table


def summary(archive: Archive, size_bytes: int) -> str:
    """Summarise an archive and its toolchain; `size_bytes` is the size of its file."""
    num_variants = sum(len(kernel.variants) for kernel in archive.kernels)
    parts = [
        f"{archive.name} {archive.version}",
        _counted(len(archive.kernels), "kernel"),
        _counted(num_variants, "variant"),
        " ".join(archive.targets),
        f"{size_bytes} bytes",
    ]
    lines = [" | ".join(part for part in parts if part), archive.toolchain, drivers_text(archive)]
    return "\n".join(one_line(line) for line in lines if line)


def describe(archive: Archive, size_bytes: int) -> Data:
    """Return the whole index as JSON-ready data; `size_bytes` is the size of the file."""
    return {
        "name": archive.name,
        "version": archive.version,
        "toolchain": archive.toolchain,
        "targets": list(archive.targets),
        "drivers": {
            target: f"{major}.{minor}" for target, (major, minor) in first_releases(archive).items()
        },
        "size_bytes": size_bytes,
        "kernels": [_describe_kernel(kernel) for kernel in archive.kernels],
    }


def _describe_kernel(kernel: Kernel) -> Data:
    return {
        "name": kernel.name,
        "source_sha256": kernel.source_sha256.hex(),
        "params": [_describe_param(kernel, param) for param in kernel.params],
        "types": {variable.name: list(variable.dtypes) for variable in kernel.type_variables},
        "choices": {choice.name: list(choice.values) for choice in kernel.choices},
        "constants": dict(kernel.constants),
        "guards": [
            {
                "text": guard.text,
                "condition": to_text(guard.expression),
                "promise": guard.is_promise,
            }
            for guard in kernel.guards
        ],
        "variants": [_describe_variant(kernel, variant) for variant in kernel.variants],
        "selections": tree_text.describe(kernel),
    }


def _describe_param(kernel: Kernel, param: Param) -> Data:
    return {
        "name": param.name,
        "kind": param.kind,
        "dtype": param.element,
        "rank": param.rank,
        "divisibility": param.divisibility,
        "optional": param.is_optional,
        "access": param.access,
        "may_be_none": param.name in kernel.nullable,
    }


def _describe_variant(kernel: Kernel, variant: Variant) -> Data:
    return {
        "label": variant_label(kernel, variant),
        "target": variant.target,
        "symbol": variant.symbol,
        "types": _types(kernel, variant),
        "choices": _choices(kernel, variant),
        "guards": [kernel.guards[guard].text for guard in variant.guards],
        "condition": None if variant.condition is None else to_text(variant.condition),
        "config": dict(kernel.configs[variant.config]),
        "grid": [to_text(dimension) for dimension in variant.grid],
        "cluster": list(variant.cluster),
        "waits_pdl": variant.waits_pdl,
        "is_persistent": variant.is_persistent,
        "cooperative": variant.cooperative,
        "threads": variant.num_threads,
        "registers": variant.registers,
        "spill_bytes": variant.spill_bytes,
        "stack_bytes": variant.stack_bytes,
        "dynamic_shared_bytes": variant.dynamic_shared_bytes,
        "static_shared_bytes": variant.static_shared_bytes,
        "scratch_bytes": _scratch(variant),
        "param_bytes": variant.param_bytes,
        "tensor_maps": [_describe_map(kernel, tensor_map) for tensor_map in variant.tensor_maps],
        "cubin_bytes": len(variant.cubin),
        "ptx_bytes": None if variant.ptx is None else len(variant.ptx),
        "remarks": list(variant.remarks),
    }


def _describe_map(kernel: Kernel, tensor_map: TensorMap) -> Data:
    """Describe a tensor map, the innermost dimension first."""
    return {
        "param": kernel.params[tensor_map.param].name,
        "address": to_text(tensor_map.address),
        "dims": [to_text(extent) for extent in tensor_map.dims],
        "strides_bytes": [to_text(stride) for stride in tensor_map.strides],
        "box": list(tensor_map.box),
    }


def _scratch(variant: Variant) -> str | None:
    """Return the scratch bytes of a program, as text; None for none."""
    return None if variant.scratch_bytes is None else to_text(variant.scratch_bytes)


def _types(kernel: Kernel, variant: Variant) -> dict[str, str]:
    names = [variable.name for variable in kernel.type_variables]
    return dict(zip(names, variant.types, strict=True))


def _choices(kernel: Kernel, variant: Variant) -> dict[str, Any]:
    names = [choice.name for choice in kernel.choices]
    return dict(zip(names, variant.choices, strict=True))


def _cluster(variant: Variant) -> str:
    """Return the dimensions of a cluster, empty for a single CTA."""
    return "" if variant.cluster == (1, 1, 1) else "x".join(map(str, variant.cluster))


def _alternatives(kernel: Kernel, variant: Variant) -> list[str]:
    """Return the guards that are no promises, and the condition: they select among the variants."""
    guards = [kernel.guards[guard] for guard in variant.guards]
    texts = [guard.text for guard in guards if not guard.is_promise]
    return texts if variant.condition is None else [*texts, to_text(variant.condition)]


def _pairs(values: NamedValues) -> str:
    return " ".join(f"{name}={_value_text(value)}" for name, value in values)


def _value_text(value: Value) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
