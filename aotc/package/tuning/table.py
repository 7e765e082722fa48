"""The tuning table: times of a kernel's configs by GPU and by the values of a launch's arguments.

It is a text beside the manifest, `NAME.tuning.toml`, that people review and merge. `aotc tune` writes
it, a build packs the selections that are fitted from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from aotc.package.manifest.toml_table import Constant

CacheState: TypeAlias = Literal["cold", "warm"]
Identity: TypeAlias = "tuple[tuple[tuple[str, str], ...], ...]"


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times of one launch: `seconds[i]` is that of config `i`, None where it was not measured.

    `key` has the launch's integer arguments, and the extents of tensors under the name that
    expressions give them, such as "x.shape[0]". `types` and `choices` are the combination's.
    `weight` says how often the launch occurs.
    """

    key: Mapping[str, int]
    types: Mapping[str, str]
    choices: Mapping[str, Constant]
    seconds: tuple[float | None, ...]
    weight: float = 1.0

    @property
    def identity(self) -> Identity:
        """What makes two measurements ones of the same launch; sorts them, too."""
        shown = (self.types, self.choices)
        named = tuple(tuple(sorted((k, repr(v)) for k, v in each.items())) for each in shown)
        # Numbers sort by size: longer ones are larger.
        numbers = ((name, f"{value:020d}") for name, value in self.key.items())
        return (*named, tuple(sorted(numbers)))


@dataclass(frozen=True, slots=True)
class KernelTuning:
    """Measurements of one kernel on one kind of GPU.

    `gpu` is the driver's name of the device, `ANY_GPU` for estimates of the cost model. `rejected`
    says why configs are not to be taken: hung, faulted, wrong. `l2` is the state of the L2 before a
    timed launch. With probability `confidence` a config that was dropped early is not the fastest;
    0 says nothing.
    """

    kernel: str
    target: str
    gpu: str
    configs: tuple[Mapping[str, Constant], ...]
    measurements: tuple[Measurement, ...]
    rejected: Mapping[int, str] = field(default_factory=dict[int, str])
    driver: str = ""
    clock_mhz: int = 0
    date: str = ""
    l2: CacheState = "cold"
    confidence: float = 0.0

    @property
    def identity(self) -> tuple[str, str, str]:
        """What the table has once, and is sorted by."""
        return self.kernel, self.target, self.gpu


@dataclass(frozen=True, slots=True)
class TuningTable:
    """All tunings of a manifest's kernels, ordered by kernel, target and GPU."""

    kernels: tuple[KernelTuning, ...]
