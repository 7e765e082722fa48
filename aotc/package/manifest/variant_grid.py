"""Expand one kernel of the manifest into the list of variants to compile.

A variant is one point of targets × types × choices × guards × configs. They are listed in this
order, the last varying fastest. Each axis has the manifest's order, and guards go from the most to
the least specialised, so the same manifest always gives the same list. The product's size is
computed before anything is listed: a grid too large is an error with the count.

Invariant: every listed request is complete (each argument typed, each constexpr given or defaulted)
and fits the threads of its target. A config that does not fit is dropped with a remark.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from aotc.compiler import CompileRequest
from aotc.config import Config
from aotc.ir import expression
from aotc.ir.diagnostics import ManifestError
from aotc.ir.expression import Expression, ExpressionError
from aotc.ir.params import NOALIAS
from aotc.package.archive.index import Guard, null_test
from aotc.package.archive.label import value_text
from aotc.package.manifest.argument_type import NONE, ArgumentType
from aotc.package.manifest.computed_parameters import with_computed
from aotc.package.manifest.configs import (
    AutotuneReader,
    ConfigEntries,
    Serves,
    config_misfit,
    config_text,
    configs_of_targets,
    fixed_arguments,
    fixed_values,
    integer_values,
    launch_arguments,
    num_choices,
    typed,
)
from aotc.package.manifest.spec import (
    KernelSpec,
    ManifestExpression,
)
from aotc.package.manifest.tensor_guard import tensor_guard
from aotc.package.manifest.toml_table import Constant
from aotc.target import Target

MAX_VARIANTS = 1 << 16
MAX_GUARDS = 64
_MAX_NAMED = 3

_DIVISIONS = ("//", "%", "cdiv")


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """One variant to compile.

    `types` and `choices` are the values of the kernel's type variables and choices, in order.
    `waived` names the arguments without their optional promise, `absent` the pointers fixed to
    None. `guards` and `config_index` index the expansion's guards and configs. `grid` names launch
    arguments only, and is empty if the caller gives the grid.
    """

    kernel: KernelSpec
    target: Target
    types: tuple[str, ...]
    choices: tuple[Constant, ...]
    waived: tuple[str, ...]
    absent: tuple[str, ...]
    guards: tuple[int, ...]
    config_index: int
    config: ConfigEntries
    grid: tuple[Expression, ...] = ()

    @property
    def values(self) -> dict[str, Constant]:
        """Constants, choices and config entries by name, defaults included."""
        choices = zip(self.kernel.choices, self.choices, strict=True)
        return {**fixed_values(self.kernel, self.config), **dict(choices)}

    @property
    def request(self) -> CompileRequest:
        """The request to the compiler."""
        types = dict(zip(self.kernel.types, self.types, strict=True))
        values = self.values
        concrete = {
            name: self._assumed(name, argument).concrete(types, values)
            for name, argument in self.kernel.signature.items()
        }
        constexprs = [parameter.name for parameter in self.kernel.function.constexprs]
        return CompileRequest(
            source=self.kernel.source,
            kernel=self.kernel.function.name,
            signature=self.kernel.joined(concrete),
            constants=tuple((name, values[name]) for name in constexprs if name in values),
            target=self.target.name,
            config=Config.of(values),
            without=self.target.without,
            toolchain=self.target.toolchain,
            facts=self.target.facts,
            map_pointers=True,
            limits=self.kernel.limits,
            enable_fp_fusion=self.kernel.enable_fp_fusion,
            enable_reflect_ftz=self.kernel.enable_reflect_ftz,
            launch_cooperative_grid=self.kernel.launch_cooperative_grid,
            captured=tuple(self.kernel.captures.items()),
        )

    @property
    def label(self) -> str:
        """The variant's name in messages: `add sm_90a T=bf16 n:16 num_warps=4`."""
        parts = [self.kernel.name, self.target.name]
        parts += [f"{n}={dtype}" for n, dtype in zip(self.kernel.types, self.types, strict=True)]
        choices = zip(self.kernel.choices, self.choices, strict=True)
        parts += [f"{name}={value_text(value)}" for name, value in choices]
        parts += [f"{name}=none" for name in self.absent]
        parts += [
            f"{name}:{argument.divisor}"
            for name, argument in self.kernel.signature.items()
            if argument.is_optional and name not in (*self.waived, *self.absent)
        ]
        parts += [f"{name}={value_text(value)}" for name, value in self.config]
        return " ".join(parts)

    def _assumed(self, name: str, argument: ArgumentType) -> ArgumentType:
        if name in self.absent:
            return NONE
        return argument.without_promise() if name in self.waived else argument


