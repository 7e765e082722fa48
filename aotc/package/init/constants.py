"""Infer the values of a kernel's `tl.constexpr` parameters from its source and launches.

- A literal passed by every launch is a constant; differing literals are choices.
- A switch, or a parameter compared with constants, is a choice between all of them.
- A block equal to `next_power_of_2(argument)` gets a config for each of some sizes; `where` bounds
  the argument by it.
- Parameters set by the autotuner or `@triton.heuristics`, or never passed, are omitted.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from aotc.config import CONFIG_KEYS, config_value_problem
from aotc.frontend.python.resolve import dotted_name
from aotc.package.init.arguments import is_block_name
from aotc.package.init.draft import listed
from aotc.package.init.launches import Host
from aotc.package.init.samples import Samples
from aotc.package.init.subject import Line, Subject, todo
from aotc.package.init.use import Use
from aotc.package.manifest.toml_text import toml

_ROW_BLOCKS = (1024, 2048, 4096, 8192)
_UNROLLED_ROW_BLOCKS = (4, 8, 16)  # extents of unrolled loops
DTYPES = ("bf16", "fp16", "fp32")
_WARPS, _ROW_WARPS = 4, 8
BLOCK, _TRIPS = 64, 4
_MAX_AXES = 3  # larger tensors are too slow to interpret
_MAX_DEPTH = 6
_MAX_SAMPLE, _MAX_EXTENT = 8192, 512  # larger ones are too slow to interpret
_SWITCH_NAMES = re.compile(
    r"^(is|has|use|with|enable|do|should|apply|store|return)_", re.IGNORECASE
)

_EXTENT_NAMES = re.compile(r"dim|width|col(s|umns)|hidden", re.IGNORECASE)


@dataclass
class Constants:
    """The lines of constants, choices and configs, and the conditions of `where`."""

    constants: dict[str, Line] = field(default_factory=dict[str, Line])
    choices: dict[str, Line] = field(default_factory=dict[str, Line])
    configs: dict[str, Line] = field(default_factory=dict[str, Line])
    where: list[str] = field(default_factory=list[str])
    counts: set[str] = field(default_factory=set[str])
    """Arguments bounding unrolled loops: small, and seldom a multiple of 16."""


def constants_of(
    subject: Subject,
    tuned: Collection[str],
    *,
    is_tuned: bool,
    integers: Collection[str],
    dtypes: Sequence[str] = DTYPES,
) -> Constants:
    """Return the values of all parameters except the `tuned` ones.

    `integers` are the integer arguments; `dtypes` are the choices for dtype parameters.
    """
    lines = Constants()
    listed = sorted(
        subject.function.constexprs, key=lambda constexpr: _is_block(subject, constexpr.name)
    )
    for parameter in listed:  # blocks last: they may be computed from the others
        name = parameter.name
        if name in tuned or name in CONFIG_KEYS:
            continue
        if name in subject.computed or (name in subject.defaults and not subject.is_passed(name)):
            continue  # computed by @triton.heuristics, or the default
        _place(subject, name, lines, integers, dtypes)
    if is_tuned:
        for name, line in lines.configs.items():
            lines.choices[name] = line  # an autotuner's configs take no others
        lines.configs.clear()
        lines.where.clear()
    else:
        lines.configs |= _options(subject, _ROW_WARPS if lines.where else _WARPS)
    return lines


def _place(
    subject: Subject,
    name: str,
    lines: Constants,
    integers: Collection[str],
    dtypes: Sequence[str],
) -> None:
    values = _literals(subject, name)
    if values is not None:
        if values == [None]:
            if name not in subject.defaults:
                lines.constants[name] = todo('""', "launches pass None, which no constant can be")
        elif None in values:
            lines.choices[name] = todo(_listed(values), "launches pass None too")
        elif len(values) == 1:
            lines.constants[name] = Line(toml(values[0]), is_given=True)
        else:
            lines.choices[name] = Line(_listed(values), is_given=True)
        return
    use = subject.uses.of(name)
    compared = _compared(subject, name)
    if use & Use.DTYPE or name.lower().endswith("dtype"):
        is_sum = "acc" in name.lower()  # accumulators are wider than their operands
        lines.choices[name] = Line(_listed(["fp32"] if is_sum else dtypes))
    elif "precision" in name.lower():
        lines.constants[name] = todo('"tf32"', _passed(subject, name))
    elif _is_switch(subject, name, use):
        lines.choices[name] = Line("[true, false]")
    elif len(compared) > 1:
        lines.choices[name] = Line(
            _listed(compared), "what the kernel compares it with; launches may pass others"
        )
    elif _is_row_block(subject, name, lines, integers):
        blocks = _UNROLLED_ROW_BLOCKS if use & Use.TRIPS else _ROW_BLOCKS
        lines.configs[name] = Line(_listed(blocks), "those that your rows need")
    elif is_block_name(name):
        sample = _sample(subject, name, lines)
        block = _TRIPS if use & Use.TRIPS else BLOCK
        size = sample if isinstance(sample, int) and sample else block
        lines.configs[name] = todo(f"[{size}]", "the sizes that launches pass")
    else:
        sample = _sample(subject, name, lines)
        if isinstance(sample, int) and sample > _MAX_EXTENT:
            sample = None
        guess = compared[0] if compared else _guess(subject, name, use)
        value = toml(guess if sample is None else sample)
        lines.constants[name] = todo(value, _passed(subject, name))


def _sample(subject: Subject, name: str, lines: Constants) -> int | str | None:
    """Return a value that a launch computes from defaults and the other guesses, None if open."""
    guesses = {**lines.constants, **lines.choices, **lines.configs}
    for launch in subject.launches:
        if name not in launch.arguments:
            continue
        values = {
            ast.unparse(launch.arguments[other]): choices[0]
            for other, line in guesses.items()
            if other in launch.arguments
            and (choices := listed(line) or listed(replace(line, value=f"[{line.value}]")))
        }
        value = _sampled(Samples(launch.host, values), launch.arguments[name])
        is_fitting = not isinstance(value, int) or 0 <= value <= _MAX_SAMPLE
        if isinstance(value, int | str) and is_fitting:
            return value
    return None


def _sampled(samples: Samples, node: ast.expr) -> object:
    try:
        return samples.value(node)
    except LookupError:
        return None


def _guess(subject: Subject, name: str, use: Use) -> int:
    """Guess a value consistent with the other guesses: tiles and tensors of 64 a side."""
    if use & Use.TRIPS:
        return _TRIPS
    if use & (Use.EXTENT | Use.BOUND):
        return BLOCK
    axes = _strides(subject, name)
    if axes:
        return int(BLOCK ** min(max(axes), _MAX_AXES))
    if "stride" not in name.lower():
        return BLOCK if _EXTENT_NAMES.search(name) else 1
    # Strides of one tensor differ in the last letter: `stride_am`, `stride_ak`.
    alike = [
        constexpr.name
        for constexpr in subject.function.constexprs
        if constexpr.name[:-1] == name[:-1]
    ]
    axis = len(alike) - 1 - alike.index(name) if len(alike) > 1 else 1
    return int(BLOCK ** min(axis, _MAX_AXES))


def _strides(subject: Subject, name: str) -> list[int]:
    """Return the axes of the strides passed by launches, counted from the last named axis."""
    axes: list[int] = []
    for launch in subject.launches:
        named = {key: _stride(value) for key, value in launch.arguments.items()}
        tensor, axis = named.get(name, ("", 0))
        if tensor:
            last = max(other for of, other in named.values() if of == tensor)
            axes.append(last - axis if axis >= 0 else -1 - axis)
    return axes


def _stride(node: ast.expr) -> tuple[str, int]:
    """Return x and i of `x.stride(i)`, or nothing."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
        return "", 0
    try:
        axis = ast.literal_eval(node.args[0])
    except ValueError:
        return "", 0
    is_stride = node.func.attr == "stride" and type(axis) is int
    return (ast.unparse(node.func.value), axis) if is_stride else ("", 0)


