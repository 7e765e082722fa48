"""The drivers that an archive's code runs on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from aotc.package.archive.elf import check_cubin, toolchain_of
from aotc.package.archive.index import Archive, ArchiveError
from aotc.package.inspect.drivers import drivers_text
from tests.support.archive_bytes import of_cuda_12


def test_code_for_several_gpus(samples: SimpleNamespace) -> None:
    (kernel,) = samples.small.kernels
    (variant,) = kernel.variants

    def text(*variants: tuple[str, bool]) -> str:
        built = tuple(
            replace(
                variant,
                target=target,
                cubin=of_cuda_12(variant.cubin) if is_cuda_12 else variant.cubin,
            )
            for target, is_cuda_12 in variants
        )
        return drivers_text(Archive("one", "1", (replace(kernel, variants=built),)))

    assert text(("sm_80", True), ("sm_90a", True)) == "drivers of CUDA 12.0 (R525) and later"
    assert text(("sm_90a", False)) == "drivers of CUDA 13.0 (R580) and later"
    assert text(("sm_107a", False)) == "drivers of CUDA 13.4 and later"
    assert text(("sm_90", True)) == "drivers of CUDA 12.0 (R525) and later"
    assert text(("sm_80", True), ("sm_121a", True), ("sm_89", True)) == (
        "drivers from CUDA 12.0 (R525) for sm_80 sm_89, CUDA 12.9 (R575) for sm_121a"
    )
    assert drivers_text(Archive("none", "1", ())) == ""


def test_the_toolchain_of_a_cubin(samples: SimpleNamespace) -> None:
    cubin = samples.fake_cubin()
    assert toolchain_of(cubin) == "13.5"
    assert toolchain_of(of_cuda_12(cubin)) == "12.9"
    # For Blackwell, CUDA 12 writes the newer ABI; the note has the release.
    assert toolchain_of(cubin + b"Cuda compilation tools, release 12.9, V12.9.86") == "12.9"
    assert toolchain_of(cubin + b"Cuda compilation tools, release 13.1, V13.1.80") == "13.5"


def test_a_cubin_of_cuda_12_is_checked(samples: SimpleNamespace) -> None:
    cubin = of_cuda_12(samples.fake_cubin())
    check_cubin(cubin, "sm_90a", "k")
    with pytest.raises(ArchiveError, match="the cubin is for sm_90"):
        check_cubin(cubin, "sm_80", "k")
