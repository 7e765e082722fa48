"""Read a `[[kernel]]` table: signature, types, constants, choices, configs, grid, limits.

One function reads each section and checks it against the parameters of the kernel's function. Then
they are checked together: no name is given twice, and no required name is missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from aotc.config import CONFIG_KEYS, config_value_problem, renamed_key
from aotc.ir.diagnostics import Loc, ManifestError, did_you_mean, nearest
from aotc.ir.types import SCALARS
from aotc.limits import (
    COMPILE_LIMITS,
    DEFAULT_SPILL_BYTES,
    LIMIT_KEYS,
    SPILL_BYTES,
    STRICT,
    compile_limits,
    limit_problem,
)
from aotc.package.manifest import argument_type
from aotc.package.manifest.argument_type import ArgumentType
from aotc.package.manifest.bench_table import read_bench
from aotc.package.manifest.expression_table import read_expression, read_grid
from aotc.package.manifest.parameters import Function
from aotc.package.manifest.spec import (
    AutotuneConfigs,
    BenchSpec,
    CartesianConfigs,
    Configs,
    Guards,
    KernelSpec,
    ListedConfigs,
    ManifestExpression,
    VerifySpec,
    missing_constexpr,
)
from aotc.package.manifest.toml_table import Constant, Table
from aotc.package.manifest.verify_table import read_verify
from aotc.tuple_type import TupleType, is_tuple_type, names_function, parse_tuple_type

KERNEL_KEYS = (
    *("name", "source", "targets", "grid", "signature", "types", "constants", "choices"),
    *("captures", "configs", "config", "where", "guards", "limits", "verify", "bench"),
    *("enable_fp_fusion", "enable_reflect_ftz", "launch_cooperative_grid"),
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_kernel(table: Table, name: str, source: str, function: Function) -> KernelSpec:
    """Read the table of the kernel `name`, with code `function` of `source`.

    Errors in a section or between two are added to the table's mistakes.
    """
    mistakes = table.mistakes
    before = len(mistakes)
    types = _read_types(table)
    after_types = len(mistakes)
    signature = _read_signature(table, function, _variables(table))
    has_signature = len(mistakes) == after_types
    configs: Configs = CartesianConfigs()
    limits: dict[str, int] = {}
    grid: tuple[ManifestExpression, ...] | None = None
    where: ManifestExpression | None = None
    guards: Guards = "each"
    fuses = True
    verify = VerifySpec()
    bench = BenchSpec()
    constants = _read_constants(table, function)
    choices = _read_choices(table, function)
    captures = _read_captures(table, function)
    with mistakes.collected():
        configs = _read_configs(table, function)
    with mistakes.collected():
        limits = _read_limits(table)
    with mistakes.collected():
        _check_given_once(table, constants, choices, configs)
    with mistakes.collected():
        guards = _read_guards(table)
    with mistakes.collected():
        fuses = table.boolean("enable_fp_fusion", default=True)
    with mistakes.collected():
        flushes = table.boolean("enable_reflect_ftz", default=True)
    with mistakes.collected():
        cooperates = table.boolean("launch_cooperative_grid", default=False)
    tuples: dict[str, TupleType] = {}
    if has_signature:
        with mistakes.collected():
            tuples = _read_tuples(table, function)
        with mistakes.collected():
            grid = _read_grid(table, function, signature)
        with mistakes.collected():
            where = _read_where(table, function, signature)
        with mistakes.collected():
            verify = read_verify(table, function, signature)
        with mistakes.collected():
            bench = read_bench(table, function, signature, types)
    elif (assumed := _assumed_signature(table, function, signature)) is not None:
        with mistakes.collected():
            _read_grid(table, function, assumed)
        with mistakes.collected():
            _read_where(table, function, assumed)
    spec = KernelSpec(
        name=name,
        source=source,
        function=function,
        signature=signature,
        types=types,
        constants=constants,
        choices=choices,
        configs=configs,
        grid=grid,
        where=where,
        guards=guards,
        loc=table.value_loc("name" if table.has("name") else "source"),
        configs_loc=table.value_loc("configs" if table.has("configs") else "config"),
        verify=verify,
        bench=bench,
        limits=compile_limits({name: limits[name] for name in COMPILE_LIMITS if name in limits}),
        spill_bytes=limits.get(SPILL_BYTES, DEFAULT_SPILL_BYTES),
        is_strict=bool(limits.get(STRICT, False)),
        tuples=tuples,
        enable_fp_fusion=fuses,
        enable_reflect_ftz=flushes,
        launch_cooperative_grid=cooperates,
        captures=captures,
    )
    if len(mistakes) == before:
        with mistakes.collected():
            _check_constexprs(table, spec)
    return spec


def _read_types(table: Table) -> dict[str, tuple[str, ...]]:
    types: dict[str, tuple[str, ...]] = {}
    section = table.optional_table("types")
    for name in section:
        with section.mistakes.collected():
            if not _NAME.fullmatch(name):
                raise section.wrong_key(name, f"expected a type variable such as T, got {name!r}")
            if name in SCALARS:
                message = f"expected a type variable such as T, got the dtype {name!r}"
                raise section.wrong_key(name, message)
            types[name] = section.unique(name, section.strings(name))
            for index, dtype in enumerate(types[name]):
                if dtype not in SCALARS:
                    message = f"expected a dtype, got {dtype!r}"
                    remedy = argument_type.dtype_remedy(dtype) or argument_type.ALL_DTYPES
                    raise ManifestError(message, section.element(name, index), remedy=remedy)
    return types


def _variables(table: Table) -> tuple[str, ...]:
    """Return the type variables, including any with wrong dtypes: these are reported once."""
    return tuple(name for name in table.optional_table("types") if name not in SCALARS)


def _read_signature(
    table: Table, function: Function, variables: tuple[str, ...]
) -> dict[str, ArgumentType]:
    section = table.optional_table("signature")
    names = [parameter.name for parameter in function.arguments]
    before = len(table.mistakes)
    misspelt: set[str | None] = set()
    for name in section:
        with table.mistakes.collected():
            if name not in names:
                misspelt.add(nearest(name, names))
            _check_argument(section, name, function, names)
    signature: dict[str, ArgumentType] = {}
    for parameter in function.arguments:
        if section.has(parameter.name):
            with table.mistakes.collected():
                argument_types = _read_type(section, parameter.name, variables)
                _check_extents(section, parameter.name, function, argument_types)
                signature.update(argument_types)
        elif not parameter.has_default and parameter.name not in misspelt:
            message = f"expected a type for argument {parameter.name!r} of {function.name}"
            remedy = f'add `{parameter.name} = "..."` to [kernel.signature]'
            table.mistakes.add(ManifestError(message, section.loc, remedy=remedy))
    if len(table.mistakes) > before:
        return signature
    elements = {argument.element for argument in signature.values()}
    for name in variables:
        if name not in elements:
            message = f"expected an argument of type {name!r}, got none"
            remedy = f'write "*{name}" in [kernel.signature], or leave the variable out'
            table.mistakes.add(table.optional_table("types").wrong_key(name, message, remedy))
    return signature


def _assumed_signature(
    table: Table, function: Function, signature: Mapping[str, ArgumentType]
) -> dict[str, ArgumentType] | None:
    """Return a signature with integers for unreadable types, to check names against.

    None if something unreadable has parts with names of their own.
    """
    section = table.optional_table("signature")
    names = [*(parameter.name for parameter in function.arguments), *section]
    unread = [name for name in dict.fromkeys(names) if name not in signature]
    texts = [section.string(name) for name in unread if section.is_string(name)]
    if any(text.lstrip().startswith(("(", "tensordesc")) for text in texts):
        return None
    return {**dict.fromkeys(unread, argument_type.parse("i32", (), None)), **signature}


def _check_argument(section: Table, name: str, function: Function, names: list[str]) -> None:
    """Check that `name`, a key of the signature, is an argument."""
    if name in [parameter.name for parameter in function.constexprs]:
        message = f"expected an argument, got the tl.constexpr parameter {name!r}"
        remedy = "give its value in [kernel.constants], [kernel.choices] or [kernel.configs]"
        raise section.wrong_key(name, message, remedy)
    if name not in names:
        message = f"expected an argument of {function.name}, got {name!r}"
        remedy = did_you_mean(name, names) or _listed("its arguments are", names)
        raise section.wrong_key(name, message, remedy)


def _read_type(section: Table, name: str, variables: tuple[str, ...]) -> dict[str, ArgumentType]:
    """Return the type of an argument, or of each item of a tuple."""
    loc = section.value_loc(name)
    if section.is_list(name):
        return {name: argument_type.parse_alternatives(section.strings(name), variables, loc)}
    text = section.string(name)
    if not is_tuple_type(text):
        return {name: argument_type.parse(text, variables, loc)}
    types = (*argument_type.DTYPE_WORDS, *variables)
    return {
        leaf: argument_type.parse(leaf_text, variables, loc)
        for leaf, leaf_text in _tuple_type(section, name).leaves(name)
        if not names_function(leaf_text, types)
    }


def _tuple_type(section: Table, name: str) -> TupleType:
    try:
        kind = parse_tuple_type(section.string(name))
    except ValueError as error:
        raise section.wrong(name, str(error)) from None
    if _has_empty_item(kind):
        # Launches from an archive tell tuples apart by their items.
        message = f"expected no empty tuple in another, got {section.string(name)!r}"
        raise section.wrong(name, message, "leave it out, or pass None in its place")
    return kind


def _has_empty_item(kind: TupleType) -> bool:
    inner = [item for item in kind.items if isinstance(item, TupleType)]
    return any(not item.items or _has_empty_item(item) for item in inner)


def _read_tuples(table: Table, function: Function) -> dict[str, TupleType]:
    """Return the tuple arguments; their types were read with the signature."""
    section = table.optional_table("signature")
    names = [parameter.name for parameter in function.parameters]
    tuples: dict[str, TupleType] = {}
    for name in section:
        if section.is_string(name) and is_tuple_type(section.string(name)):
            tuples[name] = _tuple_type(section, name)
            for leaf, _ in tuples[name].leaves(name):
                if leaf in names:
                    message = (
                        f"expected other names, {leaf!r} is an item of {name!r} and a parameter"
                    )
                    raise section.wrong(name, message, "rename the parameter in the source")
    return tuples


def _check_constexpr(section: Table, name: str, function: Function) -> None:
    """Check that `name`, a key of `section`, is a constexpr parameter."""
    names = [parameter.name for parameter in function.constexprs]
    if name in names:
        return
    message = f"expected a tl.constexpr parameter of {function.name}, got {name!r}"
    remedy = did_you_mean(name, names) or _listed("its constexpr parameters are", names)
    if name in [parameter.name for parameter in function.arguments]:
        remedy = f'fix its value in [kernel.signature], as in {name} = "i32=1"'
    if name in CONFIG_KEYS:
        remedy = "it is a config key: write it in [kernel.configs]"
    raise section.wrong_key(name, message, remedy)


def _listed(intro: str, names: list[str]) -> str:
    return f"{intro} {', '.join(names)}" if names else ""


def _read_constants(table: Table, function: Function) -> dict[str, Constant]:
    section = table.optional_table("constants")
    constants: dict[str, Constant] = {}
    for name in section:
        with table.mistakes.collected():
            _check_constexpr(section, name, function)
            constants[name] = section.constant(name)
    return constants


def _read_captures(table: Table, function: Function) -> dict[str, Constant]:
    section = table.optional_table("captures")
    captures: dict[str, Constant] = {}
    for name in section:
        with table.mistakes.collected():
            if name not in function.outer:
                message = (
                    f"expected a variable of the functions around {function.name}, got {name!r}"
                )
                remedy = did_you_mean(name, function.outer) or _listed(
                    "their variables are", list(function.outer)
                )
                raise section.wrong_key(name, message, remedy or "the kernel is in no function")
            captures[name] = section.constant(name)
    return captures


def _read_choices(table: Table, function: Function) -> dict[str, tuple[Constant, ...]]:
    section = table.optional_table("choices")
    choices: dict[str, tuple[Constant, ...]] = {}
    for name in section:
        with table.mistakes.collected():
            _check_constexpr(section, name, function)
            choices[name] = section.unique(name, section.constants(name))
    return choices


def _read_configs(table: Table, function: Function) -> Configs:
    if table.has("configs") and table.has("config"):
        message = "expected either 'configs' or [[kernel.config]] tables, got both"
        raise table.wrong_key("configs", message)
    if table.has("config"):
        sections = table.tables("config", None)
        configs: list[tuple[tuple[str, Constant], ...]] = []
        for section in sections:
            pairs = [(name, section.constant(name)) for name in section]
            for name, value in pairs:
                _check_config_entry(section, name, value, section.value_loc(name), function)
            if tuple(pairs) in configs:
                message = "expected each config once, got the same one again"
                raise ManifestError(message, section.loc)
            configs.append(tuple(pairs))
        return ListedConfigs(tuple(configs))
    if table.is_string("configs"):
        if table.string("configs") != "autotune":
            message = f"expected a table or 'autotune', got {table.string('configs')!r}"
            raise table.wrong("configs", message)
        return AutotuneConfigs()
    section = table.optional_table("configs")
    axes: list[tuple[str, tuple[Constant, ...]]] = []
    for name in section:
        with table.mistakes.collected():
            values = section.unique(name, section.constants(name))
            for index, value in enumerate(values):
                _check_config_entry(section, name, value, section.element(name, index), function)
            axes.append((name, values))
    return CartesianConfigs(tuple(axes))


def _read_limits(table: Table) -> dict[str, int]:
    section = table.optional_table("limits")
    limits: dict[str, int] = {}
    for name in section:
        if name not in LIMIT_KEYS:
            message = f"expected a limit, got {name!r}"
            raise section.wrong_key(
                name,
                message,
                did_you_mean(name, LIMIT_KEYS) or _listed("they are", list(LIMIT_KEYS)),
            )
        value = section.constant(name)
        problem = limit_problem(name, value)
        if problem:
            raise section.wrong(name, problem)
        limits[name] = int(value)
    return limits


def _check_config_entry(
    section: Table, name: str, value: Constant, loc: Loc, function: Function
) -> None:
    if name not in CONFIG_KEYS:
        names = [parameter.name for parameter in function.constexprs]
        if name not in names:
            message = f"expected a config key or a tl.constexpr parameter, got {name!r}"
            valid_names = [*CONFIG_KEYS, *names]
            remedy = (
                renamed_key(name)
                or did_you_mean(name, valid_names)
                or _listed("they are", valid_names)
            )
            raise section.wrong_key(name, message, remedy)
        return
    problem = config_value_problem(name, value)
    if problem:
        raise ManifestError(problem, loc)


def _config_keys(configs: Configs) -> list[str]:
    if isinstance(configs, CartesianConfigs):
        return [name for name, _ in configs.axes]
    if isinstance(configs, ListedConfigs):
        return list(dict.fromkeys(name for config in configs.configs for name, _ in config))
    return []


def _check_given_once(
    table: Table,
    constants: Mapping[str, Constant],
    choices: Mapping[str, tuple[Constant, ...]],
    configs: Configs,
) -> None:
    owner = dict.fromkeys(constants, "constants")
    for section, names in (("choices", list(choices)), ("configs", _config_keys(configs))):
        for name in names:
            if name in owner:
                message = f"expected {name!r} in one place, got it in {owner[name]} and {section}"
                raise table.optional_table(owner[name]).wrong_key(name, message)
            owner[name] = section


def _check_constexprs(table: Table, spec: KernelSpec) -> None:
    """Check that every constexpr parameter has a value in every config."""
    if isinstance(spec.configs, AutotuneConfigs):
        return  # the configs are listed when they are expanded
    fixed_names = {*spec.constants, *spec.choices}
    configs = (
        [[name for name, _ in config] for config in spec.configs.configs]
        if isinstance(spec.configs, ListedConfigs)
        else [_config_keys(spec.configs)]
    )
    for index, keys in enumerate(configs):
        missing = missing_constexpr(spec.function, fixed_names | set(keys))
        if missing is None:
            continue
        message = f"expected a value for the tl.constexpr parameter {missing!r}"
        if isinstance(spec.configs, ListedConfigs):
            raise ManifestError(f"{message} in this config", table.element("config", index))
        remedy = f"add {missing!r} to [kernel.constants], [kernel.choices] or [kernel.configs]"
        raise ManifestError(message, spec.loc, remedy=remedy)


def _check_extents(
    section: Table, name: str, function: Function, types: Mapping[str, ArgumentType]
) -> None:
    names = [parameter.name for parameter in function.constexprs]
    for argument in types.values():
        for block_name in argument.block_names:
            if block_name not in names:
                message = f"expected a tl.constexpr parameter as block extent, got {block_name!r}"
                remedy = did_you_mean(block_name, names) or _listed("they are", names)
                raise section.wrong(name, message, remedy)


def _read_grid(
    table: Table, function: Function, signature: Mapping[str, ArgumentType]
) -> tuple[ManifestExpression, ...] | None:
    return read_grid(table, function, signature) if table.has("grid") else None


def _read_guards(table: Table) -> Guards:
    if not table.has("guards"):
        return "each"
    text = table.string("guards")
    if text == "each" or text == "together":  # noqa: PLR1714 - narrows the type
        return text
    raise table.wrong("guards", f'expected "each" or "together", got "{text}"')


def _read_where(
    table: Table, function: Function, signature: Mapping[str, ArgumentType]
) -> ManifestExpression | None:
    if not table.has("where"):
        return None
    return read_expression(table.string("where"), table.value_loc("where"), function, signature)
