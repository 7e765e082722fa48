"""The manifest: what `kernels.toml` may say, read and checked to the last key.

Everything that can be told from the manifest and from the names in the kernel sources is told
here, before anything is compiled: each mistake with file, line and column, what was expected, what
was got and the nearest right name. What a variant looks like is `grid.py`'s business.

Invariant: a `Manifest` that exists is consistent. Every argument has a type or a default, every
`tl.constexpr` parameter a value, a default or an autotuner, and every name in a grid or a `where`
stands for something.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypeVar

from aotc import target as targets
from aotc.ir.diagnostics import Loc, ManifestError, did_you_mean
from aotc.ir.types import SCALARS
from aotc.package import argument_type, expression
from aotc.package.argument_type import ArgumentType
from aotc.package.expression import Expression, ExpressionError
from aotc.package.parameters import Function, parse_functions
from aotc.package.tables import Constant, Document, Table
from aotc.target import Target

# The reserved config keys: lowest and highest value, and whether it must be a power of two. More
# warps than a target has threads for are no mistake: such a config is dropped for that target.
_CONFIG_RANGES: dict[str, tuple[int, int, bool]] = {
    "num_warps": (1, 64, True),
    "num_stages": (1, 32, False),
    "num_ctas": (1, 16, True),
    "maxnreg": (16, 255, False),
}
CONFIG_KEYS = tuple(_CONFIG_RANGES)
CONFIG_DEFAULTS: dict[str, int] = {"num_warps": 4, "num_stages": 3, "num_ctas": 1}
MAX_GRID_RANK = 3

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)([-+][0-9A-Za-z.+-]+)?")
_PACKAGE_KEYS = ("name", "version", "targets")
_KERNEL_KEYS = (
    *("name", "source", "grid", "signature", "types", "constants", "choices"),
    *("configs", "config", "where"),
)

T = TypeVar("T")
Axes: TypeAlias = tuple[tuple[str, tuple[Constant, ...]], ...]


@dataclass(frozen=True, slots=True)
class CartesianConfigs:
    """Every combination of the axes' values; no axes make one empty config."""

    axes: Axes = ()


@dataclass(frozen=True, slots=True)
class ListedConfigs:
    """The `[[kernel.config]]` tables, as they are."""

    configs: tuple[tuple[tuple[str, Constant], ...], ...]


@dataclass(frozen=True, slots=True)
class AutotuneConfigs:
    """Whatever the source's `@triton.autotune` lists."""


Configs: TypeAlias = CartesianConfigs | ListedConfigs | AutotuneConfigs


