"""`aotc verify kernels.toml`: every variant of the repository's kernels passes.

There is a test per kernel and target, to spread over the test runner's cores.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aotc.cli import EXIT_DONE, run
from aotc.package.manifest import read as manifest

pytestmark = pytest.mark.usefixtures("one_worker")

MANIFEST = Path(__file__).parents[2] / "kernels.toml"
SPEC = manifest.load(str(MANIFEST))
KERNELS = [kernel.name for kernel in SPEC.kernels]
TARGETS = [target.name for target in SPEC.targets]
MIN_LAUNCHES = 5


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_variant_is_right_at_every_launch(
    name: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["verify", str(MANIFEST), "--kernel", name, "--target", target, "--jobs", "1"]
    code = run([*command, "--json"])
    out, err = capsys.readouterr()
    assert code == EXIT_DONE, out + err
    variants = json.loads(out)["variants"]
    assert variants
    for variant in variants:
        assert {launch["status"] for launch in variant["launches"]} == {"right"}
        assert len(variant["launches"]) >= MIN_LAUNCHES
