"""Selection of variants, and one interpretation for all configs of a kernel."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from aotc.package.verify.subjects import Subject
from benchmarks.soak import variants
from benchmarks.soak.devices import Emulator
from benchmarks.soak.variants import Group, Settings, VariantCase
from tests.benchmarks.soak.few_variants import few_subjects


def _subjects() -> list[Subject]:
    return few_subjects("vector_add", num_stages=(1, 3))


def test_a_sample_has_whole_groups_and_no_more_than_asked_for() -> None:
    subjects = _subjects()
    assert len(subjects) == 12
    whole_sample = variants.sample(subjects, 12, random.Random(0))
    assert [len(group) for group in whole_sample] == [4, 4, 4]
    few = variants.sample(subjects, 5, random.Random(0), per_group=3)
    assert [len(group) for group in few] == [3, 2]
    for group in few:
        assert len({subject.values["BLOCK"] for subject in group}) == 1
    labels = [subject.label for group in few for subject in group]
    again = variants.sample(subjects, 5, random.Random(0), per_group=3)
    assert labels == [subject.label for group in again for subject in group]
    other = variants.sample(subjects, 5, random.Random(1), per_group=3)
    assert labels != [subject.label for group in other for subject in group]


def test_configs_share_references_and_cases_are_right_in_the_emulator() -> None:
    group = Group("few.toml", tuple(variants.sample(_subjects(), 4, random.Random(0))[0]))
    prepared = variants.prepare(group, Settings(emulates=True, repeats=1), "variants")
    assert prepared.outcomes == []
    assert [case.subject.values["num_stages"] for case in prepared.cases] == [3, 3, 1, 1]
    first, *later_cases = prepared.cases
    assert len(first.members[0].references) > 3
    for case in later_cases:
        assert case.members[0].references is first.members[0].references
    assert _problems(first) == []


def test_a_result_that_differs_is_told() -> None:
    group = Group("few.toml", tuple(_subjects()[:2]))
    prepared = variants.prepare(group, Settings(emulates=True, repeats=1), "variants")
    case = prepared.cases[0]
    names: set[str] = set()
    for reference in case.members[0].references:
        written = reference.buffer("out_ptr")
        assert written is not None
        written.expected.view("u1")[-1:] ^= 0x40
        names.add(written.name)
    problems = _problems(case)
    assert {problem.partition("[")[0] for problem in problems} == names
    assert names == {"out_ptr", "x_ptr", "y_ptr"}  # the last two where it works in place


def _problems(case: VariantCase) -> list[str]:
    with case.opened(Emulator()) as launches:
        return [problem for _, attempt in launches if (problem := attempt())]


def test_every_manifest_is_there() -> None:
    names = [source.name for source in (*variants.SOURCES, *variants.RISKY)]
    assert Counter(names).most_common(1)[0][1] == 1
    assert {"kernels.toml", "kernels/hopper.toml", "benchmarks/soak/soak.toml"} <= set(names)
    assert all((variants.ROOT / name).is_file() for name in names)
    assert Path("kernels.toml").name in names
