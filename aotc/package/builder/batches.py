"""Batch jobs for remote workers: large enough to amortize the overhead, small enough to spread.

A task costs the scheduler about a millisecond, the client as much, and carries its sources; a
compile may take a twentieth of a second. Jobs of one kernel share their sources, so they go
together, up to a time that leaves each worker many batches. The last batches then end at about the
same time.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_SECONDS = 2.0
"""Expected time limit of a batch of several jobs."""

_BATCHES_PER_SLOT = 16


def batches(
    names: Sequence[str], seconds: Sequence[float], num_slots: int
) -> list[tuple[int, ...]]:
    """Divide jobs into batches; return their indices, the longest batch first.

    Each batch has jobs of one name, in order. `seconds` are the jobs' expected times.
    """
    limit = min(MAX_SECONDS, sum(seconds) / (num_slots * _BATCHES_PER_SLOT))
    groups: list[list[int]] = []
    group_seconds = 0.0
    for index in sorted(range(len(names)), key=lambda index: names[index]):
        is_new = not groups or names[index] != names[groups[-1][0]]
        if is_new or group_seconds + seconds[index] > limit:
            groups.append([])
            group_seconds = 0.0
        groups[-1].append(index)
        group_seconds += seconds[index]
    # Start short batches last: at the end, the other workers wait for them.
    groups.sort(key=lambda batch: -sum(seconds[index] for index in batch))
    return [tuple(batch) for batch in groups]
