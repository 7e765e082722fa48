"""`aotc verify` on variants of every kernel of kernels/matrix.toml, a few to a test.

Of many similar variants of a kernel only some are verified; `--exhaustive` verifies all.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aotc.cli import EXIT_DONE, run
from aotc.package.manifest import read as manifest
from aotc.package.verify.subjects import subjects_of_manifest

pytestmark = pytest.mark.usefixtures("one_worker")

MANIFEST = Path(__file__).parents[2] / "kernels" / "matrix.toml"
SPEC = manifest.load(str(MANIFEST))
VARIANTS_OF_A_TEST = 4
TESTS_OF_A_KERNEL = 3


def _groups() -> Iterator[Any]:
    """Yield labels of variants of a kernel and a target, as many as one test verifies."""
    labels_of: dict[tuple[str, str], list[str]] = defaultdict(list)
    for subject in subjects_of_manifest(SPEC):
        labels_of[subject.kernel, subject.target.name].append(subject.label)
    for kernel in SPEC.kernels:
        for target in SPEC.targets:
            labels = labels_of[kernel.name, target.name]
            count = -(-len(labels) // VARIANTS_OF_A_TEST)
            for part in range(count):
                name = f"{kernel.name}-{target.name}-{part}"
                marks = [pytest.mark.exhaustive] if part >= TESTS_OF_A_KERNEL else []
                yield pytest.param(labels[part::count], id=name, marks=marks)


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
        assert "right" in {launch["status"] for launch in variant["launches"]}
