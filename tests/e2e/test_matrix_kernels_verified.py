"""`aotc verify` on the kernels of kernels/matrix.toml: some variants of each, spread evenly.

There are hundreds; `aotc verify kernels/matrix.toml` runs them all in some minutes. Here each kernel
has a test for each target, with the first variant, the last, and some between.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aotc.cli import EXIT_DONE, run
from aotc.package import manifest
from aotc.package.verify import load_subjects

MANIFEST = Path(__file__).parents[2] / "kernels" / "matrix.toml"
SPEC = manifest.load(str(MANIFEST))
KERNELS = [kernel.name for kernel in SPEC.kernels]
TARGETS = [target.name for target in SPEC.targets]
MAX_VARIANTS = 4


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_variants_are_right_at_every_launch(
    name: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = [subject.label for subject in load_subjects(str(MANIFEST), [name], [target])]
    count = min(len(labels), MAX_VARIANTS)
    chosen = [labels[at * (len(labels) - 1) // max(count - 1, 1)] for at in range(count)]
    command = ["verify", str(MANIFEST), "--jobs", "1", "--json"]
    code = run([*command, *(word for label in chosen for word in ("--variant", label))])
    out, err = capsys.readouterr()
    assert code == EXIT_DONE, out + err
    variants = json.loads(out)["variants"]
    assert len(variants) == count
    for variant in variants:
        assert "right" in {launch["status"] for launch in variant["launches"]}