def _is_block(subject: Subject, name: str) -> bool:
    return bool(subject.uses.of(name) & Use.EXTENT or is_block_name(name))


def _literals(subject: Subject, name: str) -> list[object] | None:
    """Return the distinct values passed by launches, or None unless all are literals."""
    values: list[object] = []
    for launch in subject.launches:
        try:
            if name in launch.arguments:
                value = launch.host.literal(launch.arguments[name])
            elif launch.is_whole:
                value = subject.default(name)
            else:
                return None
        except LookupError:
            return None
        if (type(value), value) not in [(type(other), other) for other in values]:
            values.append(value)
    return values or None


def _compared(subject: Subject, name: str) -> list[object]:
    """Return the constants compared with a parameter."""
    values: list[object] = []
    for node in subject.uses.compared.get(name, ()):
        value = _literal(subject.module, node)
        if value is not None and value not in values:
            values.append(value)
    return values


def _is_switch(subject: Subject, name: str, use: Use) -> bool:
    kinds = {host.kind(node) for host, node in subject.given(name)}
    if kinds == {"bool"} or (name in subject.defaults and _is_bool(subject.defaults[name])):
        return True
    if kinds - {"", "bool"} or use & (Use.EXTENT | Use.OFFSET | Use.INTEGER):
        return False
    return bool(use & Use.CONDITION or _SWITCH_NAMES.match(name))


