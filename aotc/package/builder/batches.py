"""Batches of jobs for workers elsewhere: large enough to be worth the way, small enough to spread.

A task costs a scheduler about a millisecond, the client as much, and carries its sources; a compile
may take a twentieth of a second. So jobs of one kernel, which share their sources, go together, up
to a time that leaves each worker many batches: the last ones then end at about the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_SECONDS = 2.0
"""What a batch takes at most, if it is more than one job."""

_BATCHES_PER_SLOT = 16


def batches(
    names: Sequence[str], seconds: Sequence[float], num_slots: int
) -> list[tuple[int, ...]]:
    """Divide jobs into batches; return their indices, the longest batch first.

    Each batch has jobs of one name, in order. `seconds` is what each is expected to take.
    """
    limit = min(MAX_SECONDS, sum(seconds) / (num_slots * _BATCHES_PER_SLOT))
    made: list[list[int]] = []
    taken = 0.0
    for index in sorted(range(len(names)), key=lambda index: names[index]):
        is_new = not made or names[index] != names[made[-1][0]]
        if is_new or taken + seconds[index] > limit:
            made.append([])
            taken = 0.0
        made[-1].append(index)
        taken += seconds[index]
    # What starts last should be short: nothing else runs beside its end.
    made.sort(key=lambda batch: -sum(seconds[index] for index in batch))
    return [tuple(batch) for batch in made]
