"""Every kernel of the repository on a GPU, every config of the archive, against its reference.

    pytest -m gpu tests/e2e --archive dist/kernels.aotc

Without `--archive` the manifest is built first, for the present GPU. Cases, shapes, inputs and
references come from the interpreter's tests; block sizes are the manifest's own.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotc
from aotc.ir.types import SCALARS
from tests.support.kernel_cases import CASES, Arrangement, KernelCase, Launch
from tests.support.tensors import Tensor

pytestmark = pytest.mark.gpu

POINTS = [
    pytest.param(case, dtype, arrangement, id=f"{case.name}-{dtype}-{index}")
    for case in CASES.values()
    for dtype in case.dtypes
    for index, arrangement in enumerate(case.arrangements)
]


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch = pytest.importorskip("torch")
    archive = request.config.getoption("--archive")
    if archive is None:
        from aotc import cli

        major, minor = torch.cuda.get_device_capability()
        target = {90: "sm_90a", 100: "sm_100a", 103: "sm_103a", 120: "sm_120a"}.get(
            10 * major + minor, f"sm_{major}{minor}"
        )
        folder = tmp_path_factory.mktemp("dist")
        manifest = Path(__file__).parents[2] / "kernels.toml"
        assert cli.run(["build", str(manifest), "-o", str(folder), "--target", target]) == 0
        archive = folder / "kernels.aotc"
    torch.zeros(1, device="cuda")
    return aotc.load(archive)


class OnDevice:
    """The tensors of a launch, copied to the GPU; one allocation for each, guard zones included."""

    def __init__(self, launch: Launch, dtype: str, case: KernelCase) -> None:
        import torch

        self.launch = launch
        self.copies: dict[int, tuple[Tensor, Any]] = {}
        self.args: list[object] = []
        for name, arg in launch.args.items():
            if not isinstance(arg, Tensor):
                self.args.append(arg)
                continue
            if id(arg) not in self.copies:
                flat = np.ascontiguousarray(arg.base).view(np.uint8)
                self.copies[id(arg)] = (arg, torch.from_numpy(flat.copy()).cuda())
            _, copy = self.copies[id(arg)]
            element = case.spec.signature[name].element
            address = copy.data_ptr() + arg.offset_elems * arg.base.itemsize
            self.args.append(aotc.runtime.Pointer(address, dtype if element == "T" else element))

    def fetch(self) -> None:
        """Copy everything back to where the references look."""
        for tensor, copy in self.copies.values():
            tensor.base.view(np.uint8)[...] = copy.cpu().numpy()


@pytest.mark.parametrize(("case", "dtype", "arrangement"), POINTS)
def test_against_reference(
    library: Any, case: KernelCase, dtype: str, arrangement: Arrangement
) -> None:
    import torch

    kernel = library[case.name]
    seed = zlib.crc32(f"gpu {case.name} {dtype} {arrangement}".encode())
    rng = np.random.default_rng(seed)
    for config in [None, *map(dict, kernel.info.configs)]:
        constants = {**case.spec.constants, **(config or dict(kernel.info.configs[0]))}
        for shape in case.shapes(constants):
            launch = case.make(rng, SCALARS[dtype], shape, arrangement)
            if config is not None and not case.admits(launch, constants):
                continue  # without a config, the launcher chooses an admissible one
            print(f"seed {seed}, config {config}, shape {shape}")  # noqa: T201
            device = OnDevice(launch, dtype, case)
            kernel.launch(tuple(device.args), config=config)
            torch.cuda.synchronize()
            device.fetch()
            launch.check()


def test_in_a_captured_graph(library: Any) -> None:
    import torch

    kernel = library["vector_add"]
    x, y = (torch.randn(1000, device="cuda") for _ in range(2))
    out = torch.full_like(x, float("nan"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(x, y, out, x.numel())
    assert out.isnan().all()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, x + y)
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, x + y)
