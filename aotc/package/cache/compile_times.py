"""Record compile times in the cache, to plan builds and batches.

A time belongs to a request, not to the sources or to the compiler. So it still estimates a changed
kernel, the one that must be compiled again. Each kernel has a file with the seconds of each of its
requests.

Invariant: times never change the output; lost or damaged ones are replaced by estimates.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from aotc.compiler import CompileRequest
from aotc.package.cache.entry import Entry, decode_entry, encode_entry, write_entry
from aotc.regular_file import read_regular

DEFAULT_SECONDS = 0.5
"""Seconds of a compile without any measurement."""

FOLDER = "times"
_MAX_TIMES = 1 << 14  # of a kernel: 1 MiB
_DIGEST_BYTES = 8

Basis: TypeAlias = Literal["measured", "estimated", "guessed"]
"""Source of the seconds: this request, other requests of any kernel, or nothing."""


@dataclass(slots=True)
class _Kernel:
    """The target and the seconds of each request, by digest, latest last."""

    name: str
    times: dict[bytes, tuple[str, float]]
    mean_by_target: dict[str, float] = field(default_factory=dict[str, float])
    mean: float | None = None
    is_changed: bool = False


_decoder = msgspec.msgpack.Decoder(Entry[dict[bytes, tuple[str, float]]])


class CompileTimes:
    """The times in a cache folder; `folder` includes the entries' format, or is None without a cache."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder / FOLDER
        self._kernels: dict[tuple[str, str], _Kernel] = {}
        self._overall: float | None = None

    def seconds(self, request: CompileRequest) -> tuple[float, Basis]:
        """Return the expected seconds of a compile, and their basis."""
        kernel = self._kernel(request)
        measured = kernel.times.get(_digest(request))
        if measured is not None:
            return measured[1], "measured"
        if kernel.times:
            if kernel.mean is None:
                kernel.mean = statistics.fmean(seconds for _, seconds in kernel.times.values())
            mean = kernel.mean_by_target.get(request.target)
            if mean is None:
                alike = [s for target, s in kernel.times.values() if target == request.target]
                mean = statistics.fmean(alike) if alike else kernel.mean
                kernel.mean_by_target[request.target] = mean
            return mean, "estimated"
        overall = self._mean()
        return (DEFAULT_SECONDS, "guessed") if overall is None else (overall, "estimated")

    def load(self, requests: Iterable[CompileRequest]) -> None:
        """Read the times of the kernels of `requests`; estimates for others use them."""
        for request in requests:
            self._kernel(request)

    def note(self, request: CompileRequest, seconds: float) -> None:
        """Record the seconds of a compile."""
        kernel = self._kernel(request)
        digest = _digest(request)
        kernel.times.pop(digest, None)
        kernel.times[digest] = (request.target, seconds)
        kernel.is_changed = True

    def save(self) -> None:
        """Write the recorded times; ignore a folder that is not writable."""
        if self._folder is None:
            return
        for kernel in self._kernels.values():
            if not kernel.is_changed:
                continue
            # Another build may have added times meanwhile.
            times = {**self._read(kernel.name), **kernel.times}
            latest = dict(list(times.items())[-_MAX_TIMES:])
            try:
                write_entry(self._path(kernel.name), encode_entry(kernel.name, latest))
            except OSError:
                return
            kernel.is_changed = False

    def _kernel(self, request: CompileRequest) -> _Kernel:
        key = (request.source, request.kernel)
        kernel = self._kernels.get(key)
        if kernel is None:
            name = hashlib.sha256(msgspec.msgpack.encode(key)).hexdigest()
            kernel = self._kernels[key] = _Kernel(name, self._read(name))
            self._overall = None
        return kernel

    def _read(self, name: str) -> dict[bytes, tuple[str, float]]:
        if self._folder is None:
            return {}
        try:
            data = read_regular(self._path(name), _MAX_TIMES * 64)
        except OSError:
            return {}
        return decode_entry(data, name, _decoder) or {}

    def _mean(self) -> float | None:
        """Return the mean over the kernels of this build: same machine, same sources."""
        if self._overall is None:
            seconds = [time[1] for k in self._kernels.values() for time in k.times.values()]
            self._overall = statistics.fmean(seconds) if seconds else None
        return self._overall

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / name[:2] / name


def seconds_of(times: CompileTimes) -> Callable[[CompileRequest], float]:
    """Return a function from a request to its expected seconds."""
    return lambda request: times.seconds(request)[0]


def _digest(request: CompileRequest) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(request)).digest()[:_DIGEST_BYTES]
