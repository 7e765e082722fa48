"""Format selections as text, and as plain data for `--json`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from aotc.ir.diagnostics import one_line
from aotc.ir.expression import to_text
from aotc.package.archive.index import Archive, Kernel, split_combination
from aotc.package.archive.label import value_text
from aotc.package.archive.selection import Branch, Leaf, Selection, Tree

Data: TypeAlias = dict[str, Any]

_INDENT = "  "


def text(archive: Archive) -> str:
    """Format the selections of all kernels, each tree as conditions down to its configs."""
    blocks = [
        "\n".join(map(one_line, _lines_of(kernel, selection)))
        for kernel in archive.kernels
        for selection in kernel.selections
    ]
    blocks += [
        one_line(f"{kernel.name}: the first config, in the manifest's order, whose guards hold")
        for kernel in archive.kernels
        if not kernel.selections
    ]
    return "\n\n".join(blocks)


def describe(kernel: Kernel) -> list[Data]:
    """Return a kernel's selections as JSON-ready data, without a GPU's name if for any GPU."""
    described: list[Data] = []
    for selection in kernel.selections:
        types, choices = split_combination(
            kernel.type_variables, kernel.choices, selection.combination
        )
        described.append(
            {
                "target": selection.target,
                "gpu": selection.gpu or None,
                "types": dict(zip((v.name for v in kernel.type_variables), types, strict=True)),
                "choices": dict(zip((c.name for c in kernel.choices), choices, strict=True)),
                "tree": _data_of(kernel, selection.tree),
            }
        )
    return described


def _data_of(kernel: Kernel, tree: Tree) -> object:
    if not isinstance(tree, Branch):
        return [dict(kernel.configs[config]) for config in tree]
    return {
        "feature": to_text(tree.feature),
        "threshold": tree.threshold,
        "low": _data_of(kernel, tree.low),
        "high": _data_of(kernel, tree.high),
    }


def _lines_of(kernel: Kernel, selection: Selection) -> Iterator[str]:
    types, choices = split_combination(kernel.type_variables, kernel.choices, selection.combination)
    named = [f"{v.name}={dtype}" for v, dtype in zip(kernel.type_variables, types, strict=True)]
    named += [f"{c.name}={value_text(v)}" for c, v in zip(kernel.choices, choices, strict=True)]
    subject = f"{kernel.name} for {selection.target}, {selection.gpu or 'any GPU'}"
    yield f"{', '.join([subject, *named])}:"
    yield from _tree_lines(kernel, selection.tree, _INDENT)


def _tree_lines(kernel: Kernel, tree: Tree, indent: str) -> Iterator[str]:
    word = "if"
    while isinstance(tree, Branch):
        yield f"{indent}{word} {to_text(tree.feature)} <= {tree.threshold}:"
        yield from _tree_lines(kernel, tree.low, indent + _INDENT)
        tree, word = tree.high, "elif"
    if word == "elif":
        yield f"{indent}else:"
        indent += _INDENT
    yield indent + _configs_text(kernel, tree)


def _configs_text(kernel: Kernel, leaf: Leaf) -> str:
    configs = [
        " ".join(f"{name}={value_text(value)}" for name, value in kernel.configs[config])
        for config in leaf
    ]
    return ", then ".join(configs)
