"""Compare the cost model and fitted trees with the measured times of all configs.

    python -m benchmarks.cost_model TIMES.json [--compiled FILE] [--fit]

TIMES.json lists kernels of `benchmarks/tuning/kernels.toml` with their configs and, for each
launch, the seconds of each config. Loss is the relative excess time of the selected config over
the fastest one. Launches are split in halves by a seeded shuffle. Constants, and trees of
measured times, are fitted on the first half; the table shows both halves. No GPU is needed. FILE
caches the compiled variants.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pickle
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from aotc.compiler import autotune_configs, compile_variant
from aotc.ir.diagnostics import ResourceError
from aotc.package.archive import index
from aotc.package.archive.selection import leaf_of
from aotc.package.manifest.argument_type import ArgumentType
from aotc.package.manifest.configs import launch_arguments
from aotc.package.manifest.read import load
from aotc.package.manifest.variant_grid import expand
from aotc.package.tuning.cost_model import TargetEstimates, selections
from aotc.package.tuning.device import DEVICES, Device
from aotc.package.tuning.estimate import CONSTANTS, Constants, estimate
from aotc.package.tuning.fit import fit
from aotc.package.tuning.launch_arrays import Launches
from aotc.package.tuning.table import KernelTuning, Measurement
from aotc.target import TARGETS
from aotc.work import Work

MANIFEST = Path(__file__).parent / "tuning" / "kernels.toml"
SEED = 20
STEPS = (0.7, 0.85, 1.2, 1.4)
FARTHEST = 2.5
ALLOWED_LOSS = 0.2


@dataclass(frozen=True)
class Compiled:
    """A kernel's record without code, and the work of each of its variants."""

    kernel: index.Kernel
    works: list[Work]


@dataclass(frozen=True)
class Family:
    """The launches of one combination of a kernel: keys, and seconds of each config, NaN where there are none."""

    compiled: Compiled
    combination: int
    measurements: list[Measurement]
    seconds: np.ndarray
    is_first_half: np.ndarray

    @property
    def name(self) -> str:
        choices = index.split_combination((), self.compiled.kernel.choices, self.combination)[1]
        return " ".join([self.compiled.kernel.name, *map(str, choices)])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("times", type=Path)
    parser.add_argument("--compiled", type=Path)
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    timed: list[dict[str, Any]] = json.loads(options.times.read_text())
    families = [f for row in timed for f in families_of(row, compiled(row, options.compiled))]
    constants, device = CONSTANTS, DEVICES[timed[0]["target"]]
    if options.fit:
        constants = fitted(families, device)
        print(constants)
    print_table(families, constants, device)


# ------------------------------------------------------------------------------------- compile


def compiled(row: Mapping[str, Any], folder: Path | None) -> Compiled:
    """Compile all variants of a kernel, or read them from an earlier run."""
    path = None if folder is None else folder.with_name(f"{folder.name}.{row['kernel']}")
    if path is not None and path.exists():
        return Compiled(*pickle.loads(path.read_bytes()))
    result = _compile(row["kernel"], row["target"])
    if path is not None:
        path.write_bytes(pickle.dumps((result.kernel, result.works)))
    return result


def _compile(name: str, target: str) -> Compiled:
    spec = next(kernel for kernel in load(str(MANIFEST)).kernels if kernel.name == name)
    expansion = expand(spec, (TARGETS[target],), autotune_configs)
    variants: list[index.Variant] = []
    works: list[Work] = []
    for variant in expansion.variants:
        try:
            metadata = compile_variant(variant.request).metadata
        except ResourceError:
            continue
        if metadata.spill_problem(spec.spill_bytes):
            continue
        works.append(metadata.work)
        variants.append(
            index.Variant(
                target=target,
                symbol=metadata.symbol,
                cubin=b"",
                num_threads=metadata.num_threads,
                types=variant.types,
                choices=variant.choices,
                config=variant.config_index,
                cluster=(metadata.num_ctas, 1, 1),
                dynamic_shared_bytes=metadata.shared_bytes,
                static_shared_bytes=metadata.static_shared_bytes,
                registers=metadata.registers,
                grid=variant.grid,
                is_persistent=metadata.is_persistent,
            )
        )
    kernel = index.Kernel(
        name=name,
        source_sha256=b"",
        variants=tuple(variants),
        params=tuple(_param(n, spec.signature[n]) for n in launch_arguments(spec)),
        choices=tuple(index.Choice(n, values) for n, values in spec.choices.items()),
        configs=expansion.configs,
    )
    return Compiled(kernel, works)


def _param(name: str, argument: ArgumentType) -> index.Param:
    kind = "scalar" if argument.kind == "scalar" else "pointer"
    return index.Param(name, kind, argument.element, divisibility=argument.divisor)


