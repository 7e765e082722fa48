"""The order of a soak's cases: a cut-off run still covers every kernel and value.

Variants come a group at a time, in three stages. First is a group of each kernel. Second are
groups with a type, choice or config value not in an earlier group of their kernel. Kernels take
turns here, the ones with the fewest variants soaked so far first. Third are the other groups,
large ones first, with the same turns within a size. Programs are mixed in with the second stage.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from aotc.package.builder.workers import Failure, Job, run_all
from benchmarks.soak import programs, variants
from benchmarks.soak.journal import Record
from benchmarks.soak.soak import Task
from benchmarks.soak.variants import Draw, Group, Source

_PROGRAMS_PER_JOB = 8

EntryT = TypeVar("EntryT")


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a phase: jobs, in order, in the three stages of the module's docstring.

    Some of the `num_cases` may have run before; `kernels` are the kernels of variants.
    """

    phase: str
    num_cases: int
    stages: tuple[Sequence[Job[Task]], ...]
    kernels: tuple[str, ...] = ()


def plan_programs(phase: str, seeds: Sequence[int], finished: set[str]) -> Plan:
    """Return the plan of the seeds' programs, without the ones in `finished`."""
    left = [seed for seed in seeds if programs.name_of(seed) not in finished]
    parts = [
        left[start : start + _PROGRAMS_PER_JOB] for start in range(0, len(left), _PROGRAMS_PER_JOB)
    ]
    jobs = [Job(f"programs {part[0]}…", Task(phase, part)) for part in parts]
    return Plan(phase, len(seeds), ((), jobs, ()))


def plan_variants(
    phase: str,
    groups: Sequence[Group],
    finished: set[str],
    soaked: Mapping[str, int] | None = None,
    seed: int = 0,
) -> Plan:
    """Return the plan of groups of variants, without the ones in `finished`.

    They are in the order of the module's docstring by `soaked`, the number of earlier variants
    of each kernel; without it, in the given order.
    """
    left = [
        Group(group.source, subjects)
        for group in groups
        if (
            subjects := tuple(
                s for s in group.subjects if variants.name_of(group, s) not in finished
            )
        )
    ]
    parts = ordered(left, soaked, seed) if soaked is not None else ([], left, [])
    stages = tuple(
        [Job(subject_group.label, Task(phase, subject_group)) for subject_group in part]
        for part in parts
    )
    kernels = tuple(dict.fromkeys(group.kernel for group in groups))
    return Plan(phase, sum(len(group.subjects) for group in groups), stages, kernels)


def ordered(
    groups: Sequence[Group], soaked: Mapping[str, int], seed: int
) -> tuple[list[Group], ...]:
    """Return a group of each kernel, groups with new values for their kernel, and the rest, in order."""
    chooser = random.Random(seed)
    by_kernel: dict[str, list[Group]] = {}
    for group in chooser.sample(groups, len(groups)):
        by_kernel.setdefault(group.kernel, []).append(group)
    stages: tuple[list[tuple[int, Group]], ...] = ([], [], [])
    for kernel, of_kernel in by_kernel.items():
        count = soaked.get(kernel, 0)
        news, rest = _by_news(of_kernel)
        for stage, chosen in zip(stages, (news[:1], news[1:], rest), strict=True):
            for group in chosen:
                stage.append((count, group))
                count += len(group.subjects)
    first, second, last = ([group for _, group in sorted(stage, key=_soaked)] for stage in stages)
    # A group is interpreted once, at most of its cost: large ones are cheap for each variant.
    return first, second, sorted(last, key=_size, reverse=True)


def _soaked(placed: tuple[int, Group]) -> int:
    return placed[0]


def _size(group: Group) -> int:
    return len(group.subjects)


def _by_news(groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """Return groups with new values, the most first, and the others."""
    left = {index: _values(group) for index, group in enumerate(groups)}
    seen: set[str] = set()
    first: list[Group] = []
    while left:
        best = max(left, key=lambda index: len(left[index] - seen))
        if not left[best] - seen:
            break
        seen |= left.pop(best)
        first.append(groups[best])
    return first, [groups[index] for index in left]


def _values(group: Group) -> set[str]:
    return {value for subject in group.subjects for value in subject.label.split(" ")}


def mixed(sequences: Iterable[Sequence[EntryT]]) -> list[EntryT]:
    """Return the entries of all sequences, each spread evenly and in its order."""
    placed = [
        [((index + 0.5) / len(sequence), number, entry) for index, entry in enumerate(sequence)]
        for number, sequence in enumerate(sequences)
    ]
    return [entry for *_, entry in heapq.merge(*placed, key=lambda position: position[:2])]


def jobs_of(plans: Sequence[Plan]) -> list[Job[Task]]:
    """Return the jobs of all phases, a stage after the other, and mixed in each."""
    stages = zip(*(plan.stages for plan in plans), strict=True)
    return [job for stage in stages for job in mixed(stage)]


def draw_all(named: Sequence[tuple[Source, str]], how: Draw, num_workers: int) -> list[Group]:
    """Return the groups of all kernels, drawn in worker processes.

    Raises: ValueError if a manifest is wrong.
    """
    work: Callable[[tuple[Source, str]], list[Group]] = partial(variants.draw, how=how)
    # The source with most variants comes first: it takes longest.
    jobs = [Job(f"{source.name}: {name}", (source, name)) for source, name in reversed(named)]
    groups: dict[str, list[Group]] = {}
    for finished_job in run_all(jobs, work, num_workers):
        if isinstance(finished_job.result, Failure):
            message = f"{finished_job.task.label}: {finished_job.result.report}"
            raise ValueError(message)  # noqa: TRY004 - the manifest is wrong, and not a type
        groups[finished_job.task.label] = finished_job.result
    return [group for job in reversed(jobs) for group in groups[job.label]]


def count_soaked(records: Iterable[Record]) -> Counter[str]:
    """Return how many variants of each kernel were launched, by the journals of soaks."""
    return Counter(
        variants.kernel_of(outcome.case)
        for record in records
        for outcome in record.outcomes.values()
        if outcome.num_launches and ": " in outcome.case
    )
