"""Kernels around matrix products and atomics on a GPU, against float64 references.

    python -m tests.support.matrix_manifest > matrix_cases.toml && aotc build matrix_cases.toml -o dist
    pytest -m gpu tests/e2e/test_matrix_kernels_gpu.py [--matrix dist/cases.aotc]

Cases and references come from the interpreter's tests, with tiles and shapes of realistic sizes. Every
kernel is built with and without promises; the launcher chooses a fitting variant.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotc
from aotc.ir.types import SCALARS
from aotc.verify.interpreter.numerics import dtype_of
from tests.support.kernel_cases import Launch
from tests.support.matrix_cases import CASES, MatrixCase, Shape
from tests.support.matrix_manifest import entry_name, large_build, manifest_text
from tests.support.tensors import Tensor

pytestmark = pytest.mark.gpu

POINTS = [
    pytest.param(case, dtype, index, id=f"{case.name}-{dtype}-{index}")
    for case in CASES.values()
    for dtype in map(str, case.dtypes)
    for index in range(len(case.builds))
]


def _shapes(case: MatrixCase) -> Iterator[Shape]:
    yield from case.shapes
    last = case.shapes[-1]
    if "GROUP_M" in case.builds[0] and len(last) == 3:
        yield from [(256, 128, 512), (321, 272, 1000), (64, 1024, 4096)]


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch = pytest.importorskip("torch")
    torch.zeros(1, device="cuda")
    if built := request.config.getoption("--matrix"):
        return aotc.load(built)
    from aotc import cli

    major, minor = torch.cuda.get_device_capability()
    plain = f"sm_{major}{minor}"
    folder: Path = tmp_path_factory.mktemp("dist")
    path = folder / "cases.toml"
    path.write_text(manifest_text(plain if major == 8 else f"{plain}a"), encoding="utf-8")
    assert cli.run(["build", str(path), "-o", str(folder)]) == 0
    return aotc.load(folder / "cases.aotc")


def _launch(kernel: Any, config: dict[str, Any], launch: Launch, grid: tuple[int, ...]) -> None:
    """Run a launch on copies of its tensors, guard zones included, and copy them back."""
    import torch

    copies: list[tuple[Tensor, Any]] = []
    args: list[object] = []
    for arg in launch.args.values():
        if not isinstance(arg, Tensor):
            args.append(arg)
            continue
        flat = np.ascontiguousarray(arg.base).view(np.uint8)
        copy = torch.from_numpy(flat.copy()).cuda()
        copies.append((arg, copy))
        element = next(str(s) for s in SCALARS.values() if dtype_of(s) == arg.view.dtype)
        address = copy.data_ptr() + arg.offset_elems * arg.base.itemsize
        args.append(aotc.runtime.Pointer(address, element))
    kernel.launch(tuple(args), grid=grid, config=config)
    torch.cuda.synchronize()
    for tensor, copy in copies:
        tensor.base.view(np.uint8)[...] = copy.cpu().numpy()


@pytest.mark.parametrize(("case", "dtype", "index"), POINTS)
def test_against_reference(library: Any, case: MatrixCase, dtype: str, index: int) -> None:
    seed = zlib.crc32(f"gpu {case.name} {dtype} {index}".encode())
    rng = np.random.default_rng(seed)
    build = large_build(case, case.builds[index])
    kernel = library[entry_name(case, dtype, index)]
    for shape in _shapes(case):
        if build.get("EVEN_K") and shape[2] % build["BLOCK_K"]:
            continue
        for config in map(dict, kernel.info.configs):
            print(f"seed {seed}, shape {shape}, {build}, {config}")  # noqa: T201 - for a failure
            launch = case.make(rng, SCALARS[dtype], shape, build)
            _launch(kernel, config, launch, case.grid_of(launch, build))
            launch.check()
