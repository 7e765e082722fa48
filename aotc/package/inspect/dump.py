"""Find the compile for `aotc dump` and `aotc explain`, from a kernel and its settings.

The kernel is `SOURCE.py:KERNEL`, described by settings alone, or `MANIFEST:KERNEL`, where settings
pick among the manifest's variants or override their values. The name of a setting is a config key,
a `tl.constexpr` parameter, a type variable, or an argument; an argument's setting is its type.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from aotc import target as targets
from aotc.compiler import CompileRequest, autotune_configs
from aotc.config import CONFIG_KEYS, Config, config_value_problem, renamed_key
from aotc.ir.diagnostics import DiagnosticError, ManifestError, did_you_mean
from aotc.package.manifest import argument_type
from aotc.package.manifest.configs import config_misfit
from aotc.package.manifest.parameters import Function
from aotc.package.manifest.read import kernels_of_source, load, read_function
from aotc.package.manifest.spec import KernelSpec, Manifest, missing_constexpr
from aotc.package.manifest.toml_table import Constant
from aotc.package.manifest.variant_grid import VariantSpec, expand
from aotc.target import Target

_MAX_LISTED = 12
_WORDS: dict[str, Constant] = {"true": True, "True": True, "false": False, "False": False}


class MissingSettingError(ManifestError):
    """Report a source whose types or constants are not all set."""


def find_request(
    subject: str,
    target: Target | None,
    settings: Mapping[str, str],
    without: Sequence[str] = (),
    manifest: Manifest | None = None,
) -> CompileRequest:
    """Return the compile described by `subject` and `settings`.

    The default `target` is the manifest's first, or sm_90a for a source. `without` names features
    to leave unused, besides the manifest's. `manifest` is the content of a manifest's file, if it
    was read or made already.

    Raises:
        DiagnosticError: there is no such kernel, or a setting is wrong or missing.
    """
    file, _, name = subject.rpartition(":")
    if not file or not name:
        message = f"expected SOURCE.py:KERNEL or MANIFEST:KERNEL, got {subject!r}"
        raise ManifestError(message, remedy=_kernels_of(subject))
    if Path(file).suffix == ".toml":
        manifest = manifest or load(file)
        target_choice = manifest.targets_for([target.name] if target else [], without)
        ((kernel, among),) = manifest.select([name], target_choice)
        return _from_manifest(kernel, among[0], settings)
    target_choice = (target or targets.parse("sm_90a")).excluding(without)
    return _from_source(file, read_function(file, name), target_choice, settings)


def _kernels_of(path: str) -> str:
    """Return a remedy with the kernels of a file, "" if it has none."""
    with contextlib.suppress(DiagnosticError):
        if path.endswith(".toml"):
            names = [kernel.name for kernel in load(path).kernels]
        else:
            names = kernels_of_source(path)
        more = f", and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        return f"its kernels: {', '.join(f'{path}:{name}' for name in names[:_MAX_LISTED])}{more}"
    return ""


def parse_constant(text: str) -> Constant:
    """Parse a setting's value: a boolean, a number or a string."""
    if text in _WORDS:
        return _WORDS[text]
    with contextlib.suppress(ValueError):
        return int(text, 0)
    with contextlib.suppress(ValueError):
        return float(text)
    return text


def _from_source(
    file: str, function: Function, target: Target, settings: Mapping[str, str]
) -> CompileRequest:
    types, constants, options = _sorted_settings(function, settings)
    for parameter in function.arguments:
        if parameter.name not in types and not parameter.has_default:
            message = f"expected a type for argument {parameter.name!r} of {function.name}"
            remedy = f"add --set '{parameter.name}=*fp32:16', say"
            raise MissingSettingError(message, remedy=remedy)
    missing = missing_constexpr(function, set(constants))
    if missing is not None:
        message = f"expected a value for the tl.constexpr parameter {missing!r}"
        raise MissingSettingError(message, remedy=f"add --set {missing}=128, say")
    _check_fits(options, target)
    return CompileRequest(
        source=file,
        kernel=function.name,
        signature=_ordered_types(function, types, constants),
        constants=_ordered_constants(function, constants),
        target=target.name,
        config=Config.of(options),
        without=target.without,
        map_pointers=True,
    )


