"""A cubin with a line table is loaded and launched as any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aotc import cli
from aotc.runtime import Library
from tests.package.builder.test_lineinfo import build
from tests.support.fake_gpu import FakeGpu

pytestmark = pytest.mark.usefixtures("one_worker")


@pytest.mark.parametrize("options", [["--no-lineinfo"], []])
def test_it_is_launched(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpu: FakeGpu,
    load: Callable[..., Library],
    options: list[str],
) -> None:
    library = load(build(tmp_path, monkeypatch, *options))
    library["scale"]((4096, "fp32"), 8192, 1000)
    assert gpu.last().grid == (4, 1, 1)
    assert cli.run(["inspect", "dist/lines.aotc"]) == 0
