"""Examine this machine for building and launching, one finding a line, each with its remedy.

A finding is `ok`; a `note` if only some users need it, such as a GPU where archives are only built;
or a `problem` if some command would fail.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from aotc.backend.ptxas import version_text
from aotc.ir.diagnostics import DiagnosticError, one_line
from aotc.package.archive import file as archives
from aotc.package.archive.index import Archive, ArchiveError, Kernel, parse_target
from aotc.package.builder.toolchain import UNKNOWN, installed_versions
from aotc.package.cache import folder as cache_folder
from aotc.package.inspect.cuda_driver import Gpu, Machine
from aotc.package.inspect.drivers import drivers_text, first_releases, gpu_release, release_text
from aotc.target import CUDA_12_TOOLCHAIN, TARGETS, best_for

State = Literal["ok", "note", "problem"]
_WHEELS = {"llvmlite": "llvmlite", "ptxas": "nvidia-cuda-nvcc", "libdevice": "nvidia-nvvm"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: the subject, its state, and the remedy if it is not `ok`."""

    subject: str
    state: State
    text: str
    remedy: str = ""


def examine(machine: Machine, cache: Path, paths: Sequence[str]) -> list[Finding]:
    """Return the findings on driver, GPUs, toolchain and cache, and on archives for these GPUs."""
    findings = [*_driver(machine, needs_gpu=bool(paths))]
    for ordinal, gpu in enumerate(machine.gpus):
        findings.append(_gpu(ordinal, gpu))
    findings += _peers(machine)
    findings += _toolchain()
    findings.append(_cache(cache))
    for path in paths:
        findings += _archive(path, machine)
    return findings


def has_problem(findings: Sequence[Finding]) -> bool:
    """Return whether any finding is a problem."""
    return any(finding.state == "problem" for finding in findings)


def text(findings: Sequence[Finding]) -> str:
    """Return the findings as lines, each with its remedy below."""
    width = max(len(one_line(finding.subject)) for finding in findings)
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.state:7}  {one_line(finding.subject):{width}}  {finding.text}")
        if finding.remedy:
            lines.append(f"{'':7}  {'':{width}}  → {finding.remedy}")
    return "\n".join(map(one_line, lines))


