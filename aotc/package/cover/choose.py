"""Choose the variant of a launch by the rules of the archive format, without a GPU.

Pointers are assumed aligned and disjoint, tensors dense.

Invariant: `choose` takes the same variant as the runtime.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from aotc.ir import expression
from aotc.ir.expression import Expression, ExpressionError
from aotc.package.archive.index import (
    Choice,
    Guard,
    Kernel,
    Param,
    TypeVariable,
    Value,
    Variant,
    combination,
    guard_mask,
    value_key,
)
from aotc.package.archive.selection import ANY_GPU, Leaf, Selection, leaf_of
from aotc.package.builder.assemble import param_of
from aotc.package.manifest.configs import launch_arguments
from aotc.package.manifest.variant_grid import Expansion, VariantSpec
from aotc.package.tuning.shapes import Launch

_ADDRESS = 1 << 20
_INTEGER = Param("", "scalar", "i32")
_Problem = Literal["type", "choice", "constant", "promise", "condition", "variant"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason that no variant serves a launch; `name` is the type variable, choice or argument."""

    problem: _Problem
    text: str
    name: str = ""
    value: Value = None


def kernel_of(expansion: Expansion) -> tuple[Kernel, dict[Variant, VariantSpec]]:
    """Return an uncompiled kernel's record, and the manifest's spec of each variant.

    A variant's condition for its tensor maps is only known after compiling it.
    """
    spec = expansion.kernel
    specs: dict[Variant, VariantSpec] = {}
    for variant_spec in expansion.variants:
        variant = Variant(
            target=variant_spec.target.name,
            symbol="",
            cubin=b"",
            num_threads=0,
            types=variant_spec.types,
            choices=variant_spec.choices,
            guards=variant_spec.guards,
            config=variant_spec.config_index,
            grid=variant_spec.grid,
        )
        specs[variant] = variant_spec
    fixed = [
        (name, variant_spec.value)
        for name, variant_spec in spec.signature.items()
        if not variant_spec.is_passed
    ]
    kernel = Kernel(
        name=spec.name,
        source_sha256=b"",
        variants=tuple(specs),
        params=tuple(param_of(name, spec.signature[name]) for name in launch_arguments(spec)),
        type_variables=tuple(TypeVariable(n, dtypes) for n, dtypes in spec.types.items()),
        choices=tuple(Choice(name, values) for name, values in spec.choices.items()),
        guards=expansion.guards,
        configs=expansion.configs,
        constants=(*spec.constants.items(), *fixed),
    )
    return kernel, specs


def launch_values(kernel: Kernel, launch: Launch) -> dict[str, int]:
    """Return the values of a launch for expressions."""
    named = (*kernel.constants, *launch.choices.items())
    values = {name: int(value) for name, value in named if isinstance(value, int)}
    for number, param in enumerate(kernel.params, 1):
        if param.kind != "scalar":
            values[param.name] = 0 if param.name in launch.null_pointers else _ADDRESS * number
        shape = [launch.key.get(f"{param.name}.shape[{axis}]", 1) for axis in range(param.rank)]
        for axis in range(param.rank):
            values[f"{param.name}.strides[{axis}]"] = math.prod(shape[axis + 1 :])
    return {**values, **launch.key}


def holds(root: Expression, values: Mapping[str, int]) -> bool:
    """Return whether a condition holds; one that cannot be evaluated does not."""
    try:
        return expression.evaluate(root, values) != 0
    except (ExpressionError, KeyError):
        return False


def choose(
    kernel: Kernel, target: str, launch: Launch, gpu: str = ANY_GPU
) -> tuple[Variant, ...] | Refusal:
    """Return the variants for a launch, the chosen one first, or the reason there is none.

    `gpu` is the driver's name of the device; the kernel may have a selection for it.
    """
    refusal = _refused_name(kernel, launch)
    if refusal is not None:
        return refusal
    values = launch_values(kernel, launch)
    for guard in kernel.guards:
        if guard.is_promise and not holds(guard.expression, values):
            return Refusal("promise", f"expected that {guard.text}", promised_argument(guard))
    run = [
        variant
        for variant in kernel.variants
        if variant.target == target
        and variant.types
        == tuple(launch.types[type_variable.name] for type_variable in kernel.type_variables)
        and all(
            value_key(value) == value_key(launch.choices[choice.name])
            for choice, value in zip(kernel.choices, variant.choices, strict=True)
        )
    ]
    if not run:
        return Refusal("variant", f"no variant for {target} has these types and choices")
    true_guards = {
        index for index, guard in enumerate(kernel.guards) if holds(guard.expression, values)
    }
    serving = [
        variant
        for variant in run
        if true_guards.issuperset(variant.guards)
        and (variant.condition is None or holds(variant.condition, values))
    ]
    if not serving:
        failed = dict.fromkeys(
            kernel.guards[index].text
            for variant in run
            for index in variant.guards
            if index not in true_guards
        )
        return Refusal("condition", f"no config serves it: {'; '.join(failed)} does not hold")
    number = combination(kernel, run[0].types, run[0].choices)
    preferred = _preferred(kernel.selections, target, gpu, number, values)
    rank = {config: position for position, config in enumerate(preferred)}
    serving.sort(
        key=lambda variant: (
            rank.get(variant.config, len(rank)),
            -len(variant.guards),
            guard_mask(variant.guards),
            variant.config,
            variant.condition is None,
        )
    )
    return tuple(serving)


