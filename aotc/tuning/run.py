"""Run `aotc tune`: an archive and shapes in, a tuning table out.

Invariant: the table is written however the run ends, with all measurements so far.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from aotc.ir.diagnostics import HostError, ManifestError, did_you_mean
from aotc.package.archive.file import decode
from aotc.package.archive.index import Kernel, combination
from aotc.package.archive.selection import ANY_GPU, leaf_of
from aotc.package.inspect import cuda_driver
from aotc.package.manifest.spec import Manifest
from aotc.package.tuning.shapes import Launch, Shapes, launches
from aotc.package.tuning.table import KernelTuning, TuningTable
from aotc.package.tuning.text import read_tuning, write_tuning
from aotc.tuning.journal import Journal
from aotc.tuning.launch_tuner import Options
from aotc.tuning.launcher import Launcher
from aotc.tuning.results import table_of, updated
from aotc.tuning.run_state import RunState, Task
from aotc.tuning.session import Listener, LocalTuner, Schedule, Session, Tuner
from aotc.tuning.subjects import Subjects, target_for

_JOURNAL_SUFFIX = ".journal"
_STEADY = 0.95  # of the usual clock


def journal_path(output: Path) -> Path:
    """Return the path of a table's journal, used until the table is complete."""
    return output.with_name(output.name + _JOURNAL_SUFFIX)


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a run: an archive's bytes, its manifest, and shapes."""

    archive: bytes
    manifest: Manifest | None
    path: str
    shapes: Shapes
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU: its name by the driver, its `CUDA_VISIBLE_DEVICES`, and its driver's version."""

    name: str
    visible: str
    capability: tuple[int, int]
    driver: str = ""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome of a run: `failures` has the reason for launches without times, by label."""

    table: TuningTable
    tunings: tuple[KernelTuning, ...]
    num_launches: int
    num_done: int
    failures: dict[str, str]
    is_interrupted: bool
    seconds: float
    num_kernel_launches: int

    @property
    def is_complete(self) -> bool:
        """Return whether every launch has times, or a reason to have none."""
        return self.num_done + len(self.failures) == self.num_launches


def devices_of(machine: cuda_driver.Machine, chosen: str) -> tuple[Device, ...]:
    """Return the GPUs to use: "all", or ordinals such as "0,2".

    Raises: HostError if there is no such GPU.
    """
    if machine.problem:
        message = f"expected a GPU to tune on: {machine.problem}"
        raise HostError(message, remedy=machine.remedy)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = visible.split(",") if visible else [str(index) for index in range(len(machine.gpus))]
    ordinals = range(len(machine.gpus)) if chosen == "all" else _ordinals(chosen)
    for ordinal in ordinals:
        if ordinal >= min(len(machine.gpus), len(names)):
            message = f"expected GPUs below {len(machine.gpus)}, got {ordinal}"
            raise HostError(message, remedy="`aotc doctor` lists the GPUs")
    version = f"{machine.version // 1000}.{machine.version % 1000 // 10}"
    return tuple(
        Device(gpu.name, names[index], (gpu.major, gpu.minor), version)
        for index, gpu in ((index, machine.gpus[index]) for index in ordinals)
    )


def _ordinals(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        message = f'expected "all" or ordinals such as 0,2 for --gpus, got {text!r}'
        raise HostError(message)
    return [int(part) for part in dict.fromkeys(parts)]


def plan(
    subject: Subject, gpus: Sequence[tuple[str, tuple[int, int]]]
) -> tuple[list[Task], list[str]]:
    """Return the launches to tune by kind of GPU, and kernels without shapes or variants.

    Raises:
        DiagnosticError: the shapes or the kernels are wrong.
    """
    archive = decode(subject.archive)
    names = [kernel.name for kernel in archive.kernels]
    for name in subject.kernels or subject.shapes.kernels:
        if name not in names:
            message = f"expected a kernel of {subject.path} ({', '.join(names)}), got {name!r}"
            raise ManifestError(message, remedy=did_you_mean(name, names))
    subjects = Subjects(archive, subject.manifest, subject.path)
    tasks: list[Task] = []
    notes: list[str] = []
    for kernel in archive.kernels:
        if subject.kernels and kernel.name not in subject.kernels:
            continue
        kernel_launches = launches(subject.shapes, kernel, subjects.defaults(kernel.name))
        if not kernel_launches:
            notes.append(f"no shapes are of {kernel.name}")
        for name, capability in gpus:
            target = target_for(kernel, capability)
            if kernel_launches and not target:
                notes.append(f"{kernel.name} has no variant for {name}")
            for launch in kernel_launches if target else ():
                sources = subjects.of(launch, target)
                # Without the code: the launching processes have it from the archive.
                described = replace(kernel, variants=())
                order = selected_order(kernel, launch, target, name)
                tasks.append(Task(launch, described, sources, target, name, order))
    # Tune the most frequent launches first: time may run out.
    tasks.sort(key=lambda task: -task.launch.weight)
    return tasks, notes


def selected_order(kernel: Kernel, launch: Launch, target: str, gpu: str) -> tuple[int, ...]:
    """Return the configs in the order of an archive's launch.

    The order is an earlier table's, or the cost model's; else the manifest's.
    """
    types = tuple(launch.types[variable.name] for variable in kernel.type_variables)
    choices = tuple(launch.choices[choice.name] for choice in kernel.choices)
    number = combination(kernel, types, choices)
    trees = {
        selection.gpu: selection.tree
        for selection in kernel.selections
        if selection.target == target and selection.combination == number
    }
    tree = trees.get(gpu, trees.get(ANY_GPU))
    first = () if tree is None else leaf_of(tree, launch.key)
    return tuple(dict.fromkeys((*first, *range(len(kernel.configs)))))


def run_identity(subject: Subject, options: Options) -> dict[str, object]:
    """Return the run's identity for the journal; it does not depend on the launches."""
    digest = hashlib.sha256()
    for kernel in decode(subject.archive).kernels:
        # Without selections: a table may be packed into the archive before all is tuned.
        described = replace(kernel, variants=(), selections=())
        digest.update(repr((described, len(kernel.variants))).encode())
        for variant in kernel.variants:
            digest.update(repr(replace(variant, cubin=b"", ptx=None)).encode())
            digest.update(hashlib.sha256(variant.cubin).digest())
    return {
        "version": 1,
        "archive": digest.hexdigest(),
        "l2": options.l2,
        "confidence": options.confidence,
        "seed": options.seed,
        "exhaustive": options.is_exhaustive,
        "date": dt.datetime.now(tz=dt.timezone.utc).date().isoformat(),
    }


