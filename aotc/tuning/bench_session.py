"""Run `aotc bench`: all launches of shapes on one GPU, then their peers.

Invariant: the process that launches has ended, and its memory is free, before peers run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotc.ir.diagnostics import HostError, did_you_mean
from aotc.package.archive import file as archives
from aotc.package.archive.index import Archive, ArchiveError
from aotc.package.archive.layout import LIMITS
from aotc.package.manifest.spec import BenchSpec, KernelSpec, Manifest
from aotc.package.tuning.shapes import Launch, Shapes, launches
from aotc.package.tuning.work import Work, peak_of, work_of
from aotc.regular_file import read_regular
from aotc.tuning import bench_report
from aotc.tuning.bench import BenchOptions, Timed, time_launch
from aotc.tuning.buffers import BufferPlan, UnsizedError, buffers_of
from aotc.tuning.launcher import Launcher, NoWorkerError
from aotc.tuning.peers import Request, ask, requests_of
from aotc.tuning.subjects import Subjects, target_for
from aotc.verify.checks.contents import HEAD_BYTES

_LAUNCH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Where:
    """The GPU's number, the driver's library, and the peers' Python, None for no peers."""

    device: int
    driver: str
    python: str | None


@dataclass(frozen=True, slots=True)
class Bench:
    """The archive and shapes to measure, and the options."""

    path: str
    content: bytes
    archive: Archive
    manifest: Manifest | None
    shapes: Shapes
    options: BenchOptions
    where: Where

    @staticmethod
    def open(
        path: str,
        manifest: Manifest | None,
        shapes: Shapes,
        options: BenchOptions,
        where: Where,
    ) -> Bench:
        """Read an archive. Raises: ArchiveError; ManifestError if it lacks a kernel of the shapes."""
        try:
            content = read_regular(Path(path), LIMITS.file_bytes)
        except OSError as error:
            raise ArchiveError("IO", f"cannot read {path}: {error.strerror or error}") from None
        with archives.of_file(path):
            archive = archives.decode(content)
        names = [kernel.name for kernel in archive.kernels]
        for shape in shapes.shapes:
            for name in shape.kernels:
                if name not in names:
                    message = f"expected a kernel of {path} ({', '.join(names)}), got {name!r}"
                    raise shape.wrong("kernel", message, did_you_mean(name, names))
        return Bench(path, content, archive, manifest, shapes, options, where)

    def run(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Measure, and return the data of the report. Raises: HostError without a GPU."""
        device = str(self.where.device)
        launcher = Launcher(self.content, self.where.driver, device, _LAUNCH_SECONDS)
        try:
            identity = launcher.identity
            timed, plans = self._time(launcher, identity.capability, say)
        except NoWorkerError as error:
            raise HostError(f"expected a GPU that launches, GPU {device} {error}") from None
        finally:
            launcher.close()
        requests = [self._requests(launch, plans[index]) for index, launch in enumerate(timed)]
        answers, no_peers = self._peers(requests)
        measured = [
            bench_report.Measured(launch, self._work(launch, plans[index]), tuple(answers[index]))
            for index, launch in enumerate(timed)
        ]
        machine = bench_report.Machine(
            gpu=identity.name,
            driver=identity.driver,
            target=next(
                (launch.variant.target for launch in timed if launch.variant is not None), ""
            ),
            l2="cold" if self.options.is_cold else "warm",
            passes=self.options.passes,
            peak=peak_of(identity.name),
            no_peers=no_peers,
        )
        return bench_report.describe(Path(self.path).name, machine, measured)

    def _time(
        self, launcher: Launcher, capability: tuple[int, int], say: Callable[[str], None]
    ) -> tuple[list[Timed], list[tuple[BufferPlan, ...]]]:
        subjects = Subjects(self.archive, self.manifest, self.path)
        timed: list[Timed] = []
        plans: list[tuple[BufferPlan, ...]] = []
        kernels = {kernel.name: kernel for kernel in self.archive.kernels}
        for name in self.shapes.kernels:
            kernel = kernels[name]
            target = target_for(kernel, capability)
            for launch in launches(self.shapes, kernel, subjects.defaults(name)):
                say(launch.label)
                if not target:
                    major, minor = capability
                    problem = f"it has no variant for compute capability {major}.{minor}"
                    timed.append(Timed(kernel, launch, problem=problem))
                    plans.append(())
                    continue
                among = subjects.of(launch, target)
                timed.append(
                    time_launch(
                        *(launcher, kernel, target, launch, among, self.options),
                        gpu=launcher.identity.name,
                    )
                )
                try:
                    plans.append(buffers_of(launch, kernel, among, self.options.seed))
                except UnsizedError:
                    plans.append(())
        return timed, plans

    def _spec(self, launch: Launch) -> KernelSpec | None:
        for spec in self.manifest.kernels if self.manifest is not None else ():
            if spec.name == launch.kernel:
                return spec
        return None

    def _work(self, timed: Timed, plans: tuple[BufferPlan, ...]) -> Work:
        spec = self._spec(timed.launch)
        sizes: Mapping[str, int] = {plan.name: plan.size_bytes - HEAD_BYTES for plan in plans}
        return work_of(
            BenchSpec() if spec is None else spec.bench, timed.kernel, timed.launch, sizes
        )

    def _requests(self, timed: Timed, plans: tuple[BufferPlan, ...]) -> list[Request]:
        spec = self._spec(timed.launch)
        if self.where.python is None or spec is None or timed.seconds is None:
            return []
        return requests_of(timed, spec, plans, self.options)

    def _peers(self, requests: list[list[Request]]) -> tuple[list[list[dict[str, Any]]], str]:
        """Return the answers for each launch, and why there are none at all."""
        if self.where.python is None:
            return [[] for _ in requests], "--no-peers"
        if self.manifest is None:
            return [[] for _ in requests], "give --manifest, which names the sources"
        flat = [request for launch_requests in requests for request in launch_requests]
        answers, problem = ask(self.where.python, flat, str(self.where.device))
        if problem:
            return [[] for _ in requests], problem
        left = iter(answers)
        return [[next(left) for _ in launch_requests] for launch_requests in requests], ""
