"""`aotc verify kernels.toml`: variants of the repository's kernels do what their source means.

A test for each kernel and target, so that they spread over the cores that run the tests. Of a kernel with many variants
some are verified, as far apart in their order as can be, and the others with `--exhaustive`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aotc.cli import EXIT_DONE, run
from aotc.package import manifest
from aotc.package.verify_subjects import subjects_of_manifest
from tests.support.extent import spread

pytestmark = pytest.mark.usefixtures("one_worker")

MANIFEST = Path(__file__).parents[2] / "kernels.toml"
SPEC = manifest.load(str(MANIFEST))
MOST_VARIANTS = 8
MIN_LAUNCHES = 5


def _groups() -> Iterator[Any]:
    """Yield labels of variants of a kernel and a target, and those that are left for `--exhaustive`."""
    labels_of: dict[str, list[str]] = defaultdict(list)
    for subject in subjects_of_manifest(SPEC):
        labels_of[f"{subject.kernel}-{subject.target.name}"].append(subject.label)
    for name, labels in labels_of.items():
        some = spread(labels, MOST_VARIANTS)
        yield pytest.param(some, id=name)
        if others := [label for label in labels if label not in some]:
            yield pytest.param(others, id=f"{name}-others", marks=[pytest.mark.exhaustive])


@pytest.mark.parametrize("labels", list(_groups()))
def test_variants_are_right_at_every_launch(
    labels: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["verify", str(MANIFEST), "--jobs", "1", "--json"]
    code = run([*command, *(word for label in labels for word in ("--variant", label))])
    out, err = capsys.readouterr()
    assert code == EXIT_DONE, out + err
    variants = json.loads(out)["variants"]
    assert len(variants) == len(labels)
    for variant in variants:
        assert {launch["status"] for launch in variant["launches"]} == {"right"}
        assert len(variant["launches"]) >= MIN_LAUNCHES