def dependences(tasks: Sequence[Task], state: RunState) -> list[str]:
    """Return a line for each kernel with results that depend on a constant of its configs."""
    return [
        f"results of {kernel} depend on {constant}: configs are compared among those of one value"
        for kernel, constant in dict.fromkeys(
            (task.kernel.name, constant) for task in tasks for constant in state.notes(task)
        )
    ]


def unsteady_clocks(tasks: Sequence[Task], state: RunState) -> list[str]:
    """Return a line for each kind of GPU with a lower clock during the measurements."""
    clocks: dict[str, list[int]] = {}
    for task in tasks:
        clocks.setdefault(task.gpu, []).extend(r["clock_mhz"] for r in state.rounds(task))
    lines: list[str] = []
    for gpu, seen in clocks.items():
        usual = median(seen) if seen else 0.0
        num_low = sum(clock < _STEADY * usual for clock in seen)
        if num_low:
            message = f"the clock of {gpu} fell from {usual:.0f} to {min(seen)} MHz in {num_low} of"
            lines.append(f"{message} {len(seen)} rounds: configs are compared within passes")
    return lines


@contextmanager
def local_tuners(
    subject: Subject, devices: Sequence[Device], options: Options, driver: str
) -> Generator[Cluster]:
    """Yield the GPUs of this machine."""
    stop = threading.Event()
    seconds = options.launch_seconds
    launchers = [
        Launcher(subject.archive, driver, device.visible, seconds, stop) for device in devices
    ]
    tuners = [LocalTuner(d.name, launcher) for d, launcher in zip(devices, launchers, strict=True)]
    yield Cluster(devices, tuners, stop)


@dataclass(frozen=True, slots=True)
class Cluster:
    """GPUs to tune on; they stop soon after `stop` is set."""

    devices: Sequence[Device]
    tuners: Sequence[Tuner]
    stop: threading.Event


def tune(
    subject: Subject, cluster: Cluster, options: Options, output: Path, listener: Listener
) -> Tuned:
    """Tune on GPUs, and write the table at `output`, also when the user stops it.

    Raises:
        DiagnosticError: the shapes, the kernels or the files are wrong.
    """
    start = time.monotonic()
    devices = cluster.devices
    kinds = list(dict.fromkeys((device.name, device.capability) for device in devices))
    tasks, notes = plan(subject, kinds)
    for note in notes:
        listener.warned(note)
    before = read_tuning(output) if output.exists() else TuningTable(())
    with Journal(journal_path(output), run_identity(subject, options)) as journal:
        state = RunState(journal)
        schedule = Schedule(tasks, state)
        is_interrupted = False
        try:
            Session(schedule, options, listener, cluster.stop).run(cluster.tuners)
        except KeyboardInterrupt:
            is_interrupted = True
        for line in (*dependences(tasks, state), *unsteady_clocks(tasks, state)):
            listener.warned(line)
        drivers = {device.name: device.driver for device in devices}
        table = table_of(tasks, state, options, drivers, str(journal.run["date"]))
        write_tuning(updated(before, table), output)
        finished = [record for task in tasks if (record := state.done(task)) is not None]
        tuned = Tuned(
            table=updated(before, table),
            tunings=table.kernels,
            num_launches=len(tasks),
            num_done=len(finished),
            failures={
                task.launch.label: schedule.failures[task.number]
                for task in tasks
                if task.number in schedule.failures
            },
            is_interrupted=is_interrupted,
            seconds=time.monotonic() - start,
            num_kernel_launches=sum(record["launches"] for record in finished),
        )
        if tuned.num_done == tuned.num_launches:
            journal.remove()
    return tuned
