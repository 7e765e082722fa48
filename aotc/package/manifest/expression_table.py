"""Parse expressions in a manifest, and check every name in them against the kernel.

Invariant: every name in a returned expression is an integer argument, an extent of a tensor
descriptor, a `tl.constexpr` parameter or a config key.
"""

from __future__ import annotations

from collections.abc import Mapping

from aotc.config import CONFIG_KEYS
from aotc.ir import expression
from aotc.ir.diagnostics import Loc, did_you_mean
from aotc.ir.expression import ExpressionError
from aotc.ir.types import SCALARS
from aotc.package.manifest.argument_type import ArgumentType
from aotc.package.manifest.parameters import Function
from aotc.package.manifest.spec import ManifestExpression
from aotc.package.manifest.toml_table import Table

MAX_GRID_RANK = 3


def read_grid(
    table: Table, function: Function, signature: Mapping[str, ArgumentType]
) -> tuple[ManifestExpression, ...]:
    """Return the expressions of a table's required `grid`.

    Raises:
        ManifestError: there are not 1 to 3 of them, or one is wrong.
    """
    texts = table.strings("grid")
    if not 1 <= len(texts) <= MAX_GRID_RANK:
        message = f"expected 1 to {MAX_GRID_RANK} grid expressions, got {len(texts)}"
        raise table.wrong("grid", message)
    return tuple(
        read_expression(text, table.element("grid", index), function, signature)
        for index, text in enumerate(texts)
    )


def read_expression(
    text: str, loc: Loc, function: Function, signature: Mapping[str, ArgumentType]
) -> ManifestExpression:
    """Parse `text` and check that every name in it is an integer or a tensor's extent."""
    try:
        parsed = ManifestExpression(expression.parse(text), loc)
    except ExpressionError as error:
        raise ManifestExpression(expression.Integer(0), loc).error(error) from None
    constants = [*(parameter.name for parameter in function.constexprs), *CONFIG_KEYS]
    for node in expression.walk(parsed.root):
        if not isinstance(node, expression.Name | expression.Extent):
            continue
        argument = signature.get(node.name)
        problem = remedy = ""
        if isinstance(node, expression.Extent):
            if argument is None or argument.kind != "tensordesc":
                problem = f"`{node.name}` is no tensor descriptor"
            elif node.dim >= len(argument.block):
                problem = f"`{node.name}` has {len(argument.block)} dimensions"
        elif argument is not None:
            element = SCALARS.get(argument.element)
            if argument.kind != "scalar" or (element is not None and not element.is_int):
                problem = f"expected an integer argument, `{node.name}` is not one"
        elif node.name not in constants:
            names = [*signature, *constants]
            problem = f"`{node.name}` is unknown"
            remedy = did_you_mean(node.name, names) or f"there are {', '.join(names)}"
        if problem:
            raise parsed.error(ExpressionError(problem, node.col, len(node.name)), remedy)
    return parsed
