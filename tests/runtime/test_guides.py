"""The Python of the README and the guides to serving and tuning, run on the fake driver.

Tensors are addresses and torch is a stub, so the test is whether the loader accepts these calls
and launches.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

import aotc
from aotc import cli
from aotc.runtime import Library
from tests.support.fake_gpu import FakeGpu
from tests.support.gpu_arrays import CudaArray

pytestmark = pytest.mark.usefixtures("one_worker")

ROOT = Path(__file__).parents[2]
N_ROWS, N_COLS = 2, 64


class Tensor(CudaArray):
    """An fp16 matrix with strides like torch's."""

    def stride(self, axis: int) -> int:
        return (N_COLS, 1)[axis]


def blocks(page: str) -> list[str]:
    return re.findall(r"(?ms)^```python\n(.*?)^```$", (ROOT / page).read_text())


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The README's archive, for the fake driver's GPU."""
    folder = tmp_path_factory.mktemp("quickstart")
    marked = r"(?ms)^<!-- file: (\S+) -->\n```\w*\n(.*?)^```$"
    for name, text in re.findall(marked, (ROOT / "README.md").read_text()):
        (folder / name).write_text(text)
    output = ["-o", str(folder / "dist"), "--target", "sm_90a"]
    assert cli.run(["build", str(folder / "llm.toml"), *output]) == 0
    return folder


@pytest.mark.parametrize(
    ("page", "skip", "launches"),
    [
        ("README.md", 1, 1),
        ("docs/guide/serving-python.md", 0, 3),
    ],
)
def test_the_python_of_the_guides_launches(
    quickstart: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpu: FakeGpu,
    page: str,
    skip: int,
    launches: int,
) -> None:
    torch = MagicMock()
    torch.cuda.Event.return_value.elapsed_time.return_value = 1.0
    monkeypatch.setitem(sys.modules, "torch", torch)
    load, opened = aotc.load, list[Library]()

    def load_on_fake(path: str) -> Library:
        opened.append(load(path, driver=gpu.path))
        return opened[-1]

    monkeypatch.setattr(aotc, "load", load_on_fake)
    monkeypatch.chdir(quickstart)
    x, w, out = (Tensor(4096 * number, "<f2", (N_ROWS, N_COLS)) for number in (1, 2, 3))
    names: dict[str, object] = {"x": x, "w": w, "out": out, "n_rows": N_ROWS, "n_cols": N_COLS}
    for block in blocks(page)[skip:]:
        exec(compile(block, page, "exec"), names)
    assert gpu.launches == launches
    assert gpu.last().symbol == "rmsnorm_kernel"
    for library in opened:
        library.close()
