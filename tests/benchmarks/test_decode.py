"""benchmarks/decode.py without a GPU: its workloads and their kernels in the manifest."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path
from types import ModuleType

import pytest

from aotc.package.manifest.read import load

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="decode")
def _decode(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("decode")


def test_every_workload_has_its_kernels(decode: ModuleType) -> None:
    kernels = {kernel.name: kernel for kernel in load(str(BENCHMARKS / "decode.toml")).kernels}
    shapes = list(itertools.chain.from_iterable(decode.WORK.values()))
    assert {"mla_64", *(f"paged_{page}" for page in (16, 64, 256))} < {
        shape.kernel for shape in shapes
    }
    for shape in shapes:
        assert shape.kernel in kernels
        assert shape.page in kernels[f"combine_{shape.out_dim}"].choices["PAGE"]


def test_names_tell_workloads_apart(decode: ModuleType) -> None:
    names = [shape.name for shape in itertools.chain.from_iterable(decode.WORK.values())]
    assert len({*names}) == len(names)


def test_bytes_and_flops(decode: ModuleType) -> None:
    dense = decode.Shape(2, 1000)
    assert dense.read == 2 * 1000 * 8 * 128 * 2 * 2
    assert dense.flops == 2 * 1000 * 64 * 4 * 128
    assert dense.max_pages == 16
    assert decode.Shape(2, 1000, fp8=True).read == dense.read / 2
    mla = decode.Shape(64, 8192, heads=128, mla=True)
    assert mla.read == 64 * 8192 * 1152
    assert mla.flops == 64 * 8192 * 128 * 2 * 1088
    ragged = decode.Shape(4, 1000, ragged=True)
    assert ragged.lengths == [1000, 875, 750, 625]


def test_sets_are_more_than_the_cache_of_a_gpu(decode: ModuleType) -> None:
    for shape in itertools.chain.from_iterable(decode.WORK.values()):
        assert shape.num_sets * shape.read >= 512 << 20


def test_a_row_is_printed_whole(decode: ModuleType) -> None:
    row = {
        "work": "w", "bytes": 1, "aotc_tb_s": 3.0, "copy_tb_s": 2.5, "over_copy": 1.2,
        "aotc_tflops": 600.0, "aotc_config": "c",
    }  # fmt: skip
    assert decode.line(row).split() == (
        ["w", "aotc", "3.000", "copy", "2.500", "over", "copy", "1.200", "600", "TFLOP/s"]
    )


def test_the_command_line(decode: ModuleType) -> None:
    options = decode.options_of(["a.aotc", "--work", "mla", "fp8", "--no-triton"])
    assert options.work == ["mla", "fp8"]
    assert options.no_triton
    assert decode.options_of(["a.aotc"]).work == list(decode.WORK)