@dataclass(frozen=True, slots=True)
class Expansion:
    """All variants of a kernel, with their configs and guards.

    `dropped` has a remark for each config too large for a target.
    """

    kernel: KernelSpec
    configs: tuple[ConfigEntries, ...]
    guards: tuple[Guard, ...]
    variants: tuple[VariantSpec, ...]
    dropped: tuple[str, ...]


def expand(kernel: KernelSpec, targets: Sequence[Target], autotune: AutotuneReader) -> Expansion:
    """Return the variants of `kernel` for `targets`.

    `autotune(source, function, constants, target)` returns the configs of the source's
    `@triton.autotune`; it is called only if the manifest asks for them.

    Raises:
        ManifestError: there are too many variants, or none for a target; a `where` or a config
            of the source is wrong.
    """
    kernel = with_computed(kernel, targets[0])
    _check_count(kernel, len(targets), 1)
    accepted = configs_of_targets(kernel, targets, autotune)
    index_of: dict[tuple[object, ...], int] = {}
    for config, _ in itertools.chain(*accepted.values()):
        index_of.setdefault(typed(config), len(index_of))
    configs = tuple({typed(c): c for c, _ in itertools.chain(*accepted.values())}.values())
    remaining = (serves.values() for _, serves in itertools.chain(*accepted.values()))
    guards, guard_of = _guards(kernel, itertools.chain(*remaining))
    _check_count(kernel, len(targets), len(configs))
    variants: list[VariantSpec] = []
    dropped: list[str] = []
    folders = [expression.Folder(dimension.root) for dimension in kernel.grid or ()]
    for target in targets:
        fitting: list[tuple[ConfigEntries, Serves]] = []
        for config, serves in accepted[target]:
            misfit = config_misfit(dict(config), target)
            if misfit:
                dropped.append(f"{kernel.name} {target}: {config_text(config)}: {misfit}")
            else:
                fitting.append((config, serves))
        if not fitting:
            raise none_left(kernel, target, dropped)
        for types, choices, (absent, waived) in itertools.product(
            itertools.product(*kernel.types.values()),
            itertools.product(*kernel.choices.values()),
            _forms(kernel),
        ):
            form_guards = _guards_of_form(kernel, guard_of, absent, waived)
            serving = [(config, serves) for config, serves in fitting if choices in serves]
            if not serving:
                raise _none_for_choices(kernel, target, choices, dropped)
            for config, serves in serving:
                index = index_of[typed(config)]
                condition = serves[choices]
                variant_guards = (
                    form_guards if condition is None else (*form_guards, guard_of[condition])
                )
                spec = VariantSpec(
                    *(kernel, target, types, choices, waived, absent, variant_guards, index, config)
                )
                variants.append(replace(spec, grid=_folded_grid(spec, folders)))
    return Expansion(kernel, configs, guards, tuple(variants), tuple(dropped))


def none_left(kernel: KernelSpec, target: Target, dropped: Iterable[str]) -> ManifestError:
    """Return the error for a kernel without a config that fits the target."""
    message = f"expected a config of {kernel.name!r} that {target} can hold, got none"
    error = ManifestError(message, kernel.configs_loc)
    for line in dropped:
        error.add_context(line)
    return error


def _none_for_choices(
    kernel: KernelSpec, target: Target, choices: Sequence[Constant], dropped: Iterable[str]
) -> ManifestError:
    """Return the error for choices without an accepted config that fits the target."""
    choices_text = config_text(zip(kernel.choices, choices, strict=True))
    message = f"expected `where` to accept a config for {choices_text} on {target}, it rejects all"
    error = ManifestError(message, kernel.where.loc if kernel.where else kernel.configs_loc)
    error.remedy = "a launch may ask for these choices: leave one out, or accept a config for it"
    for line in dropped:
        error.add_context(line)
    return error


