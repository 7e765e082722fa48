"""Code loaded by its first launch."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from aotc.package.archive.file import decode, encode
from aotc.runtime import AotcError, Library, StateError
from tests.runtime.conftest import Load
from tests.support.archive_bytes import of_cuda_12
from tests.support.fake_gpu import FakeGpu

_X, _OUT, _OTHER = 0x1000, 0x2000, 0x3000
_OUT_OF_MEMORY = 2


def _add(library: Library, dtype: str = "fp16") -> None:
    library["add"]((_X, dtype), _OUT, _OTHER, 1)


def test_a_variant_is_loaded_by_its_first_launch(load: Load, gpu: FakeGpu, archives: Path) -> None:
    library = load(archives / "grouped.aotc", kernels=["add"], lazy=True)
    assert gpu.live_libraries == 0
    _add(library)
    assert (gpu.live_libraries, gpu.launches) == (1, 1)
    _add(library)
    assert (gpu.live_libraries, gpu.launches) == (1, 2)
    assert (gpu.calls("cuModuleLoadData"), gpu.calls("cuLibraryLoadData")) == (1, 0)
    library.load(kernels=["add"])
    whole = gpu.live_libraries
    assert whole > 1
    assert (gpu.calls("cuModuleLoadData"), gpu.calls("cuLibraryLoadData")) == (1, whole - 1)
    library.close()
    assert gpu.live_libraries == 0


def test_what_is_launched_is_what_an_eager_load_launches(
    load: Load, gpu: FakeGpu, archives: Path
) -> None:
    seen: list[list[object]] = []
    for lazy in (False, True):
        library = load(archives / "golden.aotc", lazy=lazy)
        launches: list[object] = []
        for dtype in ("fp16", "fp32"):
            _add(library, dtype)
            launches.append((gpu.last().symbol, gpu.last().grid, gpu.last().params))
        library["shared"](_X)
        launches.append((gpu.last().symbol, gpu.last().shared_bytes))
        seen.append(launches)
        library.close()
    assert seen[0] == seen[1]


def test_code_of_cuda_12_is_loaded(load: Load, gpu: FakeGpu, archives: Path) -> None:
    """Its ELF header has the architecture in other bits."""
    archive = decode((archives / "golden.aotc").read_bytes())
    kernels = [
        replace(
            kernel,
            variants=tuple(replace(v, cubin=of_cuda_12(v.cubin)) for v in kernel.variants),
        )
        for kernel in archive.kernels
    ]
    path = archives / "cuda12.aotc"
    path.write_bytes(encode(replace(archive, kernels=tuple(kernels))))
    library = load(path)
    _add(library)
    assert gpu.launches == 1


def test_select_loads_what_it_names(load: Load, gpu: FakeGpu, archives: Path) -> None:
    library = load(archives / "golden.aotc", kernels=["add"], lazy=True)
    chosen = library["add"].select([(_X, "fp16"), _OUT, _OTHER, 1])
    assert chosen.function
    assert (gpu.live_libraries, gpu.launches) == (1, 0)
    _add(library)
    assert gpu.calls("cuLibraryLoadData") == 1


def test_a_refused_load_is_tried_again(load: Load, gpu: FakeGpu, archives: Path) -> None:
    library = load(archives / "golden.aotc", kernels=["add"], lazy=True)
    gpu.fail("cuModuleLoadData", _OUT_OF_MEMORY)
    with pytest.raises(AotcError, match="cuModuleLoadData"):
        _add(library)
    assert (gpu.live_libraries, gpu.launches) == (0, 0)
    gpu.fail("cuModuleLoadData", 0)
    _add(library)
    assert (gpu.live_libraries, gpu.launches) == (1, 1)


def test_after_unloading_it_is_loaded_again(load: Load, gpu: FakeGpu, archives: Path) -> None:
    library = load(archives / "golden.aotc", device=0, kernels=["add"], lazy=True)
    _add(library)
    library.unload(0)
    assert gpu.live_libraries == 0
    with pytest.raises(StateError):
        _add(library)
    library.load(0, "add", lazy=True)
    _add(library)
    assert gpu.live_libraries == 1


def test_threads_load_a_variant_once(load: Load, gpu: FakeGpu, archives: Path) -> None:
    """One decompresses, and needs Python's lock for it, while others wait with launches of their own."""
    for _ in range(20):
        library = load(archives / "grouped.aotc", kernels=["add"], lazy=True)
        before = gpu.calls("cuModuleLoadData")
        gate = threading.Barrier(8)

        def run(library: Library = library, gate: threading.Barrier = gate) -> None:
            gate.wait()
            gpu.make_current(0)
            for dtype in ("fp16", "fp32"):
                _add(library, dtype)

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert gpu.calls("cuModuleLoadData") - before == 2
        library.close()
        gc.collect()
