"""Batches: every job once, by kernel, no longer than is good for many workers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aotc.package.builder.batches import MAX_SECONDS, batches

_JOBS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.001, 10)), max_size=60)


@given(_JOBS, st.integers(1, 100))
def test_every_job_is_in_one_batch_with_its_kernel(
    jobs: list[tuple[str, float]], num_slots: int
) -> None:
    names, seconds = [name for name, _ in jobs], [duration for _, duration in jobs]
    groups = batches(names, seconds, num_slots)
    assert sorted(index for batch in groups for index in batch) == list(range(len(jobs)))
    assert all(len({names[index] for index in batch}) == 1 for batch in groups)
    lengths = [sum(seconds[index] for index in batch) for batch in groups]
    assert lengths == sorted(lengths, reverse=True)
    bound = min(MAX_SECONDS, sum(seconds) / num_slots)
    assert all(len(b) == 1 or n <= bound for b, n in zip(groups, lengths, strict=True))


def test_small_jobs_go_together() -> None:
    assert batches(["k"] * 6, [0.5] * 6, 1) == [tuple(range(6))[i : i + 1] for i in range(6)]
    assert [len(batch) for batch in batches(["k"] * 1000, [0.5] * 1000, 4)] == [4] * 250
    assert batches([], [], 4) == []
