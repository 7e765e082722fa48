"""Define the messages between the tuning process and the launching one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from aotc.package.tuning.shapes import Launch
from aotc.tuning.gpu import Bytes

if TYPE_CHECKING:
    from aotc.package.verify.subjects import Subject


@dataclass(frozen=True, slots=True)
class Identity:
    """A GPU's name and compute capability, and its driver's CUDA version."""

    name: str
    driver: str
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Output:
    """A buffer's content after a launch, or pieces of it: bytes of an element type."""

    name: str
    element: str
    content: Bytes


@dataclass(frozen=True, slots=True)
class Open:
    """Open an archive; answered by the GPU's `Identity`."""

    archive: bytes
    driver: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """Allocate the buffers of a launch; answered by the reasons of refused configs, by index."""

    launch: Launch
    subjects: tuple[Subject, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Check:
    """Launch a config once; answered by its outputs."""

    config: int


@dataclass(frozen=True, slots=True)
class Time:
    """Launch configs in order; answered by `Times`."""

    configs: tuple[int, ...]
    is_cold: bool
    repeats: int


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of launches, and the SM's clock after them."""

    seconds: tuple[float, ...]
    clock_mhz: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that failed; with `is_lost` the process ends."""

    reason: str
    is_lost: bool = False


Request: TypeAlias = Open | Prepare | Check | Time
Answer: TypeAlias = Identity | dict[int, str] | list[Output] | Times | Refusal
