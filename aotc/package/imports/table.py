"""Make a tuning table of a manifest's kernels from the results of other autotuners.

A config chosen without a time is written alone, with one microsecond. So its launch takes it, and a
launch with measured times keeps them.

Invariant: an imported launch only names arguments of the kernel, with the dtypes and values it is
built for.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from aotc.compiler import autotune_configs
from aotc.config import CONFIG_KEYS
from aotc.frontend.python.resolve import dotted_name
from aotc.ir import expression
from aotc.ir.diagnostics import CompileError, ManifestError
from aotc.ir.expression import Expression, ExpressionError
from aotc.package.archive.index import value_key
from aotc.package.imports.gpus import capability_of
from aotc.package.imports.read import Imported
from aotc.package.init.dtypes import dtype_word
from aotc.package.manifest.configs import (
    completed,
    config_text,
    configs_of_targets,
    launch_arguments,
)
from aotc.package.manifest.spec import KernelSpec, Manifest
from aotc.package.manifest.toml_table import Constant
from aotc.package.tuning.merge import merge_tunings
from aotc.package.tuning.table import KernelTuning, Measurement, TuningTable
from aotc.regular_file import MAX_SOURCE_BYTES, read_regular
from aotc.target import Target

UNTIMED_SECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class Options:
    """Options missing from files: the kernel, the target, the GPU, and arguments as expressions.

    Of files that name the form of the weights, those of `form` are taken.
    """

    kernel: str = ""
    target: str = ""
    gpu: str = ""
    form: str = ""
    arguments: Mapping[str, Expression] = field(default_factory=dict[str, Expression])


@dataclass(frozen=True, slots=True)
class Result:
    """The table, and the skipped parts of each file with the reason."""

    table: TuningTable
    notes: tuple[str, ...]


def import_table(manifest: Manifest, imported: Sequence[Imported], options: Options) -> Result:
    """Return the tuning of a manifest's kernels. Raises: ManifestError for missing options."""
    target = _target(manifest, options)
    notes: dict[str, None] = {}
    tables: list[TuningTable] = []
    unbuilt: dict[str, dict[str, None]] = {}
    configs = _Configs(target)
    taken, left_out = _selected(imported, target, options)
    notes.update(dict.fromkeys(left_out))
    for file in taken:
        kernels = _kernels(manifest, file, options)
        if not kernels:
            notes[f"{file.path}: no kernel of the manifest is {file.function}"] = None
        for kernel in kernels:
            launches = _launches(kernel, file, options)
            if isinstance(launches, str):
                notes[f"{file.path}: {kernel.name}: {launches}"] = None
                continue
            tuning, unknown = _tuning(kernel, file, configs, options.gpu or file.gpu)
            unbuilt.setdefault(kernel.name, {}).update(dict.fromkeys(unknown))
            tables += (
                TuningTable((replace(tuning, measurements=(measurement,)),))
                for measurement in _measurements(file, launches)
            )
    for name, texts in unbuilt.items():
        if texts:
            first, *more = texts
            tail = f", and {len(more)} more" if more else ""
            notes[f"{name}: no config of the manifest is {first}{tail}"] = None
    return Result(merge_tunings(tables), tuple(notes))


def _selected(
    imported: Sequence[Imported], target: Target, options: Options
) -> tuple[list[Imported], list[str]]:
    """Return the files for the target's GPUs and the wanted form, and notes on the others."""
    taken: list[Imported] = []
    other_gpus: dict[str, None] = {}
    other_forms: dict[str, None] = {}
    for file in imported:
        capability = capability_of(file.gpu)
        if file.gpu and not options.gpu and not (capability and target.runs_on(*capability)):
            other_gpus[file.gpu] = None
        elif file.form != options.form:
            other_forms[file.form or "no dtype"] = None
        else:
            taken.append(file)
    notes = [
        f"left out: {kind}: {', '.join(sorted(names))}"
        for kind, names in (
            (f"configs of other GPUs than {target.name}'s", other_gpus),
            ("configs of other weights; --dtype takes one of these", other_forms),
        )
        if names
    ]
    return taken, notes


