"""List the configs of a kernel accepted by its `where`, and the choices each serves.

Invariant: `where` is evaluated for at most `MAX_CONFIGS` pairs of a config and choices. More are an
error that names the count, before any is listed if the count is known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from aotc.config import CONFIG_DEFAULTS, CONFIG_KEYS, config_value_problem
from aotc.ir import expression
from aotc.ir.diagnostics import ManifestError
from aotc.ir.expression import Expression, ExpressionError
from aotc.package.archive.label import value_text
from aotc.package.manifest.computed_parameters import crossed
from aotc.package.manifest.spec import (
    AutotuneConfigs,
    CartesianConfigs,
    KernelSpec,
    ListedConfigs,
    ManifestExpression,
    missing_constexpr,
)
from aotc.package.manifest.toml_table import Constant
from aotc.target import Feature, Target

MAX_CONFIGS = 1 << 18

ConfigEntries: TypeAlias = tuple[tuple[str, Constant], ...]
Serves: TypeAlias = dict[tuple[Constant, ...], "Expression | None"]
AutotuneReader: TypeAlias = Callable[
    [str, str, Mapping[str, object], Target], Sequence[Mapping[str, object]]
]


def configs_of_targets(
    kernel: KernelSpec, targets: Sequence[Target], autotune: AutotuneReader
) -> dict[Target, tuple[tuple[ConfigEntries, Serves], ...]]:
    """Return the configs for each target: an autotuner may depend on it."""
    if isinstance(kernel.configs, AutotuneConfigs):
        return {target: _configs(kernel, autotune, target) for target in targets}
    return dict.fromkeys(targets, _configs(kernel, autotune, targets[0]))


def typed(config: ConfigEntries) -> tuple[object, ...]:
    """Return a key equal for equal configs; 1 and true are two values."""
    return tuple((name, type(value), value) for name, value in config)


def completed(config: Mapping[str, Constant]) -> tuple[object, ...]:
    """Return a key equal for equal configs; a missing entry equals its default."""
    return typed(tuple(sorted({**CONFIG_DEFAULTS, **config}.items())))


def _configs(
    kernel: KernelSpec, autotune: AutotuneReader, target: Target
) -> tuple[tuple[ConfigEntries, Serves], ...]:
    """Return the configs accepted by the kernel's `where` for some choices, in order.

    Each config comes with the choices it serves, and the rest of `where` for each: a condition on
    launch arguments, checked by the launcher, or None.
    """
    accepted: list[tuple[ConfigEntries, Serves]] = []
    always = expression.Integer(1)
    fold = expression.Folder(kernel.where.root if kernel.where is not None else always)
    most = MAX_CONFIGS // num_choices(kernel)
    for number, config in enumerate(_listed_configs(kernel, autotune, target)):
        if number == most:
            raise _too_many_configs(kernel, f"more than {most}")
        serves: Serves = {}
        for choices in itertools.product(*kernel.choices.values()):
            condition = _condition(kernel, config, choices, fold)
            if not isinstance(condition, expression.Integer):
                serves[choices] = condition
            elif condition.value:
                serves[choices] = None
        if serves:
            accepted.append((config, serves))
    if not accepted and kernel.where is not None:
        message = "expected `where` to accept a config, it rejects all"
        raise ManifestError(message, kernel.where.loc)
    return tuple(accepted)


def _too_many_configs(kernel: KernelSpec, count: str) -> ManifestError:
    """Return the error for more configs than the limit for `where`, over all choices."""
    times = f" for each of {num_choices(kernel)} choices" if kernel.choices else ""
    message = f"expected at most {MAX_CONFIGS} configs, got {count}{times}"
    remedy = "list fewer values; `where` filters the list, it does not shorten it"
    return ManifestError(message, kernel.configs_loc, remedy=remedy)


def _condition(
    kernel: KernelSpec,
    config: ConfigEntries,
    choices: tuple[Constant, ...],
    fold: expression.Folder,
) -> Expression:
    """Evaluate `where` for a config and choices as far as possible; `fold` folds it."""
    where = kernel.where
    if where is None:
        return expression.Integer(1)
    chosen = zip(kernel.choices, choices, strict=True)
    values = {**fixed_values(kernel, config), **fixed_arguments(kernel), **dict(chosen)}
    try:
        root = expression.settle(fold(integer_values(values)))
    except ExpressionError as error:
        raise _where_error(where, config, error) from None
    for name, col in expression.free_names(root).items():
        if name not in launch_arguments(kernel):
            raise _where_error(where, config, ExpressionError(f"`{name}` has no value", col))
    return root


def fixed_arguments(kernel: KernelSpec) -> dict[str, Constant]:
    """Return the integer arguments with a compiled-in value."""
    return {n: a.value for n, a in kernel.signature.items() if isinstance(a.value, int)}


def _where_error(
    where: ManifestExpression, config: ConfigEntries, error: ExpressionError
) -> ManifestError:
    manifest_error = where.error(error)
    manifest_error.add_context(f"in config {config_text(config)}")
    return manifest_error


def _listed_configs(
    kernel: KernelSpec, autotune: AutotuneReader, target: Target
) -> Iterator[ConfigEntries]:
    match kernel.configs:
        case CartesianConfigs(axes):
            count = math.prod(len(values) for _, values in axes)
            if count * num_choices(kernel) > MAX_CONFIGS:
                sizes = " x ".join(f"{len(values)} {name}" for name, values in axes)
                raise _too_many_configs(kernel, f"{count} ({sizes})")
            names = [name for name, _ in axes]
            for values in itertools.product(*(values for _, values in axes)):
                yield tuple(zip(names, values, strict=True))
        case ListedConfigs(configs):
            yield from configs
        case AutotuneConfigs(computed):
            yield from crossed(_autotune_configs(kernel, autotune, target), computed)


def _autotune_configs(
    kernel: KernelSpec, autotune: AutotuneReader, target: Target
) -> Iterator[ConfigEntries]:
    """Return the source's configs, checked like the manifest's, without repeats.

    Triton distinguishes configs that differ only in a hook; here they are the same.
    """
    fixed = {
        name: argument.value
        for name, argument in kernel.signature.items()
        if argument.value is not None or argument.kind == "none"
    }
    constants = {**fixed, **kernel.constants}
    source_configs = autotune(kernel.source, kernel.function.name, constants, target)
    if not source_configs:
        message = f"expected @triton.autotune on {kernel.function.name!r}, got no config"
        raise ManifestError(message, kernel.configs_loc)
    seen: dict[tuple[object, ...], None] = {}
    for entries in source_configs:
        # A config key of None stands for the default.
        config = tuple(
            (name, value)
            for name, value in entries.items()
            if not (value is None and name in CONFIG_KEYS)
        )
        checked: list[tuple[str, Constant]] = []
        for name, value in config:
            if not isinstance(value, (bool, int, float, str)):
                problem = f"expected a boolean, a number or a string for {name!r}, got {value!r}"
                raise _source_error(kernel, problem, config)
            checked.append((name, value))
        problem = _config_problem(kernel, checked)
        if problem:
            raise _source_error(kernel, problem, config)
        key = typed(tuple(checked))
        if key not in seen:
            seen[key] = None
            yield tuple(checked)


def _config_problem(kernel: KernelSpec, config: Sequence[tuple[str, Constant]]) -> str:
    """Check a config of the source; return the problem, or an empty string."""
    names = [parameter.name for parameter in kernel.function.constexprs]
    fixed_names = {*kernel.constants, *kernel.choices}
    for name, value in config:
        if name in fixed_names:
            return f"{name!r} is in the manifest and in the source's configs"
        if name in CONFIG_KEYS:
            problem = config_value_problem(name, value)
            if problem:
                return problem
        elif name not in names:
            return f"expected a tl.constexpr parameter or a config key, got {name!r}"
    missing = missing_constexpr(kernel.function, fixed_names | {name for name, _ in config})
    if missing is not None:
        return f"expected a value for the tl.constexpr parameter {missing!r}"
    return ""


def _source_error(
    kernel: KernelSpec, problem: str, config: Iterable[tuple[str, object]]
) -> ManifestError:
    error = ManifestError(problem, kernel.configs_loc)
    error.add_context(f"in the source's config {config_text(config)}")
    return error


def config_misfit(config: Mapping[str, Constant], target: Target) -> str:
    """Return why the target cannot launch a config, or an empty string."""
    values = integer_values({**CONFIG_DEFAULTS, **config})
    problem = target.threads_problem(values["num_warps"], values["num_consumer_groups"])
    if problem:
        return problem
    num_ctas = config.get("num_ctas", CONFIG_DEFAULTS["num_ctas"])
    if num_ctas != 1 and Feature.CLUSTERS not in target.features:
        return f"num_ctas = {num_ctas} needs clusters"
    if isinstance(num_ctas, int) and num_ctas > target.max_ctas_per_cluster:
        ctas = f"{num_ctas} CTAs, the limit is {target.max_ctas_per_cluster}"
        return f"num_ctas = {num_ctas} takes clusters of {ctas}"
    return ""


def launch_arguments(kernel: KernelSpec) -> tuple[str, ...]:
    """Return the arguments passed by a launch: all but fixed ones and None."""
    return tuple(name for name, argument in kernel.signature.items() if argument.is_passed)


def integer_values(values: Mapping[str, Constant]) -> dict[str, int]:
    """Return the values usable in an expression; a boolean is 0 or 1."""
    return {name: int(value) for name, value in values.items() if isinstance(value, int)}


def fixed_values(kernel: KernelSpec, config: ConfigEntries) -> dict[str, Constant]:
    """Return the values fixed under a config, not left to the caller."""
    return {**CONFIG_DEFAULTS, **kernel.constants, **dict(config)}


def num_choices(kernel: KernelSpec) -> int:
    """Return the number of combinations of choices, without listing them."""
    return math.prod(len(values) for values in kernel.choices.values())


def config_text(config: Iterable[tuple[str, object]]) -> str:
    """Format a config for a message."""
    return ", ".join(f"{name} = {value_text(value)}" for name, value in config) or "no config"
