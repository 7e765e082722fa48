"""Provide the subjects of tuning: an archive's kernels, with their manifest's inputs.

Invariant: a subject has the kernel's tile IR as text, so a process without its sources can use it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from aotc.compiler import PtxKernel, autotune_configs, translate_request
from aotc.config import CONFIG_KEYS
from aotc.ir.text import print_kernel
from aotc.package.archive.index import Archive, Kernel, Value, parse_target, value_key
from aotc.package.manifest.spec import Manifest
from aotc.package.manifest.variant_grid import Expansion, expand
from aotc.package.tuning.shape_text import Entry
from aotc.package.tuning.shapes import Launch
from aotc.package.verify.subjects import Subject, subject_of, subjects_of_archive
from aotc.target import Target


def target_for(kernel: Kernel, capability: tuple[int, int]) -> str:
    """Return the target for a GPU, as picked by the runtime; empty if no variant runs on it."""
    fitting = [name for name in kernel.targets if parse_target(name).runs_on(*capability)]
    return max(fitting, key=lambda name: parse_target(name).preference, default="")


@dataclass(slots=True)
class Subjects:
    """The variants of an archive's kernels, selected by launch."""

    archive: Archive
    manifest: Manifest | None
    path: str
    _expansions: dict[tuple[str, str], Expansion] = field(
        default_factory=dict[tuple[str, str], Expansion]
    )
    _subjects: dict[object, tuple[Subject, ...]] = field(
        default_factory=dict[object, "tuple[Subject, ...]"]
    )

    def defaults(self, kernel: str) -> dict[str, Entry]:
        """Return the manifest's values of a kernel's arguments, for shapes that leave them out."""
        if self.manifest is None:
            return {}
        for spec in self.manifest.kernels:
            if spec.name == kernel:
                expressions = {name: e.root for name, e in spec.verify.expressions.items()}
                return {**spec.verify.values, **expressions}
        return {}

    def of(self, launch: Launch, target: str) -> tuple[Subject, ...]:
        """Return variants for the launch, with tile IR; none without a manifest or stored IR.

        Only variants with extreme constants are returned, since these may need the largest buffers.

        Raises: DiagnosticError if the manifest's kernel cannot be compiled.
        """
        key = (
            launch.kernel,
            target,
            *map(_items, (launch.types, launch.choices)),
            launch.null_pointers,
        )
        if key not in self._subjects:
            if self.manifest is not None:
                self._subjects[key] = self._of_manifest(self.manifest, launch, target)
            else:
                self._subjects[key] = self._of_archive(launch, target)
        return self._subjects[key]

    def _of_manifest(self, manifest: Manifest, launch: Launch, target: str) -> tuple[Subject, ...]:
        if all(spec.name != launch.kernel for spec in manifest.kernels):
            return ()
        expansion = self._expansion(manifest, launch.kernel, target)
        kernel = expansion.kernel
        types = tuple(launch.types[name] for name in kernel.types)
        choices = [value_key(launch.choices[name]) for name in kernel.choices]
        # The last variant of a config wins: the one with the fewest promises.
        fitting = {
            variant.config_index: variant
            for variant in expansion.variants
            if variant.types == types
            and [value_key(value) for value in variant.choices] == choices
            and variant.absent == launch.null_pointers
        }
        configs = {index: dict(variant.config) for index, variant in fitting.items()}
        subjects: list[Subject] = []
        for index in extreme_configs(configs):
            subject = subject_of(expansion, fitting[index])
            tile_kernel = translate_request(fitting[index].request).kernel
            stored = PtxKernel(print_kernel(tile_kernel), "", tile_kernel.name, 0)
            subjects.append(replace(subject, request=None, expanded=None, stored=stored))
        return tuple(subjects)

    def _expansion(self, manifest: Manifest, kernel: str, target: str) -> Expansion:
        key = kernel, target
        if key not in self._expansions:
            chosen: tuple[Target, ...] = tuple(manifest.targets_for([target], ()))
            ((spec, among),) = manifest.select([kernel], chosen)
            self._expansions[key] = expand(spec, among, autotune_configs)
        return self._expansions[key]

    def _of_archive(self, launch: Launch, target: str) -> tuple[Subject, ...]:
        kernel = next(
            archived for archived in self.archive.kernels if archived.name == launch.kernel
        )
        variants = [variant for variant in kernel.variants if variant.target == target]
        if any(variant.ptx is None for variant in variants):
            return ()
        types = tuple(launch.types[variable.name] for variable in kernel.type_variables)
        choices = [value_key(launch.choices[choice.name]) for choice in kernel.choices]
        alone = replace(self.archive, kernels=(replace(kernel, variants=tuple(variants)),))
        fitting: dict[int, Subject] = {}
        for subject in subjects_of_archive(alone, self.path):
            assert subject.archived is not None
            _, variant = subject.archived
            absent = {name for name in kernel.nullable if subject.values.get(name) == 0}
            same_choices = [value_key(value) for value in variant.choices] == choices
            if variant.types == types and same_choices and absent == set(launch.null_pointers):
                fitting[variant.config] = replace(subject, archived=None)
        configs = {index: dict(kernel.configs[index]) for index in fitting}
        return tuple(fitting[index] for index in extreme_configs(configs))


def extreme_configs(configs: Mapping[int, Mapping[str, object]]) -> list[int]:
    """Return the indices of configs with the least or the largest value of a constant.

    If a constant is not a number, they include one config for each value. Config keys, such as
    `num_warps`, are ignored.
    """
    chosen: dict[int, None] = {}
    names = dict.fromkeys(name for config in configs.values() for name in config)
    for name in names:
        if name in CONFIG_KEYS:
            continue
        values = {index: config[name] for index, config in configs.items() if name in config}
        numbers = {
            i: v for i, v in values.items() if isinstance(v, int) and not isinstance(v, bool)
        }
        if len(numbers) == len(values):
            extremes = [min(numbers.values()), max(numbers.values())]
        else:
            extremes = list({value_key(cast("Value", v)): v for v in values.values()}.values())
        for value in extremes:
            if not any(values.get(index) == value for index in chosen):
                chosen[next(index for index in values if values[index] == value)] = None
    largest = max(configs, key=lambda index: _product(configs[index]), default=None)
    if largest is not None:
        chosen[largest] = None
    return list(chosen)


def _product(config: Mapping[str, object]) -> int:
    """Return the product of a config's numeric constants."""
    numbers = (v for n, v in config.items() if n not in CONFIG_KEYS and isinstance(v, int) and v)
    return math.prod(abs(number) for number in numbers)


def _items(values: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple((name, repr(value)) for name, value in values.items())
