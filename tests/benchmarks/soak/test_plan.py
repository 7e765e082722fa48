"""The order of a soak: new values first, kernels in turn, programs in between."""

from __future__ import annotations

import pytest

from benchmarks.soak import plan, variants
from benchmarks.soak.journal import Outcome, Record
from benchmarks.soak.variants import Draw, Group, Source
from tests.benchmarks.soak.few_variants import few_subjects


def _groups(*names: str) -> list[Group]:
    """Return a group for each variant, six of each kernel."""
    return [Group("few.toml", (subject,)) for subject in few_subjects(*names)]


def _values(groups: list[Group]) -> set[tuple[str, str]]:
    return {
        (group.kernel, value)
        for group in groups
        for subject in group.subjects
        for value in subject.label.split(" ")
    }


@pytest.mark.parametrize("seed", range(5))
def test_every_value_of_a_kernel_comes_before_a_second_time(seed: int) -> None:
    groups = _groups("a", "b")
    first, news, after = plan.ordered(groups, {}, seed)
    assert sorted(map(repr, first + news + after)) == sorted(map(repr, groups))
    assert sorted(group.kernel[-1] for group in first) == ["a", "b"]
    assert _values(first + news) == _values(groups)
    assert len(news) == 2 * 2  # three blocks, on the way both numbers of warps
    assert [group.kernel[-1] for group in after] == [after[0].kernel[-1], after[1].kernel[-1]] * 3
    assert plan.ordered(groups, {}, seed) == (first, news, after)


def test_kernels_that_were_soaked_least_come_first() -> None:
    stages = plan.ordered(_groups("a", "b"), {"few.toml: a": 2}, 0)
    first, news, after = ("".join(group.kernel[-1] for group in stage) for stage in stages)
    assert (first, news) == ("ba", "bbaa")
    assert after in ("bbabaa", "bbbaaa")  # in turn where as many were soaked


def test_last_come_groups_by_size() -> None:
    """Each group is interpreted once: of large ones a time limit reaches more variants."""
    groups = _groups("a", "b")
    subjects = [subject for group in groups for subject in group.subjects]
    pair = Group(groups[0].source, (subjects[0], subjects[0]))
    *_, last = plan.ordered([*groups, pair, pair, pair], {"few.toml: a": 100}, 0)
    sizes = [len(group.subjects) for group in last]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 2


def test_launched_variants_count_for_their_kernels() -> None:
    record = Record()
    for name, launches in (("a sm_90a X=1", 3), ("a sm_90a X=2", 1), ("b sm_90a", 0)):
        outcome = Outcome(f"few.toml: {name}", "variants", "right", num_launches=launches)
        record.take(outcome)
    record.take(Outcome("program 5", "programs", "right", num_launches=2))
    assert plan.count_soaked([record, Record()]) == {"few.toml: a": 2}


def test_what_is_known_is_not_planned_again() -> None:
    groups = _groups("a")
    finished = {variants.name_of(group, group.subjects[0]) for group in groups[:4]}
    planned = plan.plan_variants("variants", groups, finished, {}, 0)
    jobs = plan.jobs_of([planned, plan.plan_programs("programs", range(20), {"program 3"})])
    assert planned.num_cases == 6
    assert planned.kernels == ("few.toml: a",)
    left = [job.request.content for job in jobs if job.request.phase == "variants"]
    assert {variants.name_of(group, group.subjects[0]) for group in left}.isdisjoint(finished)
    assert len(left) == 2
    seeds = [s for job in jobs if job.request.phase == "programs" for s in job.request.content]
    assert seeds == [0, 1, 2, *range(4, 20)]


def test_without_counts_the_order_is_kept() -> None:
    groups = _groups("a", "b")
    planned = plan.plan_variants("risky", groups, set())
    assert [job.request.content for job in plan.jobs_of([planned])] == groups


def test_sequences_are_mixed_evenly() -> None:
    assert plan.mixed(["abcd", "12", ""]) == [*"a1bc2d"]
    assert plan.mixed([[], []]) == []


def test_kernels_are_drawn_in_workers_as_they_are_in_one_process() -> None:
    named = variants.named_kernels([Source(variants.ROOT / "benchmarks/transpose.toml", 3)])
    assert named
    drawn = plan.draw_all(named, Draw(7), 2)
    assert [(g.kernel, [s.label for s in g.subjects]) for g in drawn] == [
        (g.kernel, [s.label for s in g.subjects])
        for group in named
        for g in variants.draw(group, Draw(7))
    ]
    assert all(len(s.expanded[0].variants) == 1 for g in drawn for s in g.subjects if s.expanded)


def test_a_wrong_manifest_is_named() -> None:
    named = [(Source(variants.ROOT / "benchmarks/transpose.toml", 3), "nothing")]
    with pytest.raises(ValueError, match="nothing"):
        plan.draw_all(named, Draw(7), 1)