def promised_argument(guard: Guard) -> str:
    """Return the argument of a divisibility promise, or an empty string."""
    match guard.expression:
        case expression.Binary(
            "==", expression.Binary("%", expression.Name(name), _), expression.Integer(0)
        ):
            return name
        case _:
            return ""


def accepting(
    kernel: Kernel,
    types: Mapping[str, Sequence[str]],
    choices: Mapping[str, Sequence[Value]],
    arguments: Sequence[str],
) -> Kernel:
    """Return a kernel with these types and choices added, and with these compiled-in arguments passed.

    Shapes are read for this kernel, so that launches without a variant can be expressed.
    """
    type_variables = tuple(
        replace(axis, dtypes=tuple(dict.fromkeys((*axis.dtypes, *types.get(axis.name, ())))))
        for axis in kernel.type_variables
    )
    joined = tuple(
        replace(axis, values=_distinct((*axis.values, *choices.get(axis.name, ()))))
        for axis in kernel.choices
    )
    points = {
        (dtypes, tuple(map(value_key, values))): (dtypes, values)
        for dtypes, values in _combinations(kernel, types, choices)
    }
    first = kernel.variants[0]
    variants = (replace(first, types=dtypes, choices=values) for dtypes, values in points.values())
    constants = dict(kernel.constants)
    fixed = [name for name in arguments if isinstance(constants.get(name), int)]
    added = tuple(
        replace(_INTEGER, name=name)
        for name in fixed
        if name not in [param.name for param in kernel.params]
    )
    return replace(
        kernel,
        type_variables=type_variables,
        choices=joined,
        variants=tuple(variants),
        params=(*kernel.params, *added),
        constants=tuple((n, value) for n, value in kernel.constants if n not in fixed),
    )


def _refused_name(kernel: Kernel, launch: Launch) -> Refusal | None:
    for variable in kernel.type_variables:
        dtype = launch.types[variable.name]
        if dtype not in variable.dtypes:
            listed = ", ".join(variable.dtypes)
            text = f"expected {variable.name} to be one of {listed}, got {dtype}"
            return Refusal("type", text, variable.name, dtype)
    for choice in kernel.choices:
        value = launch.choices[choice.name]
        if value_key(value) not in map(value_key, choice.values):
            listed = ", ".join(map(str, choice.values))
            text = f"expected {choice.name} to be one of {listed}, got {value}"
            return Refusal("choice", text, choice.name, value)
    for name, value in kernel.constants:
        if name in launch.key and launch.key[name] != value:
            text = f"expected {name} to be {value}, which is compiled in, got {launch.key[name]}"
            return Refusal("constant", text, name, launch.key[name])
    return None


def _distinct(values: Iterable[Value]) -> tuple[Value, ...]:
    return tuple({value_key(value): value for value in values}.values())


def _combinations(
    kernel: Kernel, types: Mapping[str, Sequence[str]], choices: Mapping[str, Sequence[Value]]
) -> Iterator[tuple[tuple[str, ...], tuple[Value, ...]]]:
    """Yield the variants' types and choices, with listed values in place of their own."""
    for variant in kernel.variants:
        variant_dtypes = zip(kernel.type_variables, variant.types, strict=True)
        dtypes = [types.get(axis.name, (dtype,)) for axis, dtype in variant_dtypes]
        chosen = zip(kernel.choices, variant.choices, strict=True)
        values = [choices.get(axis.name, (value,)) for axis, value in chosen]
        for product in itertools.product(*dtypes):
            for choice_values in itertools.product(*values):
                yield product, choice_values


def _preferred(
    selections: Sequence[Selection],
    target: str,
    gpu: str,
    combination: int,
    values: Mapping[str, int],
) -> Leaf:
    """Return the preferred configs: from the GPU's selection, or the one for any of the target."""
    trees = {
        (selection.target, selection.gpu, selection.combination): selection.tree
        for selection in selections
    }
    for name in (gpu, ANY_GPU):
        tree = trees.get((target, name, combination))
        if tree is not None:
            return leaf_of(tree, values)
    return ()
