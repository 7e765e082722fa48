"""The tuning table: times of a kernel's configs by GPU and by the values of a launch's arguments.

It is a text beside the manifest, `NAME.tuning.toml`, that people review and merge. `aotc tune` writes
it, a build packs the selections that are fitted from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aotc.package.tables import Constant


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


@dataclass(frozen=True, slots=True)
class KernelTuning:
    """Measurements of one kernel on one kind of GPU.

    `gpu` is the driver's name of the device, `ANY_GPU` for estimates of the cost model. `rejected`
    says why configs are not to be taken: hung, faulted, wrong.
    """

    kernel: str
    target: str
    gpu: str
    configs: tuple[Mapping[str, Constant], ...]
    measurements: tuple[Measurement, ...]
    rejected: Mapping[int, str]
    driver: str = ""
    clock_mhz: int = 0
    date: str = ""


@dataclass(frozen=True, slots=True)
class TuningTable:
    """All tunings of a manifest's kernels, ordered by kernel, target and GPU."""

    kernels: tuple[KernelTuning, ...]