def _forms(kernel: KernelSpec) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """List the forms to build: the pointers that are None, and the waived promises."""
    pointers = [name for name, argument in kernel.signature.items() if argument.may_be_none]
    forms: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    for presence in itertools.product((True, False), repeat=len(pointers)):
        absent = tuple(
            name for name, is_given in zip(pointers, presence, strict=True) if not is_given
        )
        optional = [
            name
            for name, argument in kernel.signature.items()
            if argument.is_optional and name not in absent
        ]
        for promised in _promises(kernel, len(optional)):
            waived = tuple(n for n, holds in zip(optional, promised, strict=True) if not holds)
            forms.append((absent, waived))
    return forms


def _guards_of_form(
    kernel: KernelSpec,
    guard_of: Mapping[str | Expression, int],
    absent: tuple[str, ...],
    waived: tuple[str, ...],
) -> tuple[int, ...]:
    """Return the guards of a form: null tests, and the promises not waived."""
    guards: list[int] = []
    for name, argument in kernel.signature.items():
        # Zero is a multiple of everything, so a promise made by all variants holds for None.
        is_promised = name in guard_of and name not in waived
        if is_promised and not (name in absent and argument.is_optional):
            guards.append(guard_of[name])
        if argument.noalias:
            guards.append(guard_of[f"{name} {NOALIAS}"])
        if argument.bounds is not None:
            guards.append(guard_of[f"{name} in"])
        if argument.may_be_none:
            guards.append(guard_of[null_test(name, is_null=name in absent)])
    return tuple(guards)


def _promises(kernel: KernelSpec, num_optional: int) -> Iterable[tuple[bool, ...]]:
    """Yield the truth of each optional promise, for each combination to build."""
    if kernel.guards == "together" and num_optional:
        return ((True,) * num_optional, (False,) * num_optional)
    return itertools.product((True, False), repeat=num_optional)


def num_forms(kernel: KernelSpec) -> int:
    """Return the number of forms, without listing them."""
    arguments = kernel.signature.values()
    num_pointers = sum(argument.may_be_none for argument in arguments)
    if kernel.guards == "together":
        return 2 ** (num_pointers + any(argument.is_optional for argument in arguments))
    num_optional = sum(argument.is_optional and not argument.may_be_none for argument in arguments)
    num_both = sum(argument.is_optional and argument.may_be_none for argument in arguments)
    return 2 ** (num_pointers - num_both + num_optional) * 3**num_both


def _check_count(kernel: KernelSpec, num_targets: int, num_configs: int) -> None:
    """Check the number of variants before any is listed."""
    axes = {
        "targets": num_targets,
        "types": math.prod(len(dtypes) for dtypes in kernel.types.values()),
        "choices": num_choices(kernel),
        "guards": num_forms(kernel),
        "configs": num_configs,
    }
    count = math.prod(axes.values())
    if count > MAX_VARIANTS:
        product = " x ".join(f"{size} {axis}" for axis, size in axes.items())
        message = f"expected at most {MAX_VARIANTS} variants of {kernel.name!r}, got "
        message += f"{count}: {product}" if num_configs > 1 else f"at least {count}: {product}"
        largest = max(axes, key=lambda axis: axes[axis])
        remedy = f"{_REMEDIES[largest]}{_longest(kernel, largest)}"
        raise ManifestError(message, kernel.loc, remedy=remedy)


def _longest(kernel: KernelSpec, axis: str) -> str:
    """Describe the lines of an axis with the most values, for a remedy."""
    lines = {"types": kernel.types, "choices": kernel.choices}.get(axis, {})
    sizes = {name: len(values) for name, values in lines.items() if len(values) > 1}
    first = sorted(sizes, key=lambda name: -sizes[name])[:_MAX_NAMED]
    return f" ({', '.join(f'{name} has {sizes[name]}' for name in first)})" if first else ""


_REMEDIES = {
    "targets": "list fewer `targets`",
    "types": "list fewer `types`",
    "choices": "list fewer `choices`: each value is built with every other",
    "guards": 'make fewer promises optional, or build them together: guards = "together"',
    "configs": "filter the configs with `where`",
}


