"""Bind a call's arguments to parameters by Python's rules.

Functions of the source, lambdas, functions of the language, records and ranges all declare `Parameters`.
The caller evaluates defaults.

A kernel's own parameters get their types and values in `signature.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from aotc.frontend.emitter import mistake
from aotc.frontend.values import Operand, Parameters
from aotc.ir.diagnostics import CompileError, did_you_mean


def bind_arguments(
    parameters: Parameters, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> dict[str, Operand]:
    """Return the arguments by parameter name; parameters left to their defaults are absent.

    Raises: CompileError if there are too many, or one is missing, unknown or given twice.
    """
    positional = parameters.positional
    values: dict[str, Operand] = dict(zip(positional, args, strict=False))
    if parameters.vararg:
        values[parameters.vararg] = tuple(args[len(positional) :])
    elif len(args) > len(positional):
        most = "" if set(positional) <= set(parameters.required) else "at most "
        plural = "" if len(positional) == 1 else "s"
        raise _misfit(
            parameters,
            f"takes {most}{len(positional)} {parameters.noun}{plural}, got {len(args)}",
        )
    if parameters.kwarg:
        extras = {name: value for name, value in kwargs.items() if name not in parameters.by_name}
        values[parameters.kwarg] = extras
        kwargs = {name: value for name, value in kwargs.items() if name not in extras}
    for name, value in kwargs.items():
        if name not in parameters.by_name:
            if name in positional:
                raise _misfit(parameters, f"takes {name!r} by position only")
            kind = "parameter" if parameters.noun == "argument" else parameters.noun
            raise mistake(
                f"{parameters.owner} has no {kind} {name!r}",
                remedy=did_you_mean(name, parameters.by_name) or signature_text(parameters),
                feature=f"{parameters.owner}({name}=)",
            )
        if name in values:
            raise _misfit(parameters, f"got the {parameters.noun} {name!r} twice")
        values[name] = value
    for name in parameters.required:
        if name not in values:
            raise _misfit(parameters, f"is missing the {parameters.noun} {name!r}")
    return values


def _misfit(parameters: Parameters, misuse: str) -> CompileError:
    return mistake(f"{parameters.owner} {misuse}", remedy=signature_text(parameters))


def signature_text(parameters: Parameters) -> str:
    """Return how to call: `the signature is f(x, y=…, *…, z=…)`."""

    def shown(name: str) -> str:
        return name if name in parameters.required else f"{name}=…"

    parts = [shown(name) for name in parameters.positional]
    if parameters.num_positional_only:
        parts.insert(parameters.num_positional_only, "/")
    if parameters.vararg:
        parts.append(f"*{parameters.vararg}")
    elif parameters.keyword_only:
        parts.append("*")
    parts += [shown(name) for name in parameters.keyword_only]
    return f"the signature is {parameters.owner}({', '.join(parts)})"


def parameters_of(owner: str, node: ast.arguments, *, on_host: bool = False) -> Parameters:
    """Return the parameters of a function of the source.

    Raises: CompileError if it has `**`, unless it is code of the host.
    """
    if node.kwarg is not None and not on_host:
        raise mistake(
            f"{owner} takes `**{node.kwarg.arg}`, which is not part of the kernel language",
            remedy="name each parameter",
        )
    defaults = default_expressions(node)
    listed = [arg.arg for arg in (*node.posonlyargs, *node.args)]
    keyword_only = [arg.arg for arg in node.kwonlyargs]
    return Parameters(
        owner,
        tuple(listed),
        tuple(name for name in (*listed, *keyword_only) if name not in defaults),
        tuple(keyword_only),
        vararg="" if node.vararg is None else node.vararg.arg,
        num_positional_only=len(node.posonlyargs),
        kwarg="" if node.kwarg is None else node.kwarg.arg,
    )


def default_expressions(node: ast.arguments) -> dict[str, ast.expr]:
    """Return the default expressions by parameter name."""
    positional = [arg.arg for arg in (*node.posonlyargs, *node.args)]
    defaults = dict(zip(reversed(positional), reversed(node.defaults), strict=False))
    for arg, default in zip(node.kwonlyargs, node.kw_defaults, strict=True):
        if default is not None:
            defaults[arg.arg] = default
    return defaults