def _is_bool(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def _is_row_block(subject: Subject, name: str, lines: Constants, integers: Collection[str]) -> bool:
    """Return whether a parameter is the next power of two of an argument; add its `where`."""
    conditions: set[str] = set()
    for launch in subject.launches:
        if name not in launch.arguments:
            return False
        extent = _rounded_up(launch.host, launch.arguments[name], 0)
        text = ast.unparse(extent) if extent is not None else ""
        passed = [key for key, value in launch.arguments.items() if ast.unparse(value) == text]
        argument = next((key for key in passed if key in integers), None)
        if argument is None:
            return False
        conditions.add(f"{argument} <= {name}")
        if subject.uses.of(name) & Use.TRIPS:
            lines.counts.add(argument)
    lines.where += sorted(conditions)
    return bool(conditions)


def _rounded_up(host: Host, node: ast.expr, depth: int) -> ast.expr | None:
    """Return x of `next_power_of_2(x)`, also inside `min`, `max` and called functions."""
    expanded = host.expand(node)
    if depth > _MAX_DEPTH or isinstance(expanded, ast.FunctionDef):
        return None
    if isinstance(expanded, ast.Subscript) and isinstance(expanded.slice, ast.Constant):
        return _returned(host, expanded.value, expanded.slice.value, depth)
    if not isinstance(expanded, ast.Call):
        return None
    called = dotted_name(expanded.func).rpartition(".")[2]
    if called == "next_power_of_2" and len(expanded.args) == 1:
        return expanded.args[0]
    if called in ("min", "max"):
        parts = (_rounded_up(host, operand, depth + 1) for operand in expanded.args)
        return next((part for part in parts if part is not None), None)
    return _returned(host, expanded, None, depth)


def _returned(host: Host, call: ast.expr, index: object, depth: int) -> ast.expr | None:
    """Apply `_rounded_up` to a host function's return value, or to one item of it."""
    function = host.function(call)
    if function is None or not isinstance(call, ast.Call):
        return None
    inner = Host(host.survey, function.file, function.node)
    returned = [child.value for child in ast.walk(function.node) if isinstance(child, ast.Return)]
    if len(returned) != 1 or returned[0] is None:
        return None
    value = returned[0]
    if index is not None:
        items = value.elts if isinstance(value, ast.Tuple) else []
        if not isinstance(index, int) or index >= len(items):
            return None
        value = items[index]
    extent = _rounded_up(inner, value, depth + 1)
    arguments = dict(zip(inner.parameters, call.args, strict=False))
    return arguments.get(extent.id) if isinstance(extent, ast.Name) else None


def _options(subject: Subject, num_warps: int) -> dict[str, Line]:
    """Return lines for the config keys set by launches."""
    lines: dict[str, Line] = {}
    keys = (key for launch in subject.launches for key in launch.options if key in CONFIG_KEYS)
    for key in dict.fromkeys(keys):
        nodes = [
            (launch.host, launch.options[key])
            for launch in subject.launches
            if key in launch.options
        ]
        values = [value for host, node in nodes for value in _each_literal(host, node)]
        literals = [literal for literal in dict.fromkeys(values) if literal is not None]
        valid = [
            literal
            for literal in literals
            if isinstance(literal, int | bool) and not config_value_problem(key, literal)
        ]
        if valid and len(valid) == len(dict.fromkeys(values)):
            lines[key] = Line(_listed(valid))
        elif key == "num_warps":
            text = ast.unparse(nodes[0][1])
            lines[key] = Line(_listed(valid or [num_warps]), f"launches pass {text}")
    return lines


def _each_literal(host: Host, node: ast.expr) -> list[object]:
    """Return an expression's literals, one per branch of conditionals; None if unknown."""
    expanded = host.expand(node)
    if isinstance(expanded, ast.IfExp):
        return [*_each_literal(host, expanded.body), *_each_literal(host, expanded.orelse)]
    return [_literal(host, node)]


def _literal(host: Host, node: ast.expr) -> object:
    try:
        return host.literal(node)
    except LookupError:
        return None


def _passed(subject: Subject, name: str) -> str:
    """Return a note on the expressions launches pass for a parameter."""
    texts = dict.fromkeys(ast.unparse(node) for _, node in subject.given(name))
    short = [text for text in texts if len(text) < 40 and text.isprintable()]
    return f"launches pass {', '.join(short)}" if short else "no launch is in this file"


def _listed(values: Iterable[object]) -> str:
    return f"[{', '.join(toml(literal) for literal in values if literal is not None)}]"


def default_line(subject: Subject, name: str) -> Line | None:
    """Return an integer default as a constant for expressions of the manifest."""
    try:
        value = subject.default(name)
    except LookupError:
        return None
    return Line(toml(value)) if isinstance(value, int) else None
