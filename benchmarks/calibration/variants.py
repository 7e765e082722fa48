"""Whole kernels: every variant of an archive on the GPU and in the emulator.

Inputs are `aotc verify`'s. The GPU's results are compared with the emulator's to the bit, and
verified against the interpreted kernel within the bounds of `aotc verify`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from aotc.compiler import PtxKernel
from aotc.ir.types import ScalarType
from aotc.package.archive.file import read
from aotc.package.archive.index import Archive
from aotc.package.verify.subjects import Subject, VerifyOptions, load_subjects
from aotc.package.verify.variants import verify_variant
from aotc.verify.checks.check import Execute, Execution, ExecutionFault
from aotc.verify.checks.contents import HEAD_BYTES
from aotc.verify.checks.emulated import Emulation
from aotc.verify.checks.reference import Bytes, Reference
from aotc.verify.emulator.text.parse import parse_module
from benchmarks.calibration.case import EXACT, Argument, Bound
from benchmarks.calibration.distance import Comparison, compare
from benchmarks.calibration.gpu import describe_fault
from benchmarks.calibration.judge import open_gpu

_ANY_DISTANCE = Bound(ulps=1 << 64)
_FLOATS = {"fp16": "f16", "bf16": "bf16", "fp32": "f32", "fp64": "f64"}


@dataclass(slots=True)
class VariantOutcome:
    """Agreement of the two sides of a variant, over all its launches and buffers.

    `status` is from `aotc verify`, for the GPU's results. `exact` counts elements of buffers
    without approximations, `inexact` the others.
    """

    label: str
    kernel: str
    status: str = ""
    detail: str = ""
    launches: int = 0
    exact: list[Comparison] = field(default_factory=list)
    inexact: list[Comparison] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_within(self) -> bool:
        """Return whether the GPU is within bounds, and identical in exact buffers."""
        return self.status == "verified" and all(
            comparison.identical + comparison.nan_only == comparison.count
            for comparison in self.exact
        )


def labels(path: Path) -> list[str]:
    """Return the variants of an archive."""
    return [subject.label for subject in _subjects(path).values()]


def judge_variant(path: Path, label: str, *, on_gpu: bool) -> VariantOutcome:
    """Run a variant's launches on both sides; without a GPU twice in the emulator."""
    subject = _subjects(path)[label]
    outcome = VariantOutcome(label, subject.kernel)
    start = time.perf_counter()

    def prepare(compiled: PtxKernel) -> Execute:
        return partial(
            _execute, outcome, subject, compiled, _cubin(path, subject) if on_gpu else b""
        )

    result = verify_variant(subject, VerifyOptions(), execute=prepare)
    outcome.status = result.status
    wrong = [finding.detail for finding in result.findings if finding.status in ("wrong", "fault")]
    outcome.detail = "; ".join(wrong)
    outcome.seconds = time.perf_counter() - start
    return outcome


@cache
def _archive(path: Path) -> Archive:
    return read(path)


@cache
def _subjects(path: Path) -> Mapping[str, Subject]:
    return {subject.label: subject for subject in load_subjects(str(path))}


def _cubin(path: Path, subject: Subject) -> bytes:
    assert subject.archived is not None
    return subject.archived[1].cubin


def _execute(
    outcome: VariantOutcome,
    subject: Subject,
    compiled: PtxKernel,
    cubin: bytes,
    reference: Reference,
) -> Execution:
    """Execute a launch on both sides, record their agreement and return the GPU's buffers."""
    module = parse_module(compiled.ptx)
    emulation = Emulation(module, compiled.symbol, compiled.shared_bytes, num_ctas=subject.num_ctas)
    emulated = emulation(reference)
    if cubin:
        actual = Execution(_launch(emulation, cubin, reference), emulated.lane_instructions)
    else:
        actual = Emulation(
            module, compiled.symbol, compiled.shared_bytes, num_ctas=subject.num_ctas, seed=1
        )(reference)
    outcome.launches += 1
    for name, buffer in reference.buffers.items():
        bound = EXACT if buffer.is_exact else _ANY_DISTANCE
        emulated_array, actual_array = (
            side.buffers[name][buffer.writable] for side in (emulated, actual)
        )
        comparison = compare(_kind(buffer.pointee), emulated_array, actual_array, bound)
        (outcome.exact if buffer.is_exact else outcome.inexact).append(comparison)
    return actual


def _kind(element: ScalarType) -> str:
    return _FLOATS.get(element.name, f"u{max(element.bits, 8)}")


def _launch(emulation: Emulation, cubin: bytes, reference: Reference) -> dict[str, Bytes]:
    """Run the cubin on the emulator's buffers.

    Raises: ExecutionFault for a fault of the kernel.
    """
    gpu = open_gpu()
    owners = {
        name: buffer.initial[HEAD_BYTES:].copy() for name, buffer in reference.buffers.items()
    }
    args: list[Argument] = []
    for name in reference.order:
        buffer = reference.buffers.get(name)
        if buffer is None:
            args.append(reference.launch.scalars[name])
        else:
            args.append(owners[name][buffer.start_bytes - HEAD_BYTES :])
    grid = (*reference.launch.grid, 1, 1)[:3]
    if all(grid):  # a GPU refuses a grid without blocks
        kernel = emulation.module.kernels[emulation.symbol]
        try:
            gpu.launch(
                cubin,
                kernel,
                args,
                (grid[0] * emulation.num_ctas, *grid[1:]),
                emulation.shared_bytes,
            )
        except ExecutionFault as error:
            raise ExecutionFault(f"GPU: {describe_fault(error)}") from error
    return {name: _joined(reference.buffers[name].initial, owner) for name, owner in owners.items()}


def _joined(initial: Bytes, owner: Bytes) -> Bytes:
    image = initial.copy()
    image[HEAD_BYTES:] = owner
    return image