def _from_manifest(
    kernel: KernelSpec, target: Target, settings: Mapping[str, str]
) -> CompileRequest:
    variants: Sequence[VariantSpec] = expand(kernel, [target], autotune_configs).variants
    types = {name: text for name, text in settings.items() if name in kernel.types}
    for name, dtype in types.items():
        if dtype not in kernel.types[name]:
            message = f"expected {name} to be one of {', '.join(kernel.types[name])}, got {dtype!r}"
            raise ManifestError(message)
        index = list(kernel.types).index(name)
        variants = [variant for variant in variants if variant.types[index] == dtype]
    rest = {name: text for name, text in settings.items() if name not in types}
    arguments, constants, options = _sorted_settings(kernel.function, rest)
    for name, value in {**constants, **options}.items():
        agreeing = [v for v in variants if name in v.values and v.values[name] == value]
        variants = agreeing or variants
    _check_fits(options, target)
    request = variants[0].request
    values = {**dict(request.constants), **constants}
    signature = {**dict(request.signature), **_concrete_types(arguments, values)}
    return replace(
        request,
        signature=tuple((name, signature[name]) for name in signature),
        constants=tuple(values.items()),
        config=replace(request.config, **options),
    )


def _sorted_settings(
    function: Function, settings: Mapping[str, str]
) -> tuple[dict[str, argument_type.ArgumentType], dict[str, Constant], dict[str, int]]:
    """Split settings into arguments, constexpr parameters and config keys."""
    types: dict[str, argument_type.ArgumentType] = {}
    constants: dict[str, Constant] = {}
    options: dict[str, Constant] = {}
    arguments = [parameter.name for parameter in function.arguments]
    constexprs = [parameter.name for parameter in function.constexprs]
    for name, text in settings.items():
        if name in arguments:
            types[name] = argument_type.parse(text)
            continue
        value = parse_constant(text)
        if name in CONFIG_KEYS:
            problem = config_value_problem(name, value)
            if problem:
                raise ManifestError(problem)
            options[name] = value
        if name in constexprs:
            constants[name] = value
        elif name not in CONFIG_KEYS:
            names = [*arguments, *constexprs, *CONFIG_KEYS]
            message = f"expected a parameter of {function.name} or a config key, got {name!r}"
            remedy = (
                renamed_key(name) or did_you_mean(name, names) or f"there are {', '.join(names)}"
            )
            raise ManifestError(message, remedy=remedy)
    numbers = {name: value for name, value in options.items() if isinstance(value, int)}
    return types, constants, numbers


def _check_fits(options: Mapping[str, int], target: Target) -> None:
    misfit = config_misfit(options, target)
    if misfit:
        raise ManifestError(f"expected a config that {target} can hold: {misfit}")


def _concrete_types(
    types: Mapping[str, argument_type.ArgumentType], constants: Mapping[str, object]
) -> dict[str, str]:
    for name, argument in types.items():
        for extent_name in argument.block_names:
            if extent_name not in constants:
                message = f"expected a value for the block extent {extent_name!r} of {name!r}"
                raise ManifestError(
                    message, remedy=did_you_mean(extent_name, [str(c) for c in constants])
                )
    return {name: argument.concrete({}, constants) for name, argument in types.items()}


def _ordered_types(
    function: Function,
    types: Mapping[str, argument_type.ArgumentType],
    constants: Mapping[str, object],
) -> tuple[tuple[str, str], ...]:
    concrete = _concrete_types(types, constants)
    names = [parameter.name for parameter in function.arguments if parameter.name in types]
    return tuple((name, concrete[name]) for name in names)


def _ordered_constants(
    function: Function, constants: Mapping[str, Constant]
) -> tuple[tuple[str, Constant], ...]:
    names = [parameter.name for parameter in function.constexprs if parameter.name in constants]
    return tuple((name, constants[name]) for name in names)
