"""`[kernel.bench]`: expressions over arguments, constants and sizes of type variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.ir.diagnostics import ManifestError
from aotc.package.archive.index import Kernel, Param, TypeVariable
from aotc.package.manifest.read import load
from aotc.package.manifest.spec import BenchSpec
from aotc.package.tuning.shapes import Launch
from aotc.package.tuning.work import Work, dot_dtype, peak_of, work_of
from tests.support.cover_kernels import MANIFEST, write

KERNEL = Kernel(
    "scale",
    b"",
    (),
    params=(
        Param("x", "pointer", "T", access="read"),
        Param("out", "pointer", "T", access="both"),
        Param("n", "scalar", "i32"),
    ),
    type_variables=(TypeVariable("T", ("bf16", "fp32")),),
)


def spec_of(folder: Path, section: str) -> BenchSpec:
    text = MANIFEST.replace("[kernel.configs]", f"[kernel.bench]\n{section}\n[kernel.configs]")
    return load(str(write(folder, text))).kernels[0].bench


def test_a_type_variable_is_the_bytes_of_an_element(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, 'flops = "2 * n"\nbytes = "n * T * (1 + NEGATE)"')
    launch = Launch("scale", {"T": "fp32"}, {"NEGATE": True}, {"n": 17})
    assert work_of(spec, KERNEL, launch, {"x": 999}) == Work(34, 17 * 4 * 2)
    assert dot_dtype(KERNEL, launch) == "fp32"


def test_without_it_bytes_are_those_of_the_buffers(tmp_path: Path) -> None:
    """Buffers both read and written count twice."""
    launch = Launch("scale", {"T": "bf16"}, {"NEGATE": True}, {"n": 17})
    assert work_of(BenchSpec(), KERNEL, launch, {"x": 34, "out": 10}) == Work(None, 54)
    assert work_of(BenchSpec(), KERNEL, launch, {}) == Work(None, None)
    assert work_of(spec_of(tmp_path, 'flops = "n"'), KERNEL, launch, {"x": 3}) == Work(17, 3)


def test_extents_of_peers_are_expressions(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, 'matmul = ["n", "BLOCK", "64"]')
    assert list(spec.peers) == ["matmul"]
    assert len(spec.peers["matmul"]) == 3


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('flop = "n"', "got the unknown key 'flop'"),
        ('flops = "m"', "`m` is unknown"),
        ('flops = "x"', "expected an integer argument"),
        ("flops = 5", "expected a string"),
        ('matmul = ["n"]', r"expected 3 extents \(M, N, K\), got 1"),
    ],
)
def test_mistakes_have_their_place(tmp_path: Path, section: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message) as caught:
        spec_of(tmp_path, section)
    assert caught.value.loc is not None


def test_a_negative_number_is_told(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, 'flops = "n - 100"')
    launch = Launch("scale", {"T": "bf16"}, {"NEGATE": True}, {"n": 17})
    with pytest.raises(ManifestError, match="expected a number from 0, got -83"):
        work_of(spec, KERNEL, launch, {})


@pytest.mark.parametrize(
    ("gpu", "terabytes"),
    [
        ("NVIDIA H200", 4.8),
        ("NVIDIA H100 80GB HBM3", 3.35),
        ("NVIDIA H100 PCIe", 2.0),
        ("NVIDIA A100-SXM4-80GB", 2.04),
        ("NVIDIA A10", 0.6),
        ("NVIDIA B200", 8.0),
    ],
)
def test_peaks_are_by_the_drivers_name(gpu: str, terabytes: float) -> None:
    peak = peak_of(gpu)
    assert peak is not None
    assert peak.bytes_per_second == terabytes * 1e12
    assert peak.flops_of("bf16") > peak.flops_of("fp32") == peak.flops_of("i64")


def test_a_gpu_that_is_not_listed_has_no_peak() -> None:
    assert peak_of("NVIDIA GeForce GTX 1080") is None