def _folded_grid(
    variant: VariantSpec, folders: Sequence[expression.Folder]
) -> tuple[Expression, ...]:
    """Fold constants, config and fixed arguments into the grid of a variant."""
    kernel = variant.kernel
    constants = integer_values({**variant.values, **fixed_arguments(kernel)})
    arguments = launch_arguments(kernel)
    folded: list[Expression] = []
    for dimension, fold in zip(kernel.grid or (), folders, strict=True):
        try:
            root = fold(constants)
        except ExpressionError as error:
            raise _grid_error(variant, dimension, error) from None
        for name, col in expression.free_names(root).items():
            if name not in arguments:
                message = f"expected an integer for `{name}`, it is {variant.values.get(name)!r}"
                problem = ExpressionError(message, col, len(name))
                raise _grid_error(variant, dimension, problem)
        _check_launches(variant, dimension, root)
        folded.append(root)
    return tuple(folded)


def _check_launches(variant: VariantSpec, dimension: ManifestExpression, root: Expression) -> None:
    """Reject a dimension that is invalid for all arguments."""
    if isinstance(root, expression.Integer) and root.value < 1:
        message = f"expected a grid of at least 1, this is always {root.value}"
        raise _grid_error(variant, dimension, ExpressionError(message, root.col))
    for node in expression.walk(root):
        if not isinstance(node, expression.Binary) or node.op not in _DIVISIONS:
            continue
        if node.rhs == expression.Integer(0):
            message = f"`{expression.to_text(node)}` divides by zero"
            raise _grid_error(variant, dimension, ExpressionError(message, node.col))


def _grid_error(
    variant: VariantSpec, dimension: ManifestExpression, error: ExpressionError
) -> ManifestError:
    manifest_error = dimension.error(error)
    manifest_error.add_context(f"in variant {variant.label}")
    return manifest_error


def _guards(
    kernel: KernelSpec, conditions: Iterable[Expression | None]
) -> tuple[tuple[Guard, ...], dict[str | Expression, int]]:
    """Return the kernel's guards, and the index of each by its argument or condition.

    Promises about arguments come first, then the remaining conditions of `where`.
    """
    guards: list[Guard] = []
    index_of: dict[str | Expression, int] = {}
    for name, argument in kernel.signature.items():
        if argument.bounds is not None:
            low, high = argument.bounds
            index_of[f"{name} in"] = len(guards)
            in_range = expression.fold(
                expression.parse(f"{low} <= {name} and {name} <= {high}"), {}
            )
            guards.append(Guard(in_range, f"{name} is from {low} to {high}", is_promise=True))
        for is_null in (False, True) if argument.may_be_none else ():
            test = null_test(name, is_null=is_null)
            index_of[test] = len(guards)
            text = f"{name} is {'None' if is_null else 'not None'}"
            guards.append(Guard(test, text, is_promise=False))
        if argument.divisor > 1:
            condition = f"{name} % {argument.divisor} == 0"
            text = (
                f"{name} is {argument.divisor}-byte aligned"
                if argument.kind == "pointer"
                else f"{name} is a multiple of {argument.divisor}"
            )
        elif argument.kind == "tensordesc":
            index_of[name] = len(guards)
            guards.append(tensor_guard(kernel, name, has_whole_rows=True))
            continue
        else:
            continue
        index_of[name] = len(guards)
        is_promise = not argument.is_optional
        guards.append(Guard(expression.parse(condition), text, is_promise=is_promise))
    for name in _pointers(kernel):
        if kernel.signature[name].noalias:
            index_of[f"{name} {NOALIAS}"] = len(guards)
            other_pointers = [pointer for pointer in _pointers(kernel) if pointer != name]
            apart = [f"({name} != {other} or {name} == 0)" for other in other_pointers]
            text = f"{name} points at no memory of {', '.join(other_pointers)}"
            guards.append(Guard(expression.parse(" and ".join(apart)), text, is_promise=True))
    for root in conditions:
        if root is not None and root not in index_of:
            index_of[root] = len(guards)
            guards.append(Guard(root, expression.to_text(root), is_promise=False))
    if len(guards) > MAX_GUARDS:
        message = f"expected at most {MAX_GUARDS} conditions on the arguments, got {len(guards)}"
        remedy = "leave out promises that gain nothing, or take argument names out of `where`"
        raise ManifestError(message, kernel.loc, remedy=remedy)
    return tuple(guards), index_of


def _pointers(kernel: KernelSpec) -> list[str]:
    """Return the arguments that are addresses of memory."""
    return [n for n, a in kernel.signature.items() if a.kind in ("pointer", "tensordesc")]