@dataclass(frozen=True, slots=True)
class ManifestExpression:
    """An expression and the place of its text, for errors that only a variant brings out."""

    root: Expression
    loc: Loc

    def error(self, error: ExpressionError) -> ManifestError:
        """Return `error` as the user's mistake, at its column of this text."""
        loc = self.loc
        # The text starts after the opening quote; an end that is not shown marks one character.
        col = loc.col + 1 + error.col
        inside = col < loc.end_col
        place = Loc(loc.file, loc.line, col, col + 1) if inside else loc
        return ManifestError(error.message, place)


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One `[[kernel]]` table; mappings keep the order of the function's parameters."""

    name: str
    source: str
    function: Function
    signature: dict[str, ArgumentType]
    types: dict[str, tuple[str, ...]]
    constants: dict[str, Constant]
    choices: dict[str, tuple[Constant, ...]]
    configs: Configs
    grid: tuple[ManifestExpression, ...] | None
    where: ManifestExpression | None
    loc: Loc
    configs_loc: Loc


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole manifest; `path` is the file it was read from."""

    path: str
    name: str
    version: str
    targets: tuple[Target, ...]
    kernels: tuple[KernelSpec, ...]

    def kernel(self, name: str) -> KernelSpec:
        """Return the kernel called `name`.

        Raises:
            ManifestError: there is none; names the nearest.
        """
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        names = [kernel.name for kernel in self.kernels]
        message = f"expected a kernel of {self.path} ({', '.join(names)}), got {name!r}"
        raise ManifestError(message, remedy=did_you_mean(name, names))


def load(path: str) -> Manifest:
    """Return the manifest at `path`, checked against the kernel sources it names.

    Raises:
        ManifestError: the manifest cannot be read or is wrong.
        CompileError: a kernel source is not Python.
    """
    return parse(_read_text(Path(path), "a manifest", None), path)


def parse(text: str, path: str) -> Manifest:
    """Return the manifest that `text` writes; sources are relative to the folder of `path`.

    Raises:
        ManifestError: the manifest is wrong.
        CompileError: a kernel source is not Python.
    """
    reader = _Reader(Document.parse(text, path))
    return reader.manifest()


@dataclass(slots=True)
class _Reader:
    document: Document
    functions: dict[str, dict[str, Function]] = field(
        default_factory=dict[str, dict[str, Function]]
    )

    def manifest(self) -> Manifest:
        root = self.document.root(("package", "kernel"))
        package = root.table("package", _PACKAGE_KEYS)
        name = package.string("name")
        _check_identifier(package, "name", name, "a package name")
        version = package.string("version")
        if not _VERSION.fullmatch(version):
            raise package.wrong("version", f"expected a version such as '0.1.0', got {version!r}")
        chosen = _unique(package, "targets", package.strings("targets"))
        places = [package.element("targets", index) for index in range(len(chosen))]
        built = tuple(targets.parse(n, loc) for n, loc in zip(chosen, places, strict=True))
        tables = root.tables("kernel", _KERNEL_KEYS)
        kernels: dict[str, KernelSpec] = {}
        for table in tables:
            kernel = self.kernel(table)
            if kernel.name in kernels:
                first = kernels[kernel.name].loc
                place = "name" if table.has("name") else "source"
                message = f"expected a name of its own, got {kernel.name!r} as at {first}"
                raise table.wrong(place, message, "give one of the two another `name`")
            kernels[kernel.name] = kernel
        return Manifest(self.document.file, name, version, built, tuple(kernels.values()))

    def kernel(self, table: Table) -> KernelSpec:
        source, function = self.source(table)
        name = table.string("name") if table.has("name") else function.name
        if table.has("name"):
            _check_identifier(table, "name", name, "a kernel name")
        types = _read_types(table)
        signature = _read_signature(table, function, types)
        constants = _read_constants(table, function)
        choices = _read_choices(table, function)
        configs = _read_configs(table, function)
        _check_given_once(table, constants, choices, configs)
        spec = KernelSpec(
            name=name,
            source=source,
            function=function,
            signature=signature,
            types=types,
            constants=constants,
            choices=choices,
            configs=configs,
            grid=_read_grid(table, function, signature),
            where=_read_where(table, function, choices),
            loc=table.value_loc("name" if table.has("name") else "source"),
            configs_loc=table.value_loc("configs" if table.has("configs") else "config"),
        )
        _check_constexprs(table, spec)
        _check_blocks(table, spec)
        return spec

    def source(self, table: Table) -> tuple[str, Function]:
        text = table.string("source")
        loc = table.value_loc("source")
        file, colon, name = text.rpartition(":")
        if not (file and colon and _NAME.fullmatch(name)):
            raise ManifestError(f"expected 'FILE.py:FUNCTION', got {text!r}", loc)
        path = Path(self.document.file).parent / file
        key = path.as_posix()
        if key not in self.functions:
            self.functions[key] = parse_functions(_read_text(path, "a kernel source", loc), key)
        functions = self.functions[key]
        if name not in functions:
            message = f"expected a function of {key}, got {name!r}"
            remedy = did_you_mean(name, functions) or "it defines " + (
                ", ".join(functions) or "no function"
            )
            raise ManifestError(message, loc, remedy=remedy)
        return key, functions[name]


def _read_text(path: Path, what: str, loc: Loc | None) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        message = f"expected {what}, cannot read {path}: {error.strerror or error}"
        remedy = _nearest_file(path)
        raise ManifestError(message, loc, remedy=remedy) from None
    except UnicodeDecodeError as error:
        message = f"expected {what} in UTF-8, {path} is not at byte {error.start}"
        raise ManifestError(message, loc) from None


def _nearest_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix == path.suffix]
    except OSError:
        return ""
    return did_you_mean(path.name, [name for name in names if name != path.name])


def _check_identifier(table: Table, key: str, name: str, what: str) -> None:
    if not _NAME.fullmatch(name):
        message = f"expected {what} of letters, digits and '_', got {name!r}"
        raise table.wrong(key, message, "it becomes part of the names in the C header")


def _unique(table: Table, key: str, values: tuple[T, ...]) -> tuple[T, ...]:
    """Return `values` if there are some and none is there twice; 1, 1.0 and true differ."""
    if not values:
        raise table.wrong(key, f"expected at least one value for {key!r}, got an empty list")
    seen: set[tuple[type, T]] = set()
    for index, value in enumerate(values):
        if (type(value), value) in seen:
            message = f"expected each value once, got {value!r} again"
            raise ManifestError(message, table.element(key, index))
        seen.add((type(value), value))
    return values


def _read_types(table: Table) -> dict[str, tuple[str, ...]]:
    types: dict[str, tuple[str, ...]] = {}
    section = table.optional_table("types")
    for name in section:
        if not _NAME.fullmatch(name):
            raise section.wrong_key(name, f"expected a type variable such as T, got {name!r}")
        if name in SCALARS:
            message = f"expected a type variable such as T, got the dtype {name!r}"
            raise section.wrong_key(name, message)
        types[name] = _unique(section, name, section.strings(name))
        for index, dtype in enumerate(types[name]):
            if dtype not in SCALARS:
                message = f"expected a dtype, got {dtype!r}"
                remedy = did_you_mean(dtype, SCALARS) or "dtypes are " + " ".join(SCALARS)
                raise ManifestError(message, section.element(name, index), remedy=remedy)
    return types


def _read_signature(
    table: Table, function: Function, types: Mapping[str, tuple[str, ...]]
) -> dict[str, ArgumentType]:
    section = table.optional_table("signature")
    names = [parameter.name for parameter in function.arguments]
    constexprs = [parameter.name for parameter in function.constexprs]
    for name in section:
        if name in constexprs:
            message = f"expected an argument, got the tl.constexpr parameter {name!r}"
            remedy = "give its value in [kernel.constants], [kernel.choices] or [kernel.configs]"
            raise section.wrong_key(name, message, remedy)
        if name not in names:
            message = f"expected an argument of {function.name}, got {name!r}"
            raise section.wrong_key(
                name, message, did_you_mean(name, names) or _listed("its arguments are", names)
            )
    signature: dict[str, ArgumentType] = {}
    for parameter in function.arguments:
        if section.has(parameter.name):
            text = section.string(parameter.name)
            loc = section.value_loc(parameter.name)
            signature[parameter.name] = argument_type.parse(text, tuple(types), loc)
        elif not parameter.has_default:
            message = f"expected a type for argument {parameter.name!r} of {function.name}"
            remedy = f'add `{parameter.name} = "..."` to [kernel.signature]'
            raise ManifestError(message, section.loc, remedy=remedy)
    used = {argument.element for argument in signature.values()}
    for name in types:
        if name not in used:
            message = f"expected an argument of type {name!r}, got none"
            remedy = f'write "*{name}" in [kernel.signature], or leave the variable out'
            raise table.optional_table("types").wrong_key(name, message, remedy)
    return signature


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
    for name in section:
        _check_constexpr(section, name, function)
    return {name: section.constant(name) for name in section}


def _read_choices(table: Table, function: Function) -> dict[str, tuple[Constant, ...]]:
    section = table.optional_table("choices")
    for name in section:
        _check_constexpr(section, name, function)
    return {name: _unique(section, name, section.constants(name)) for name in section}


def _read_configs(table: Table, function: Function) -> Configs:
    if table.has("configs") and table.has("config"):
        message = "expected either 'configs' or [[kernel.config]] tables, got both"
        raise table.wrong_key("configs", message)
    if table.has("config"):
        sections = table.tables("config", None)
        listed: list[tuple[tuple[str, Constant], ...]] = []
        for section in sections:
            pairs = [(name, section.constant(name)) for name in section]
            for name, value in pairs:
                _check_config_entry(section, name, value, section.value_loc(name), function)
            if tuple(pairs) in listed:
                message = "expected each config once, got the same one again"
                raise ManifestError(message, section.loc)
            listed.append(tuple(pairs))
        return ListedConfigs(tuple(listed))
    if table.is_string("configs"):
        if table.string("configs") != "autotune":
            message = f"expected a table or 'autotune', got {table.string('configs')!r}"
            raise table.wrong("configs", message)
        return AutotuneConfigs()
    section = table.optional_table("configs")
    axes: list[tuple[str, tuple[Constant, ...]]] = []
    for name in section:
        values = _unique(section, name, section.constants(name))
        for index, value in enumerate(values):
            _check_config_entry(section, name, value, section.element(name, index), function)
        axes.append((name, values))
    return CartesianConfigs(tuple(axes))


def _check_config_entry(
    section: Table, name: str, value: Constant, loc: Loc, function: Function
) -> None:
    if name not in CONFIG_KEYS:
        names = [parameter.name for parameter in function.constexprs]
        if name not in names:
            message = f"expected a config key or a tl.constexpr parameter, got {name!r}"
            known = [*CONFIG_KEYS, *names]
            remedy = did_you_mean(name, known) or _listed("they are", known)
            raise section.wrong_key(name, message, remedy)
        return
    problem = config_value_problem(name, value)
    if problem:
        raise ManifestError(problem, loc)


def config_value_problem(name: str, value: Constant) -> str:
    """Return what is wrong with the value of a reserved config key, or an empty string."""
    low, high, must_be_power = _CONFIG_RANGES[name]
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        if not must_be_power or value & (value - 1) == 0:
            return ""
    kind = "a power of two" if must_be_power else "an integer"
    return f"expected {kind} from {low} to {high} for {name}, got {value!r}"


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
        return  # the configs are known when they are expanded
    given = {*spec.constants, *spec.choices}
    configs = (
        [[name for name, _ in config] for config in spec.configs.configs]
        if isinstance(spec.configs, ListedConfigs)
        else [_config_keys(spec.configs)]
    )
    for index, keys in enumerate(configs):
        missing = missing_constexpr(spec.function, given | set(keys))
        if missing is None:
            continue
        message = f"expected a value for the tl.constexpr parameter {missing!r}"
        if isinstance(spec.configs, ListedConfigs):
            raise ManifestError(f"{message} in this config", table.element("config", index))
        remedy = f"add {missing!r} to [kernel.constants], [kernel.choices] or [kernel.configs]"
        raise ManifestError(message, spec.loc, remedy=remedy)


def missing_constexpr(function: Function, given: set[str]) -> str | None:
    """Return the first constexpr parameter that is neither given nor has a default.

    A parameter called like a config key that has a default, such as `num_warps`, is always given.
    """
    known = {*given, *CONFIG_DEFAULTS}
    for parameter in function.constexprs:
        if parameter.name not in known and not parameter.has_default:
            return parameter.name
    return None


def _check_blocks(table: Table, spec: KernelSpec) -> None:
    section = table.optional_table("signature")
    names = [parameter.name for parameter in spec.function.constexprs]
    for name, argument in spec.signature.items():
        for extent in argument.block:
            if isinstance(extent, str) and extent not in names:
                message = f"expected a tl.constexpr parameter as block extent, got {extent!r}"
                remedy = did_you_mean(extent, names) or _listed("they are", names)
                raise section.wrong(name, message, remedy)


def _read_grid(
    table: Table, function: Function, signature: Mapping[str, ArgumentType]
) -> tuple[ManifestExpression, ...] | None:
    if not table.has("grid"):
        return None
    texts = table.strings("grid")
    if not 1 <= len(texts) <= MAX_GRID_RANK:
        message = f"expected 1 to {MAX_GRID_RANK} grid expressions, got {len(texts)}"
        raise table.wrong("grid", message)
    return tuple(
        _expression(text, table.element("grid", index), function, signature)
        for index, text in enumerate(texts)
    )


def _read_where(
    table: Table, function: Function, choices: Mapping[str, tuple[Constant, ...]]
) -> ManifestExpression | None:
    if not table.has("where"):
        return None
    found = _expression(table.string("where"), table.value_loc("where"), function, {})
    for name, col in expression.free_names(found.root).items():
        if name in choices:
            message = f"`{name}` is a choice of the caller's; `where` filters configs"
            raise found.error(ExpressionError(message, col))
    return found


def _expression(
    text: str, loc: Loc, function: Function, signature: Mapping[str, ArgumentType]
) -> ManifestExpression:
    """Parse `text` and check that every name in it stands for an integer or a tensor's extent."""
    try:
        found = ManifestExpression(expression.parse(text), loc)
    except ExpressionError as error:
        raise ManifestExpression(expression.Integer(0), loc).error(error) from None
    constants = [*(parameter.name for parameter in function.constexprs), *CONFIG_KEYS]
    for node in expression.walk(found.root):
        if not isinstance(node, expression.Name | expression.Extent):
            continue
        argument = signature.get(node.name)
        problem = ""
        if isinstance(node, expression.Extent):
            if argument is None or argument.kind != "tensordesc":
                problem = f"`{node.name}` is no tensor descriptor"
            elif node.dim >= len(argument.block):
                problem = f"`{node.name}` has {len(argument.block)} dimensions"
        elif argument is not None:
            element = SCALARS.get(argument.element)
            if argument.kind != "scalar" or (element is not None and not element.is_int):
                problem = f"expected an integer argument, `{node.name}` is none"
        elif node.name not in constants:
            known = [*signature, *constants]
            hint = did_you_mean(node.name, known)
            problem = f"`{node.name}` names nothing" + (f": {hint}" if hint else "")
        if problem:
            raise found.error(ExpressionError(problem, node.col))
    return found


__all__ = [
    "AutotuneConfigs",
    "CartesianConfigs",
    "Configs",
    "Constant",
    "KernelSpec",
    "ListedConfigs",
    "Manifest",
    "ManifestExpression",
    "load",
    "parse",
]