class _Configs:
    """The configs that a manifest builds for a target, by kernel."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._known: dict[str, dict[tuple[object, ...], Mapping[str, Constant]]] = {}

    def of(self, kernel: KernelSpec) -> Mapping[tuple[object, ...], Mapping[str, Constant]]:
        """Return a kernel's configs by their completed form."""
        if kernel.name not in self._known:
            configs = configs_of_targets(kernel, [self.target], autotune_configs)[self.target]
            self._known[kernel.name] = {completed(dict(c)): dict(c) for c, _ in configs}
        return self._known[kernel.name]


def add_to(table: TuningTable, imported: TuningTable) -> TuningTable:
    """Merge an imported table into `table`; launches in `table` keep their times."""
    existing = {
        (tuning.identity, launch.identity)
        for tuning in table.kernels
        for launch in tuning.measurements
    }
    added = [
        replace(
            tuning,
            measurements=tuple(
                launch
                for launch in tuning.measurements
                if (tuning.identity, launch.identity) not in existing
            ),
        )
        for tuning in imported.kernels
    ]
    return merge_tunings(
        [
            table,
            TuningTable(
                tuple(kernel_tuning for kernel_tuning in added if kernel_tuning.measurements)
            ),
        ]
    )


def _target(manifest: Manifest, options: Options) -> Target:
    targets = manifest.targets_for([options.target] if options.target else [], ())
    if len(targets) != 1:
        names = ", ".join(target.name for target in targets)
        message = f"expected one target, the manifest has {names}"
        raise ManifestError(message, remedy="name the GPU's with --target")
    return targets[0]


def _kernels(manifest: Manifest, file: Imported, options: Options) -> list[KernelSpec]:
    if options.kernel:
        return [manifest.kernel(options.kernel)]
    if file.function:
        return [k for k in manifest.kernels if k.function.name[:150] == file.function]
    if len(manifest.kernels) == 1:
        return [*manifest.kernels]
    message = f"expected a kernel for {file.path}, which does not name it"
    raise ManifestError(message, remedy="name it with --kernel")


_Launch = tuple[dict[str, int], dict[str, str], dict[str, Constant]]


def _launches(kernel: KernelSpec, file: Imported, options: Options) -> list[_Launch] | str:
    """Return key, types and choices of the tuned launches, or why there is none."""
    argument_values: dict[str, object] = dict(file.numbers)
    if file.key:
        names = autotune_key(kernel.source, kernel.function.name)
        arguments = [parameter.name for parameter in kernel.function.parameters]
        if names is None or len(names) < len(file.key):
            return "its source has no @triton.autotune with this key"
        names = [name for name in names if name in arguments]
        argument_values |= dict(zip(names, file.key, strict=False))
    integers = {n: v for n, v in argument_values.items() if isinstance(v, int)}
    for name, root in options.arguments.items():
        argument_values[name] = integers[name] = _computed(name, root, integers, file.path)
    if not file.key:  # the file's other names may differ in meaning from the arguments'
        argument_values = {
            n: v for n, v in argument_values.items() if n in options.arguments or n == "M"
        }
    fixed = {n: a.value for n, a in kernel.signature.items() if a.value is not None}
    for name, value in (*fixed.items(), *kernel.constants.items()):
        if name in argument_values and argument_values[name] != value:
            return f"{name} is compiled in as {value}, and was tuned for {argument_values[name]}"
    types = _types(kernel, file.dtypes)
    if isinstance(types, str):
        return types
    passed = launch_arguments(kernel)
    key = {
        name: value
        for name, value in argument_values.items()
        if isinstance(value, int) and name.partition(".")[0] in passed
    }
    if not key:
        return "no argument of a launch is known: give some with --set NAME=EXPRESSION"
    combinations = list(_choices(kernel, argument_values))
    return [(key, dict(dtypes), choices) for dtypes in types for choices in combinations] or (
        "it was tuned for choices that are not built"
    )