def families_of(row: Mapping[str, Any], kernel: Compiled) -> Iterator[Family]:
    """Yield the launches of each combination with several timed configs."""
    order = [row["configs"].index(dict(config)) for config in kernel.kernel.configs]
    groups: dict[int, list[Measurement]] = {}
    for timed in row["measurements"]:
        choices = tuple(timed["choices"][choice.name] for choice in kernel.kernel.choices)
        number = index.combination(kernel.kernel, (), choices)
        seconds = tuple(timed["seconds"][i] for i in order)
        measurement = Measurement(timed["key"], {}, timed["choices"], seconds)
        groups.setdefault(number, []).append(measurement)
    for number, measurements in sorted(groups.items()):
        shuffled = list(range(len(measurements)))
        random.Random(SEED).shuffle(shuffled)
        is_first = np.isin(np.arange(len(shuffled)), shuffled[: len(shuffled) // 2])
        seconds = np.array([m.seconds for m in measurements], float)
        yield Family(kernel, number, measurements, seconds, is_first)


# ------------------------------------------------------------------------------------- select


def losses(family: Family, chosen: Sequence[int]) -> np.ndarray:
    """Return how much longer the chosen configs take than the best."""
    seconds = family.seconds[np.arange(len(chosen)), list(chosen)]
    return seconds / np.nanmin(family.seconds, axis=1) - 1


def estimated(family: Family, constants: Constants, device: Device) -> list[int]:
    """Return the config of each launch with the least estimate."""
    kernel, works = family.compiled.kernel, family.compiled.works
    keys = [m.key for m in family.measurements]
    columns = {name: np.array([key[name] for key in keys], np.int64) for name in keys[0]}
    launches = Launches(columns)
    times = np.full(family.seconds.shape, np.inf)
    for variant, work in zip(kernel.variants, works, strict=True):
        if index.combination(kernel, variant.types, variant.choices) == family.combination:
            target = TARGETS[variant.target]
            estimates = estimate(variant, work, target, device, launches, constants)
            times[:, variant.config] = estimates
    times[np.isnan(family.seconds)] = np.inf
    return times.argmin(axis=1).tolist()


def by_tree(family: Family) -> list[int]:
    """Return the config with the least estimate for each launch."""
    trees = selections(family.compiled.kernel, family.compiled.works)
    tree = next(s.tree for s in trees if s.combination == family.combination)
    return [leaf_of(tree, m.key)[0] for m in family.measurements]


def by_measured_tree(family: Family) -> list[int]:
    """Return the choices of a tree fitted to the first half of the launches."""
    kernel = family.compiled.kernel
    first_half = tuple(family.measurements[index] for index in np.flatnonzero(family.is_first_half))
    target = kernel.variants[0].target
    configs = tuple(dict(config) for config in kernel.configs)
    tuning = KernelTuning(kernel.name, target, "measured", configs, first_half, {})
    (selection,) = fit(tuning, kernel, TargetEstimates(kernel, family.compiled.works, target))
    return [leaf_of(selection.tree, m.key)[0] for m in family.measurements]


# ------------------------------------------------------------------------------------- print


def print_table(families: Sequence[Family], constants: Constants, device: Device) -> None:
    """Print mean loss, its 95th percentile and the worst, for each family and way to choose."""
    ways = {
        "first config": lambda f: (
            [int(np.flatnonzero(~np.isnan(f.seconds[0]))[0])] * len(f.seconds)
        ),
        "estimate": lambda f: estimated(f, constants, device),
        "tree of estimates": by_tree,
        "tree of half": by_measured_tree,
    }
    for way, choose in ways.items():
        print(
            f"\n{way}: loss in percent: mean, 95th percentile, worst; of the first half | the second"
        )
        joint: list[list[np.ndarray]] = [[], []]
        for family in families:
            family_losses = losses(family, choose(family))
            halves = [family_losses[family.is_first_half], family_losses[~family.is_first_half]]
            worst = family.measurements[int(family_losses.argmax())].key
            print(
                f"  {family.name:24} {_text(halves[0])} | {_text(halves[1])}   worst {dict(worst)}"
            )
            for half, part in zip(joint, halves, strict=True):
                half.append(part)
        halves_by_family = [np.concatenate(half) for half in joint]
        within = [(half <= ALLOWED_LOSS).mean() for half in halves_by_family]
        text = ", ".join(f"{share:.1%}" for share in within)
        print(
            f"  {'all':24} {_text(halves_by_family[0])} | {_text(halves_by_family[1])}   within 20%: {text}"
        )


def _text(losses: np.ndarray) -> str:
    numbers = (losses.mean(), np.quantile(losses, 0.95), losses.max())
    return " ".join(f"{100 * number:6.1f}" for number in numbers)


# ------------------------------------------------------------------------------------- fit


def fitted(families: Sequence[Family], device: Device) -> Constants:
    """Return the constants with the least mean loss on the first halves, one change at a time.

    Each stays near its plausible value: a better fit far from it holds for these kernels alone.
    """

    def objective(constants: Constants) -> float:
        all_losses = np.concatenate(
            [losses(f, estimated(f, constants, device))[f.is_first_half] for f in families]
        )
        return float(all_losses.mean() + 0.5 * np.maximum(all_losses - ALLOWED_LOSS, 0).mean())

    constants, least, is_better = CONSTANTS, objective(CONSTANTS), True
    while is_better:
        is_better = False
        for name, factor in itertools.product([field.name for field in fields(Constants)], STEPS):
            value = getattr(constants, name) * factor
            ratio = value / getattr(CONSTANTS, name)
            changed = replace(constants, **{name: value})
            if not 1 / FARTHEST <= ratio <= FARTHEST:
                continue
            loss = objective(changed)
            if loss < 0.99 * least:
                least, constants, is_better = loss, changed, True
                print(f"{name} = {value:.3g}: {least:.4f}", flush=True)
    return constants


if __name__ == "__main__":
    main()
