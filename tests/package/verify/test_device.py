"""Verification on a GPU: arguments and results of a launch. The GPU here is the emulator."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final

import numpy as np
import pytest

from aotc import runtime
from aotc.ir.diagnostics import ManifestError
from aotc.ir.expression import evaluate
from aotc.package.archive.file import decode
from aotc.package.manifest.read import parse
from aotc.package.verify import device as verify_device
from aotc.package.verify.device import verify_on_device
from aotc.package.verify.subjects import Subject, VerifyOptions, load_subjects, subjects_of_manifest
from aotc.verify.arrays import Array
from aotc.verify.checks.check import ExecutionFault
from aotc.verify.checks.device import NoDeviceError
from tests.support import mapped
from tests.support.verify_subjects import manifest_text

_ADDRESS_BITS = 40  # of an allocation: rows may be gigabytes apart


class _Driver:
    """Device memory on the host."""

    def __init__(self) -> None:
        self.held: dict[int, Array] = {}
        self.count = 0

    def allocate(self, size_bytes: int) -> int:
        self.count += 1
        self.held[self.count << _ADDRESS_BITS] = np.zeros(size_bytes, np.uint8)
        return self.count << _ADDRESS_BITS

    def free(self, address: int) -> None:
        del self.held[address]

    def write(self, address: int, content: Array) -> None:
        self._at(address, content.size)[:] = content

    def read(self, address: int, size_bytes: int) -> Array:
        return self._at(address, size_bytes).copy()

    def synchronize(self) -> None: ...

    def elements(self, pointer: int, count: int, dtype: Any) -> Array:
        return self._at(pointer, count * np.dtype(dtype).itemsize).view(dtype)

    def _at(self, address: int, size_bytes: int) -> Array:
        base = address >> _ADDRESS_BITS << _ADDRESS_BITS
        start = address - base
        content = self.held[base][start : start + size_bytes]
        assert content.size == size_bytes, "beyond the allocation"
        return content


@final
class _Library:
    """A library with one kernel, `crowd`, run here: out[i] = i + offset."""

    def __init__(self, driver: _Driver, offset: int, error: Exception | None = None) -> None:
        self.driver, self.offset, self.error = driver, offset, error
        self.launched: list[tuple[tuple[object, ...], object, object]] = []
        self.scratch_bytes = 0
        self.scratch: list[tuple[int, int] | None] = []

    def __enter__(self) -> _Library:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __getitem__(self, name: str) -> _Library:
        assert name == "crowd"
        return self

    def select(self, args: tuple[Any, ...], grid: object, choices: object) -> SimpleNamespace:
        del args, grid, choices
        return SimpleNamespace(scratch_bytes=self.scratch_bytes)

    def launch(
        self, args: tuple[Any, ...], grid: object, choices: object, scratch: tuple[int, int] | None
    ) -> None:
        if self.error is not None:
            raise self.error
        self.scratch.append(scratch)
        self.launched.append((args, grid, choices))
        out, n = args
        assert out.dtype == "i32"
        n = min(n, 16)
        self.driver.elements(out.address, n, np.int32)[:] = np.arange(n) + self.offset


@pytest.fixture
def subject() -> Subject:
    text = manifest_text("crowd", verify='n = [3, 16]\ngrid = ["1"]')
    return subjects_of_manifest(parse(text, "kernels.toml"))[0]


def _use(
    monkeypatch: pytest.MonkeyPatch, offset: int = 0, error: Exception | None = None
) -> _Library:
    driver = _Driver()
    library = _Library(driver, offset, error)
    monkeypatch.setattr(verify_device, "open_driver", lambda: driver)
    monkeypatch.setattr(runtime, "load", lambda content: library)
    return library


def test_a_right_cubin(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    library = _use(monkeypatch)
    result = verify_on_device(subject, VerifyOptions())
    assert result.status == "verified"
    assert {args[1] for args, _, _ in library.launched} == {3, 16}
    assert {grid for _, grid, _ in library.launched} == {(1,)}
    assert library.driver.held == {}


def test_a_launch_gets_its_scratch_memory(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = _use(monkeypatch)
    library.scratch_bytes = 256
    assert verify_on_device(subject, VerifyOptions()).status == "verified"
    assert {scratch and scratch[1] for scratch in library.scratch} == {256}
    assert library.driver.held == {}


def test_a_wrong_cubin(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    _use(monkeypatch, offset=1)
    result = verify_on_device(subject, VerifyOptions())
    assert result.status == "wrong"
    assert result.findings[-1].detail.startswith("out_ptr[0] is 1, expected 0 to the bit")


def test_a_launch_that_is_refused(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    _use(monkeypatch, error=runtime.ArgumentError("no"))
    result = verify_on_device(subject, VerifyOptions())
    assert result.findings[-1].detail == "the launch is refused: no"


def test_a_launch_without_enough_free_memory(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = runtime.CudaError("out of memory")
    error.cuda = 2
    library = _use(monkeypatch, error=error)
    library.scratch_bytes = 256
    result = verify_on_device(subject, VerifyOptions())
    assert result.status != "verified"
    reason = "the GPU does not have its local memory free"
    assert {(finding.status, finding.detail) for finding in result.findings} == {
        ("passed over", reason)
    }
    assert library.driver.held == {}


def test_an_access_that_the_driver_reports(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(monkeypatch, error=ExecutionFault("the driver reports CUDA_ERROR_ILLEGAL_ADDRESS"))
    result = verify_on_device(subject, VerifyOptions())
    assert result.status == "wrong"


def test_a_target_that_the_gpu_does_not_run(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(monkeypatch)

    def refuse(content: bytes) -> None:
        raise runtime.ArchError("another one")

    monkeypatch.setattr(runtime, "load", refuse)
    result = verify_on_device(subject, VerifyOptions())
    assert (result.status, result.dropped) == (
        "dropped",
        "the GPU of this machine does not run sm_80",
    )


def test_no_gpu(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> None:
        raise NoDeviceError("no CUDA driver")

    verify_device.open_driver.cache_clear()
    monkeypatch.setattr(verify_device, "Driver", nothing)
    with pytest.raises(ManifestError, match="expected a GPU to verify on, got no CUDA driver"):
        verify_on_device(subject, VerifyOptions())


def test_without_bindings_the_extra_is_named(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify_device.open_driver.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(ManifestError, match="got no cuda-python") as raised:
        verify_on_device(subject, VerifyOptions())
    assert "pip install 'aotc[device]' brings it; without --device" in str(raised.value.remedy)


# ---- a kernel compiled both ways ------------------------------------------------------


@final
class _TwiceLibrary:
    """A library with one variant of `twice`, run here: out = 2 x, by rows."""

    def __init__(self, driver: _Driver, content: bytes) -> None:
        (kernel,) = decode(content).kernels
        (self.variant,) = kernel.variants
        self.driver = driver
        self.rows: list[int] = []

    def __enter__(self) -> _TwiceLibrary:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __getitem__(self, name: str) -> _TwiceLibrary:
        assert name == "twice"
        return self

    def select(self, args: tuple[Any, ...], grid: object, choices: object) -> SimpleNamespace:
        del args, grid, choices
        return SimpleNamespace(scratch_bytes=0)

    def launch(self, args: tuple[Any, ...], grid: object, choices: object, scratch: None) -> None:
        del grid, choices, scratch
        x, out, rows, cols, stride = args
        condition = self.variant.condition
        if condition is not None and not evaluate(condition, {"rows": rows, "stride": stride}):
            raise runtime.NotFoundError("no variant")
        self.rows.append(rows)
        for row in range(rows if cols else 0):
            offset = 4 * row * stride
            source = self.driver.elements(x.address + offset, cols, np.float32)
            target = self.driver.elements(out.address + offset, cols, np.float32)
            with np.errstate(over="ignore"):  # as the GPU has it
                target[:] = 2 * source


def test_both_forms_are_launched_each_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = _Driver()
    opened: list[_TwiceLibrary] = []

    def load(content: bytes) -> _TwiceLibrary:
        opened.append(_TwiceLibrary(driver, content))
        return opened[-1]

    monkeypatch.setattr(verify_device, "open_driver", lambda: driver)
    monkeypatch.setattr(verify_device, "compile_kernel", mapped.compile_mapped)
    monkeypatch.setattr(verify_device, "compile_ptx", mapped.compile_mapped_ptx)
    monkeypatch.setattr(runtime, "load", load)
    subject = load_subjects(str(mapped.written(tmp_path)), target_names=["sm_90a"])[0]
    result = verify_on_device(subject, VerifyOptions())
    assert result.status == "verified", result
    assert result.fallback is not None
    with_map, without = opened
    assert (with_map.variant.symbol, without.variant.symbol) == ("twice_mapped", "twice")
    assert len(with_map.rows) == len(result.findings)
    assert len(without.rows) == len(result.fallback)
    assert any(rows % 16 for rows in without.rows)
    assert driver.held == {}
