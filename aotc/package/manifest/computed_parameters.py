"""Build both values of parameters computed by `@triton.heuristics` from a launch's integers.

`EVEN` of `lambda args: args["n"] % args["BLOCK"] == 0` is added to the configs as true and as
false. Each config keeps the condition for its value, checked by the launcher as part of `where`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from aotc.compiler import launch_heuristics
from aotc.ir import expression
from aotc.ir.diagnostics import CompileError, ManifestError
from aotc.ir.expression import ExpressionError
from aotc.ir.types import SCALARS
from aotc.package.manifest.argument_type import ArgumentType
from aotc.package.manifest.spec import (
    AutotuneConfigs,
    CartesianConfigs,
    KernelSpec,
    ListedConfigs,
    ManifestExpression,
)
from aotc.package.manifest.toml_table import Constant
from aotc.target import Target

_MAX_COMPUTED = 6
"""A kernel's launches may have 2**6 conditions (`variant_grid.MAX_GUARDS`)."""
_MAX_FILTERED = 10

ConfigEntries = tuple[tuple[str, Constant], ...]


def with_computed(kernel: KernelSpec, target: Target) -> KernelSpec:
    """Return a kernel with its computed heuristics added to the configs.

    The kernel is returned unchanged if there are none, or if the manifest gives them all. A
    heuristic that cannot be read is left to the compiler, which reports it.
    """
    names = [
        parameter.name for parameter in kernel.function.constexprs if parameter.may_be_computed
    ]
    names = [name for name in names if name not in _manifest_parameters(kernel)]
    if not names:
        return kernel
    constants = [
        parameter.name for parameter in kernel.function.constexprs if parameter.name not in names
    ]
    integers = [name for name, argument in kernel.signature.items() if _is_integer(argument)]
    try:
        heuristics = launch_heuristics(
            kernel.source, kernel.function.name, integers, constants, target
        )
        computed = {name: heuristics[name] for name in names if name in heuristics}
        root = _condition(kernel, computed)
    except (CompileError, ExpressionError):
        return kernel
    if not computed:
        return kernel
    _check_few(kernel, computed)
    axes = tuple((name, (True, False)) for name in computed)
    configs = kernel.configs
    match configs:
        case CartesianConfigs(given):
            configs = CartesianConfigs((*given, *axes))
        case ListedConfigs(given):
            configs = ListedConfigs(tuple(crossed(given, axes)))
        case AutotuneConfigs():
            configs = AutotuneConfigs(axes)
    loc = kernel.where.loc if kernel.where is not None else kernel.configs_loc
    return replace(kernel, configs=configs, where=ManifestExpression(root, loc))


def crossed(
    configs: Iterable[ConfigEntries], axes: tuple[tuple[str, tuple[Constant, ...]], ...]
) -> Iterator[ConfigEntries]:
    """Yield each config with every combination of the axes it does not set itself."""
    for config in configs:
        missing = [(name, values) for name, values in axes if name not in dict(config)]
        names = [name for name, _ in missing]
        for values in itertools.product(*(values for _, values in missing)):
            yield (*config, *zip(names, values, strict=True))


def _check_few(kernel: KernelSpec, computed: Iterable[str]) -> None:
    """Limit the number of computed parameters: each combination needs a condition.

    A `where` may exclude combinations, so some more are allowed with it.

    Raises: ManifestError.
    """
    names = list(computed)
    most = _MAX_COMPUTED if kernel.where is None else _MAX_FILTERED
    if len(names) > most:
        raise ManifestError(
            f"expected at most {most} parameters of {kernel.name!r} that heuristics compute of a launch's "
            f"arguments, got {len(names)}: {', '.join(names)}",
            kernel.loc,
            remedy=f"give some in the manifest, such as constants = {{ {names[-1]} = true }}",
        )


def _manifest_parameters(kernel: KernelSpec) -> set[str]:
    """Return the parameters given in the manifest."""
    names = {*kernel.constants, *kernel.choices}
    match kernel.configs:
        case CartesianConfigs(axes):
            return names | {name for name, _ in axes}
        case ListedConfigs(configs):
            return names | {name for config in configs for name, _ in config}
        case AutotuneConfigs():
            return names


def _is_integer(argument: ArgumentType) -> bool:
    element = SCALARS.get(argument.element)
    is_number = argument.kind == "scalar" and element is not None and element.is_int
    return is_number and argument.is_passed


def _condition(kernel: KernelSpec, computed: dict[str, str]) -> expression.Expression:
    texts = [f"({name} == ({text}))" for name, text in computed.items()]
    if kernel.where is not None:
        texts.insert(0, f"({expression.to_text(kernel.where.root)})")
    return expression.parse(" and ".join(texts))
