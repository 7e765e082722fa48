"""Bind a signature and constants to a kernel's parameters.

A parameter is one of three kinds: a run-time parameter with a type and a promised divisibility
(`"*fp16:16"`), a value fixed by the signature (`"i32=1"`), or a constant. Fixed values and
constants are alike in the kernel: compile-time Python values.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias, TypeGuard
from typing import cast as type_cast

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language.arguments import default_expressions
from aotc.frontend.language.constants import unwrap
from aotc.frontend.language.convert import bitcast, integer_range
from aotc.frontend.language.descriptors import check_block_shape
from aotc.frontend.python.calls import call_operand
from aotc.frontend.python.decorated import decorators_of
from aotc.frontend.python.frame import Program
from aotc.frontend.python.named_functions import function_named, is_function_name
from aotc.frontend.python.resolve import bindings, decorator_calls, decorator_names
from aotc.frontend.python.scope import is_constexpr_annotation
from aotc.frontend.values import DTYPE_NAMES, Argument, Function, Operand, Record, RecordType, show
from aotc.ir.core import Value
from aotc.ir.diagnostics import CompileError, at, did_you_mean
from aotc.ir.params import BOUNDS, NOALIAS, ParamInfo
from aotc.ir.types import (
    FP8E4B15,
    SCALARS,
    U8,
    VALUE_SCALARS,
    DescriptorType,
    PointerType,
    ScalarType,
)
from aotc.tuple_constant import tuple_of
from aotc.tuple_type import TupleType, is_tuple_type, parse_tuple_type

_TYPE = re.compile(
    r"^(?P<star>(?:\*k?)?)(?P<name>\w+)(?::(?P<divisibility>\d+))?(?:=(?P<value>.+))?$"
)
_DESCRIPTOR = re.compile(r"^tensordesc<(?P<name>\w+)\[(?P<block>\d+(?:,\d+)*)\](?P<fill>,nan)?>$")
_EXAMPLES = "'*fp16:16', 'i32', 'i32:16', 'i32 in 1..4096' or 'i32=1'"


ArgumentType: TypeAlias = ScalarType | PointerType | DescriptorType


@dataclass(frozen=True)
class Arguments:
    """Arguments of a kernel: run-time parameters in order, and every constant by name.

    A tuple is passed as its items, each a parameter or a constant under its name in launches.
    """

    params: tuple[ParamInfo, ...]
    declared: tuple[ArgumentType, ...]
    constants: Mapping[str, Operand] = field(default_factory=dict[str, Operand])
    tuples: Mapping[str, TupleType] = field(default_factory=dict[str, TupleType])

    @property
    def types(self) -> tuple[ArgumentType, ...]:
        """The types in launches: hosts pass a pointer to fp8e4b15 as one to bytes."""
        return tuple(PointerType(U8) if _is_to_fp8e4b15(kind) else kind for kind in self.declared)

    def cast_to_declared(self, emit: Emitter, passed: Sequence[Value]) -> list[Value]:
        """Return the run-time parameters cast to their declared types."""
        return [
            bitcast(emit, value, kind) if _is_to_fp8e4b15(kind) else value
            for value, kind in zip(passed, self.declared, strict=True)
        ]

    def values(self, passed: Sequence[Operand]) -> dict[str, Operand]:
        """Return the operand of each parameter, given the run-time values; tuples are assembled."""
        names = [info.name for info in self.params]
        values = {**self.constants, **dict(zip(names, passed, strict=True))}
        tuples = {name: _tuple_of(name, kind, values) for name, kind in self.tuples.items()}
        items = {leaf for name, kind in self.tuples.items() for leaf, _ in kind.leaves(name)}
        return {**{name: value for name, value in values.items() if name not in items}, **tuples}


def _is_to_fp8e4b15(kind: ArgumentType) -> TypeGuard[PointerType]:
    return kind == PointerType(FP8E4B15)


def _tuple_of(name: str, kind: TupleType, values: Mapping[str, Operand]) -> Operand:
    pairs = zip(kind.keys(name), kind.items, strict=True)
    items = [
        values[key] if isinstance(item, str) else _tuple_of(key, item, values)
        for key, item in pairs
    ]
    return Record.of(RecordType(name, kind.fields), items) if kind.fields else tuple(items)


def bind_parameters(
    program: Program,
    function: Function,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    num_warps: int,
) -> Arguments:
    """Bind each parameter of a kernel to a type or a constant.

    Raises: CompileError for a parameter without type or value, or an unknown name.
    """
    parameters = function.node.args
    parameter_nodes = _parameters(function)
    for stars, variadic in (("*", parameters.vararg), ("**", parameters.kwarg)):
        if variadic is not None:
            raise mistake(
                f"a kernel cannot have `*` or `**` parameters, got `{stars}{variadic.arg}`",
                loc=function.file.loc(variadic),
                remedy="name each parameter, or pass a tuple",
            )
    names = [parameter.arg for parameter in parameter_nodes]
    for entries, source in ((signature, "signature"), (constants, "constants")):
        for name in entries:
            if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise mistake(f"the {source} must map names of parameters, got {name!r}")
            if name not in names:
                raise mistake(
                    f"{name!r} of the {source} is no parameter of {function.qualname}",
                    loc=function.file.loc(function.node),
                    remedy=did_you_mean(name, names) or f"its parameters are {', '.join(names)}",
                )
    values_by_name: dict[str, Operand] = {
        name: constant_operand(value, name) for name, value in constants.items()
    }
    runtime: dict[str, tuple[tuple[ParamInfo, ArgumentType], ...]] = {}
    fixed: dict[str, Operand] = {}
    tuples: dict[str, TupleType] = {}
    for parameter in parameter_nodes:
        if parameter.arg in values_by_name or parameter.arg not in signature:
            continue
        with at(function.file.loc(parameter)):
            if is_tuple_type(str(signature[parameter.arg])):
                parsed, tuples[parameter.arg] = _parse_tuple(
                    program, function, parameter.arg, signature[parameter.arg], names
                )
            else:
                parsed = {parameter.arg: parse_argument(parameter.arg, signature[parameter.arg])}
        passed = tuple(item for item in parsed.values() if not isinstance(item, _Fixed))
        values = {name: item.value for name, item in parsed.items() if isinstance(item, _Fixed)}
        if not passed and parameter.arg not in tuples:
            values_by_name |= values
        elif is_constexpr_annotation(parameter.annotation):
            raise mistake(
                f"{parameter.arg} is a tl.constexpr parameter: it needs a value, not the type "
                f"{signature[parameter.arg]!r}",
                loc=function.file.loc(parameter),
                remedy="give it among the constants, configs or choices",
            )
        else:
            runtime[parameter.arg] = passed
            fixed |= values
    _add_default_constants(program, function, values_by_name, runtime, num_warps)
    ordered = [item for name in names for item in runtime.get(name, ())]
    return Arguments(
        tuple(info for info, _ in ordered),
        tuple(kind for _, kind in ordered),
        {**{name: values_by_name[name] for name in names if name in values_by_name}, **fixed},
        tuples,
    )


def _parse_tuple(
    program: Program, function: Function, name: str, text: str, names: Sequence[str]
) -> tuple[dict[str, tuple[ParamInfo, ArgumentType] | _Fixed], TupleType]:
    """Parse a tuple type into the type of each launch argument and the tuple's structure."""
    try:
        kind = parse_tuple_type(text)
    except ValueError as error:
        raise mistake(f"the type of {name}: {error}") from None
    clash = next((leaf for leaf, _ in kind.leaves(name) if leaf in names), None)
    if clash is not None:
        raise mistake(
            f"an item of {name} is passed as {clash}, which is a parameter as well",
            remedy="rename one of them",
        )
    parsed: dict[str, tuple[ParamInfo, ArgumentType] | _Fixed] = {}
    for leaf, item_type in kind.leaves(name):
        item = _function_item(program, function, item_type)
        parsed[leaf] = parse_argument(leaf, item_type) if item is None else _Fixed(item)
    return parsed, kind