def describe(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as data."""
    return {"ok": not has_problem(findings), "findings": [asdict(finding) for finding in findings]}


def _driver(machine: Machine, *, needs_gpu: bool) -> Iterator[Finding]:
    if machine.problem:
        state: State = "problem" if needs_gpu else "note"
        can = "" if needs_gpu else "; archives can be built and verified here, not launched"
        yield Finding("driver", state, machine.problem + can, machine.remedy)
        return
    version = f"CUDA {machine.version // 1000}.{machine.version % 1000 // 10}"
    yield Finding("driver", "ok", version)


def _gpu(ordinal: int, gpu: Gpu) -> Finding:
    description = f"{gpu.name}, sm_{gpu.major}{gpu.minor}, {gpu.memory_bytes / 2**30:.0f} GiB"
    target = best_for(gpu.major, gpu.minor)
    subject = f"GPU {ordinal}"
    if target is None:
        remedy = f"targets are {', '.join(TARGETS)}"
        return Finding(subject, "problem", f"{description}: aotc has no target for it", remedy)
    description += f": build for {target}"
    if gpu.is_mig:
        remedy = "MIG instances cannot access each other's memory, and a process sees one of them"
        return Finding(subject, "note", f"{description}; a MIG instance", remedy)
    return Finding(subject, "ok", description)


def _peers(machine: Machine) -> Iterator[Finding]:
    """Report pairs of GPUs with peer access, and pairs without, with the reason."""
    count = len(machine.gpus)
    pairs = [(first, second) for first in range(count) for second in range(first + 1, count)]
    if not pairs:
        return
    mutual = [pair for pair in pairs if pair in machine.peers and pair[::-1] in machine.peers]
    if len(mutual) == len(pairs):
        yield Finding("peer access", "ok", f"between all {count} GPUs")
        return
    lacking = [pair for pair in pairs if pair not in mutual]
    if any(machine.gpus[ordinal].is_mig for pair in lacking for ordinal in pair):
        remedy = "MIG instances have none: use whole GPUs where kernels share memory"
    else:
        remedy = "see nvidia-smi topo -p2p r; launches on one GPU each do not need it"
    pair_list = ", ".join(f"{first}-{second}" for first, second in lacking)
    yield Finding("peer access", "note", f"none between GPUs {pair_list}", remedy)


def _toolchain() -> Iterator[Finding]:
    versions = installed_versions()
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding("aotc", "ok", f"{versions['aotc']}, Python {python}")
    for tool, wheel in _WHEELS.items():
        if versions[tool] == UNKNOWN:
            remedy = f"pip install {wheel}"
            yield Finding(tool, "problem", "not installed: nothing can be compiled", remedy)
            continue
        try:
            runs = tool == "ptxas" and version_text() != ""
        except DiagnosticError as error:
            remedy = f"pip install --force-reinstall {wheel}"
            yield Finding(tool, "problem", f"{versions[tool]}, {error}", remedy)
        else:
            yield Finding(tool, "ok", f"{versions[tool]}{', it runs' if runs else ''}")


def _cache(folder: Path) -> Finding:
    try:
        entries = cache_folder.entries(folder)
        problem = cache_folder.write_problem(folder)
    except OSError as error:
        entries, problem = [], error.strerror or str(error)
    size = sum(entry.size_bytes for entry in entries)
    if problem:
        remedy = "use --cache-dir, or set XDG_CACHE_HOME to a folder of yours"
        return Finding("cache", "note", f"{folder}: {problem}; builds go on without it", remedy)
    old = sum(entry.kind == "old" for entry in entries)
    remedy = "aotc cache prune" if old else ""
    note = f", {old} of them of another version" if old else ""
    description = f"{folder}: {len(entries)} files, {size / 2**20:.1f} MiB{note}"
    return Finding("cache", "note" if old else "ok", description, remedy)


def _archive(path: str, machine: Machine) -> Iterator[Finding]:
    try:
        archive = archives.read(Path(path))
    except (ArchiveError, OSError) as error:
        remedy = "check the path; build it again with aotc build"
        yield Finding(path, "problem", str(error), remedy)
        return
    targets = sorted({variant.target for kernel in archive.kernels for variant in kernel.variants})
    kernels = f"{len(archive.kernels)} kernels for {', '.join(targets)}"
    yield Finding(path, "ok", "; ".join(filter(None, [kernels, drivers_text(archive)])))
    for ordinal, gpu in enumerate(machine.gpus):
        yield _fit(path, archive, ordinal, gpu, machine.version)


def _fit(path: str, archive: Archive, ordinal: int, gpu: Gpu, version: int) -> Finding:
    subject = f"{path} on GPU {ordinal}"
    releases = {
        target: release
        for target, release in first_releases(archive).items()
        if parse_target(target).runs_on(gpu.major, gpu.minor)
    }
    driver = version // 1000, version % 1000 // 10
    if releases and driver < min(releases.values()):
        target, release = min(releases.items(), key=lambda entry: entry[1])
        description = f"the code for {target} needs the driver of {release_text(release)} or later"
        remedy = f"update the driver, of CUDA {driver[0]}.{driver[1]}"
        if release[0] > driver[0] == 12 and gpu_release(target) <= driver:
            remedy += f', or build with toolchain = "{CUDA_12_TOOLCHAIN}" in [package]'
        return Finding(subject, "problem", description, remedy)
    lacking = [kernel.name for kernel in archive.kernels if not _has_target(kernel, gpu)]
    large = [
        kernel.name
        for kernel in archive.kernels
        if _has_target(kernel, gpu) and not _has_room(kernel, gpu)
    ]
    running = len(archive.kernels) - len(lacking) - len(large)
    description = f"{running} of {len(archive.kernels)} kernels run"
    if lacking:
        target = best_for(gpu.major, gpu.minor)
        remedy = f"aotc build --target {target}" if target else "aotc has no target for it"
        state: State = "note" if running else "problem"
        return Finding(subject, state, f"{description}; no code for {_some(lacking)}", remedy)
    if large:
        remedy = "build a config that uses less shared memory"
        state = "note" if running else "problem"
        limit = f"{gpu.shared_bytes} bytes a CTA"
        return Finding(
            subject, state, f"{description}; {_some(large)} take more than {limit}", remedy
        )
    return Finding(subject, "ok", description)


def _has_target(kernel: Kernel, gpu: Gpu) -> bool:
    return any(parse_target(v.target).runs_on(gpu.major, gpu.minor) for v in kernel.variants)


def _has_room(kernel: Kernel, gpu: Gpu) -> bool:
    return any(
        parse_target(variant.target).runs_on(gpu.major, gpu.minor)
        and variant.dynamic_shared_bytes + variant.static_shared_bytes <= gpu.shared_bytes
        for variant in kernel.variants
    )


def _some(names: Sequence[str]) -> str:
    name_list = ", ".join(names[:3])
    return name_list if len(names) <= 3 else f"{name_list} and {len(names) - 3} more"
