"""The matrix kernels for Hopper on a GPU, against float64 references.

    python -m tests.support.hopper_manifest > hopper_cases.toml && aotc build hopper_cases.toml -o dist
    pytest -m gpu tests/e2e/test_hopper_kernels_gpu.py --hopper dist/hopper_cases.aotc

Cases and references come from the interpreter's tests, at more and larger shapes. Every
configuration in the archive runs each of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotc
from aotc.verify.interpreter.numerics import dtype_of
from tests.support.hopper_case import HopperCase, Shape
from tests.support.hopper_cases import scalar_of
from tests.support.hopper_manifest import builds_of, entries, entry_name, manifest_text
from tests.support.kernel_cases import Launch
from tests.support.tensors import Tensor

pytestmark = pytest.mark.gpu

POINTS = [pytest.param(*entry, id=entry_name(*entry)) for entry in entries()]
_NAMES = ("fp8e4nv", "fp8e5", "bf16", "fp16", "fp32", "i8", "u8", "i32")
DTYPES = {dtype_of(scalar_of(name)): name for name in _NAMES}


def _shapes(case: HopperCase) -> Iterator[Shape]:
    yield from case.shapes
    if len(case.shapes[-1]) == 3 and "M" in case.signature:
        if "small" not in case.name:
            # The scales of "blockwise" lie along M, in rows of whole 16 bytes.
            odd = 324 if case.name == "blockwise" else 321
            depth = 992 if case.name == "mxfp4" else 1008  # a scale is for 32 of K
            yield from [(256, 128, 512), (odd, 272, depth), (700, 1040, 4096)]
        else:
            yield from [(1, 512, 4096), (16, 1024, 2048)]


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch = pytest.importorskip("torch")
    torch.zeros(1, device="cuda")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("these are built for Hopper")
    if built := request.config.getoption("--hopper"):
        return aotc.load(built)
    from aotc import cli

    folder: Path = tmp_path_factory.mktemp("dist")
    path = folder / "cases.toml"
    path.write_text(manifest_text(), encoding="utf-8")
    assert cli.run(["build", str(path), "-o", str(folder)]) == 0
    return aotc.load(folder / "hopper_cases.aotc")


def _launch(
    kernel: Any, launch: Launch, grid: tuple[int, ...], config: dict[str, Any], case: HopperCase
) -> None:
    """Run a launch on copies of its tensors, guard zones included, and copy them back."""
    import torch

    kinds = {**case.signature, **case.extra}
    copies: dict[int, tuple[Tensor, Any]] = {}  # two arguments may be one tensor
    args: list[object] = []
    for param in kernel.info.params:
        name, arg = param.name, launch.args[param.name]
        if not isinstance(arg, Tensor):
            args.append(arg)
            continue
        if id(arg) not in copies:
            copies[id(arg)] = arg, torch.from_numpy(arg.before.view(np.uint8).copy()).cuda()
        _, copy = copies[id(arg)]
        itemsize, dtype = arg.base.itemsize, DTYPES[arg.view.dtype]
        address = copy.data_ptr() + arg.offset_elems * itemsize
        if kinds[name].startswith("*"):
            args.append(aotc.runtime.Pointer(address, dtype))
        else:
            strides = tuple(step // itemsize for step in arg.view.strides)
            args.append(aotc.runtime.Tensor(address, dtype, arg.view.shape, strides))
    kernel.launch(tuple(args), grid=grid, config=config)
    torch.cuda.synchronize()
    for tensor, copy in copies.values():
        tensor.base.view(np.uint8)[...] = copy.cpu().numpy()


@pytest.mark.parametrize(("case", "dtype", "build", "index"), POINTS)
def test_against_reference(
    library: Any, case: HopperCase, dtype: str, build: int, index: int
) -> None:
    seed = zlib.crc32(f"gpu {case.name} {dtype} {build}".encode())
    rng = np.random.default_rng(seed)
    constants = builds_of(case, build)[index]
    kernel = library[entry_name(case, dtype, build, index)]
    for shape in _shapes(case):
        launch = case.make(rng, scalar_of(dtype), shape, constants)
        for variant in kernel.info.variants:
            config = dict(variant.config)
            print(f"seed {seed}, shape {shape}, {constants}, {config}")  # noqa: T201 - for a failure
            _launch(kernel, launch, case.grid_of(launch, constants), config, case)
            launch.check()
