"""Define the tuning table: times of a kernel's configs by GPU and a launch's arguments.

It is a text next to the manifest, `NAME.tuning.toml`, for people to review and merge. `aotc tune`
writes it; a build packs selections fitted to it.
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
    """Times of one launch: `seconds[i]` is config `i`'s, None if not measured.

    `key` has the launch's integer arguments, and the extents of tensors under their names in
    expressions, such as "x.shape[0]". `types` and `choices` are the combination's. `weight` is the
    launch's frequency.
    """

    key: Mapping[str, int]
    types: Mapping[str, str]
    choices: Mapping[str, Constant]
    seconds: tuple[float | None, ...]
    weight: float = 1.0

    @property
    def identity(self) -> Identity:
        """Key equal for measurements of the same launch; also their sort key."""
        shown = (self.types, self.choices)
        named = tuple(tuple(sorted((k, repr(v)) for k, v in mapping.items())) for mapping in shown)
        # Pad numbers, so that they sort by size.
        numbers = ((name, f"{value:020d}") for name, value in self.key.items())
        return (*named, tuple(sorted(numbers)))


@dataclass(frozen=True, slots=True)
class KernelTuning:
    """Measurements of one kernel on one kind of GPU.

    `gpu` is the driver's name of the device, `ANY_GPU` for estimates of the cost model. `rejected`
    maps configs to the reason not to use them: hung, faulted, wrong. `l2` is the state of the L2
    before a timed launch. With probability `confidence` a config dropped early is not the fastest;
    0 makes no claim.
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
        """Unique key in the table, and its sort key."""
        return self.kernel, self.target, self.gpu


@dataclass(frozen=True, slots=True)
class TuningTable:
    """All tunings of a manifest's kernels, ordered by kernel, target and GPU."""

    kernels: tuple[KernelTuning, ...]