def _computed(name: str, root: Expression, integers: Mapping[str, int], path: Path) -> int:
    try:
        return expression.evaluate(root, integers)
    except ExpressionError as error:
        names = ", ".join(integers) or "none"
        message = f"cannot compute {name} for {path}: {error.message}"
        raise ManifestError(message, remedy=f"values are {names}") from None


def _types(kernel: KernelSpec, dtypes: Sequence[str]) -> list[dict[str, str]] | str:
    """Return the types of a launch with tensors of these dtypes; of unknown ones, all."""
    pointers = [
        kernel.signature[name].element
        for name in launch_arguments(kernel)
        if kernel.signature[name].kind != "scalar"
    ]
    words = [dtype_word(text) for text in dtypes]
    if not words or len(words) != len(pointers):
        products = itertools.product(*kernel.types.values())
        return [dict(zip(kernel.types, product, strict=True)) for product in products]
    types: dict[str, str] = {}
    for element, word in zip(pointers, words, strict=True):
        dtypes_of_element = kernel.types.get(element, (element,))
        if word not in dtypes_of_element or types.get(element, word) != word:
            return f"it was tuned for {', '.join(words)}"
        if element in kernel.types:
            types[element] = word
    open_ = {name: values for name, values in kernel.types.items() if name not in types}
    return [
        {**types, **dict(zip(open_, product, strict=True))}
        for product in itertools.product(*open_.values())
    ]


def _choices(kernel: KernelSpec, arguments: Mapping[str, object]) -> Iterator[dict[str, Constant]]:
    """Yield the choices consistent with a key; choices missing from it take all values."""
    for values in itertools.product(*kernel.choices.values()):
        choices = dict(zip(kernel.choices, values, strict=True))
        if all(
            name not in arguments or value_key(value) == value_key(arguments[name])  # pyright: ignore[reportArgumentType]
            for name, value in choices.items()
        ):
            yield choices


def _tuning(
    kernel: KernelSpec, file: Imported, built: _Configs, gpu: str
) -> tuple[KernelTuning, list[str]]:
    """Return the tuning with the manifest's configs, and the configs not in the manifest."""
    names = {*CONFIG_KEYS, *(parameter.name for parameter in kernel.function.constexprs)}
    names -= {*kernel.constants, *kernel.choices}
    manifest_configs = built.of(kernel)
    configs: list[Mapping[str, Constant]] = []
    unknown: list[str] = []
    for config, _ in file.configs:
        entries = {name: value for name, value in config.items() if name in names}
        if completed(entries) not in manifest_configs:
            unknown.append(config_text(entries.items()))
        configs.append(manifest_configs.get(completed(entries), entries))
    return KernelTuning(kernel.name, built.target.name, gpu, tuple(configs), ()), unknown


def _measurements(file: Imported, launches: Sequence[_Launch]) -> Iterator[Measurement]:
    seconds = tuple(
        UNTIMED_SECONDS if measured is None else measured for _, measured in file.configs
    )
    for key, types, choices in launches:
        yield Measurement(key=key, types=types, choices=choices, seconds=seconds)


def autotune_key(source: str, function: str) -> list[str] | None:
    """Return the names of the key of a function's `@triton.autotune`, None if it lists none.

    Raises: CompileError if the source cannot be read.
    """
    try:
        tree = ast.parse(read_regular(Path(source), MAX_SOURCE_BYTES))
    except OSError as error:
        raise CompileError(f"cannot read {source}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise CompileError(f"{source} is not Python: {error}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            for decorator in node.decorator_list:
                names = _key_of(decorator)
                if names is not None:
                    return names
    return None


def _key_of(decorator: ast.expr) -> list[str] | None:
    if not isinstance(decorator, ast.Call):
        return None
    if dotted_name(decorator.func).rpartition(".")[2] != "autotune":
        return None
    key_lists = [
        keyword.value for keyword in decorator.keywords if keyword.arg == "key"
    ] or decorator.args[1:2]
    try:
        value: object = ast.literal_eval(key_lists[0])
    except (ValueError, IndexError):
        return None
    return [str(name) for name in value] if isinstance(value, list | tuple) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