def _function_item(program: Program, function: Function, text: str) -> Operand:
    """Return the function named by a tuple item, or None for a type."""
    name = text.strip()
    is_type = name in ("none", "None") or DTYPE_NAMES.get(name, name) in SCALARS
    if is_type or not is_function_name(name):
        return None
    try:
        return function_named(program, function.file, name)
    except CompileError:
        return None


def _parameters(function: Function) -> list[ast.arg]:
    parameters = function.node.args
    return [*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs]


@dataclass(frozen=True)
class _Fixed:
    value: Operand


def parse_argument(name: str, text: str) -> tuple[ParamInfo, ArgumentType] | _Fixed:
    """Parse one entry of a signature. Raises: CompileError at the parameter."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise mistake(f"the type of {name} must be a string like {_EXAMPLES}, got {text!r}")
    if text.strip() == "none":
        return _Fixed(None)
    if text.lstrip().startswith("tensordesc"):
        return ParamInfo(name), _descriptor(name, text)
    ranged = BOUNDS.match(text.strip())
    whole = text.rstrip() if ranged is None else ranged["type"]
    plain = whole.removesuffix(f" {NOALIAS}")
    match, noalias = _TYPE.match(plain.replace(" ", "")), plain != whole
    name_of_type = "" if match is None else DTYPE_NAMES.get(match["name"], match["name"])
    if match is not None and name_of_type == FP8E4B15.name and not match["star"]:
        raise mistake(
            f"no scalar of a host has the type of {name}, {text!r}",
            remedy="pass a byte, 'u8', and read it with .to(tl.float8e4b15, bitcast=True)",
        )
    kind = VALUE_SCALARS.get(name_of_type)
    if match is None or kind is None:
        type_names = [*SCALARS, *(f"*{scalar}" for scalar in SCALARS)]
        raise mistake(
            f"the type of {name} must be like {_EXAMPLES}, got {text!r}",
            remedy="`?` is for manifests, which build both variants; leave it out here"
            if text.endswith("?")
            else did_you_mean(text, type_names),
        )
    if match["value"] is not None:
        if match["star"]:
            raise mistake(f"only a scalar can have a fixed value, {name} is {text!r}")
        if ranged is not None:
            raise mistake(f"{name} has a value or a range, not both, got {text!r}")
        return _Fixed(_fixed_value(name, kind, match["value"]))
    divisibility = int(match["divisibility"] or 1)
    if divisibility < 1 or (divisibility > 1 and kind.is_float and not match["star"]):
        raise mistake(
            f"the divisibility of {name} must be a positive number of an integer, got {text!r}"
        )
    if noalias and not match["star"]:
        raise mistake(f"only a pointer can be promised to alias no other, {name} is {text!r}")
    bounds = None if ranged is None else (int(ranged["low"]), int(ranged["high"]))
    if bounds is not None:
        held = None if match["star"] or not kind.is_int else integer_range(kind)
        if held is None or not held[0] <= bounds[0] <= bounds[1] <= held[1]:
            raise mistake(
                f"the range of {name} must be of values that an integer has, got {text!r}"
            )
    kind = PointerType(kind) if match["star"] else kind
    return ParamInfo(name, divisibility, noalias=noalias, bounds=bounds), kind


def _descriptor(name: str, text: str) -> DescriptorType:
    """Parse the type of a tensor descriptor. Raises: CompileError."""
    match = _DESCRIPTOR.match(text.replace(" ", ""))
    kind = None if match is None else SCALARS.get(DTYPE_NAMES.get(match["name"], match["name"]))
    extents = () if match is None else match["block"].split(",")
    block: tuple[int, ...] = tuple(map(int, extents))
    if match is None or kind is None:
        raise mistake(
            f"the type of {name} must be like 'tensordesc<bf16[128,64]>', got {text!r}",
            remedy="extents are numbers here; `,nan` after them fills with NaN",
        )
    check_block_shape(f"the block_shape of {name}", DescriptorType(kind, block))
    if match["fill"] and not (kind.is_float and kind.bits > 8):
        raise mistake(f"only floats of 16 bits or more can be filled with NaN, {name} is {kind}")
    return DescriptorType(kind, block, bool(match["fill"]))


def _fixed_value(name: str, kind: ScalarType, text: str) -> Operand:
    if text == "None":
        return None
    try:
        if kind.is_float:
            return float(text)
        if kind.is_bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        value = int(text, 0)
    except (KeyError, ValueError):
        raise mistake(f"the fixed value of {name} must be of type {kind}, got {text!r}") from None
    low, high = integer_range(kind)
    if not low <= value <= high:
        raise mistake(f"the fixed value of {name} must be from {low} to {high}, got {value}")
    return value


def constant_operand(value: object, name: str) -> Operand:
    """Convert a constant of a manifest or caller to an operand.

    The name of a dtype becomes the dtype; "None" becomes None, since manifests have no null. A
    tuple may be a text, as in "(1, 'fp16')".

    Raises: CompileError for a value of an unusable type.
    """
    if value == "None":
        return None
    if isinstance(value, str) and (items := tuple_of(value)) is not None:
        return constant_operand(items, name)
    if isinstance(value, str):
        dtype_name = value.removeprefix("*").removeprefix("tl.")
        dtype = VALUE_SCALARS.get(DTYPE_NAMES.get(dtype_name, dtype_name))
        if dtype is None:
            return value
        return PointerType(dtype) if value.startswith("*") else dtype
    if isinstance(value, tuple | list):
        items = type_cast("tuple[object, ...]", value)
        return tuple(constant_operand(item, name) for item in items)
    if value is None or isinstance(value, int | float | ScalarType | PointerType):
        return value
    raise mistake(
        f"the constant {name} must be a number, a truth value, a string, a dtype or None, "
        f"got {value!r}"
    )


def _add_default_constants(
    program: Program,
    function: Function,
    constants: dict[str, Operand],
    runtime: Mapping[str, object],
    num_warps: int,
) -> None:
    """Add constants from defaults, heuristics and the configuration."""
    defaults = default_expressions(function.node.args)
    heuristics = heuristics_of(program, function)
    missing: list[ast.arg] = []
    for parameter in _parameters(function):
        name = parameter.arg
        if name in constants or name in runtime or name in heuristics:
            continue
        if name in defaults:
            constants[name] = unwrap(program.host_frame(function.file).visit(defaults[name]))
        elif name == "num_warps":
            constants[name] = num_warps
        else:
            missing.append(parameter)
    if missing:
        _report_missing(function, missing)
    names = [parameter.arg for parameter in _parameters(function)]
    for name, heuristic in heuristics.items():
        # Heuristics may also choose launch options such as num_warps; here the caller does.
        if name in names and name not in constants and name not in runtime:
            args = {
                **{parameter_name: Argument(parameter_name) for parameter_name in runtime},
                **constants,
            }
            constants[name] = _evaluate_heuristic(program, function, name, heuristic, args)


def _report_missing(function: Function, missing: list[ast.arg]) -> None:
    parameter = missing[0]
    others_missing = (
        f" (nor have {', '.join(other.arg for other in missing[1:])})" if missing[1:] else ""
    )
    constexpr = is_constexpr_annotation(parameter.annotation)
    lacking = "value" if constexpr else "type"
    where = "among the constants" if constexpr else f"in the signature, such as {_EXAMPLES}"
    raise mistake(
        f"the parameter {parameter.arg} of {function.qualname} has no {lacking}{others_missing}",
        loc=function.file.loc(parameter),
        remedy=f"give it {where}",
    )


def heuristics_of(program: Program, function: Function) -> dict[str, Operand]:
    """Return the heuristics by parameter; the outermost decorator runs first."""
    heuristics: dict[str, Operand] = {}
    for call in decorator_calls(function.node, "heuristics"):
        keyword_values = [keyword.value for keyword in call.keywords if keyword.arg == "values"]
        for node in (*call.args[:1], *keyword_values):
            values = program.host_frame(function.file).visit(node)
            heuristics |= (
                type_cast("dict[str, Operand]", values) if isinstance(values, dict) else {}
            )
    if heuristics or not _may_have_other_decorators(function):
        return heuristics
    for decorator in decorators_of(program, function, function.node.name):
        values = decorator.kwargs.get("values", decorator.args[0] if decorator.args else None)
        if decorator.name == "heuristics" and isinstance(values, dict):
            heuristics = {**type_cast("dict[str, Operand]", values), **heuristics}
    return heuristics


def heuristic_problems(program: Program, function: Function, constant: Operand) -> dict[str, str]:
    """Return the reason each heuristic needs a launch, or "" if it needs none.

    Heuristics see unknown, non-None arguments; all other constants equal `constant`.
    """
    heuristics = heuristics_of(program, function)
    args: dict[str, Operand] = {
        parameter.arg: constant
        if is_constexpr_annotation(parameter.annotation)
        else Argument(parameter.arg)
        for parameter in _parameters(function)
        if parameter.arg not in heuristics
    }
    problems: dict[str, str] = {}
    for name, heuristic in heuristics.items():
        with _recording_problem(problems, name):
            try:
                args[name] = _evaluate_heuristic(program, function, name, heuristic, dict(args))
            except CompileError:
                # Later heuristics may read the launch's own value of this name.
                passed = {**args, name: constant}
                args[name] = _evaluate_heuristic(program, function, name, heuristic, passed)
                raise
    return problems


@contextmanager
def _recording_problem(problems: dict[str, str], name: str) -> Generator[None]:
    """Record the error raised inside the `with` statement for a name, or ""."""
    problems[name] = ""
    try:
        yield
    except CompileError as error:
        problems[name] = error.message.rpartition("at build time: ")[2]


def _may_have_other_decorators(function: Function) -> bool:
    """Return whether a kernel may have other heuristics: foreign or applied decorators."""
    has_only_known = all(name in ("jit", "autotune") for name in decorator_names(function.node))
    is_rebound = len(bindings(function.file).get(function.node.name, ())) > 1
    return not has_only_known or is_rebound or bool(function.decorators)


def _evaluate_heuristic(
    program: Program,
    function: Function,
    name: str,
    heuristic: Operand,
    args: dict[str, Operand],
) -> Operand:
    frame = program.host_frame(function.file)
    try:
        value = unwrap(call_operand(frame, heuristic, [args], {}))
    except CompileError as error:
        raise CompileError(
            f"the heuristic of {name} cannot be evaluated at build time: {error.message}",
            error.loc,
            remedy=f"give {name} among the constants or choices; or in the configs, with what must hold of "
            "a launch in `where`",
        ) from error
    if value is None or isinstance(value, int | float | str | tuple | ScalarType):
        return type_cast("Operand", value)
    raise mistake(f"the heuristic of {name} must give a constant, got {show(value)}")
