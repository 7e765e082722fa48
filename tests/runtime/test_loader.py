"""`aotc.load` and its library: places and lifetimes of loaded code, and errors."""

from __future__ import annotations

import gc
import math
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import aotc
from aotc.runtime import (
    AotcError,
    ArchError,
    ArgumentError,
    CaptureError,
    ChecksumError,
    CudaError,
    DriverError,
    FormatError,
    Library,
    NotFoundError,
    Pointer,
    ReadError,
    StateError,
    UnsupportedError,
    VersionError,
)
from aotc.runtime import errors as error_module
from tests.support.fake_gpu import AMPERE, HOPPER, ROOT, FakeGpu

Load = Callable[..., Library]


# ----------------------------------------------------------------------------------------- loading


def test_load_makes_everything_ready(load: Load, archives: Path, gpu: FakeGpu) -> None:
    library = load(archives / "golden.aotc")
    loaded = gpu.calls("cuLibraryLoadData")
    assert loaded == gpu.live_libraries > 0
    library["shared"](0x1000)
    assert (gpu.last().symbol, gpu.last().shared_bytes) == ("shared", 200 * 1024)
    assert gpu.calls("cuLibraryLoadData") == loaded


def test_load_chosen_kernels_only(load: Load, archives: Path) -> None:
    library = load(archives / "golden.aotc", kernels=["shared"])
    library["shared"](0x1000)
    with pytest.raises(StateError, match=r"'add'.*not loaded"):
        library["add"]((0x1000, "fp16"), 0x2000, 0x3000, 1)
    library.load(kernels="add")
    library["add"]((0x1000, "fp16"), 0x2000, 0x3000, 1)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_load_from_memory(load: Load, archives: Path, kind: type) -> None:
    data = bytearray((archives / "small.aotc").read_bytes())
    library = load(kind(data))
    data[:] = bytes(len(data))  # a copy was made
    assert library.path == "memory"
    library["add"]((0x1000, "fp16"), 0x2000, 0x3000, 1)


def test_kernels_are_read_when_they_are_asked_for(
    load: Load, archives: Path, tmp_path: Path
) -> None:
    path = tmp_path / "golden.aotc"
    data = (archives / "golden.aotc").read_bytes()
    path.write_bytes(data)
    library = load(path, kernels=["add"])
    names = library.kernels
    path.write_bytes(bytes(len(data)))  # in place, as no writer of archives does it
    library["add"]((0x1000, "fp16"), 0x2000, 0x3000, 1)
    for name in names:
        if name != "add":
            with pytest.raises(ChecksumError, match="not the bytes|damaged"):
                library[name]
    assert library.kernels == names


def test_a_file_that_is_replaced_stays_as_it_was(
    load: Load, archives: Path, tmp_path: Path
) -> None:
    path = tmp_path / "golden.aotc"
    path.write_bytes((archives / "golden.aotc").read_bytes())
    library = load(path, kernels=())
    (tmp_path / "new").write_bytes((archives / "small.aotc").read_bytes())
    (tmp_path / "new").replace(path)
    library.load()
    library["shared"](0x1000)


def _ask_for_all(library: Library, identities: list[list[int]]) -> None:
    identities.append([id(library[name]) for name in library])


def test_threads_may_ask_for_kernels_at_once(load: Load, archives: Path) -> None:
    """One thread decompresses while others wait for it, and needs Python's lock for it."""
    for _ in range(20):
        library = load(archives / "golden.aotc", kernels=())
        identities: list[list[int]] = []
        threads = [
            threading.Thread(target=_ask_for_all, args=(library, identities)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(identities) == 8
        assert all(kernels == identities[0] for kernels in identities)


def test_load_without_a_current_context_retains_device_0(gpu: FakeGpu, archives: Path) -> None:
    gpu.make_current(None)
    library = aotc.load(archives / "small.aotc", driver=gpu.path)
    assert gpu.retained_contexts == 1
    library["add"]((0x1000, "fp16"), 0x2000, 0x3000, 1)
    assert gpu.launches == 1
    library.close()
    assert gpu.retained_contexts == 0


def test_load_on_several_devices(load: Load, gpu: FakeGpu, archives: Path) -> None:
    gpu.reset(HOPPER, AMPERE)
    gpu.make_current(0)
    library = load(archives / "golden.aotc", device=range(2), kernels=["add"])
    for device in (0, 1):
        gpu.make_current(device)
        library["add"]((0x1000, "fp16"), 0x2000, 0x3000, 16)
        assert gpu.last().device == device
    assert gpu.retained_contexts == 2


def test_kernel_without_code_for_a_device(load: Load, gpu: FakeGpu, archives: Path) -> None:
    gpu.reset(AMPERE)
    gpu.make_current(0)
    library = load(archives / "golden.aotc")  # tma is for sm_90a alone: left out
    library["add"]((0x1000, "fp16"), 0x2000, 0x3000, 1)
    with pytest.raises(ArchError, match=r"sm_90a.*8\.0"):
        library["scratch"](0x1000, 1)
    with pytest.raises(ArchError, match="sm_90a"):
        load(archives / "hopper.aotc")


def test_close_unloads_and_refuses(library: Library, gpu: FakeGpu) -> None:
    kernel = library["add"]
    library.close()
    library.close()
    assert library.closed
    assert gpu.live_libraries == 0
    uses: list[Callable[[], object]] = [
        lambda: library["add"],
        lambda: library.kernels,
        library.load,
        lambda: kernel((0x1000, "fp16"), 0x2000, 0x3000, 1),
        lambda: kernel.info,
    ]
    for use in uses:
        with pytest.raises(StateError, match="closed"):
            use()
    assert "closed" in repr(library)
    assert "closed" in repr(kernel)


def test_context_manager_closes(gpu: FakeGpu, archives: Path) -> None:
    with aotc.load(archives / "small.aotc", driver=gpu.path) as library:
        assert "add" in library
    assert library.closed


def test_a_kernel_outlives_the_library_object(gpu: FakeGpu, archives: Path) -> None:
    kernel = aotc.load(archives / "small.aotc", driver=gpu.path)["add"]
    gc.collect()
    kernel((0x1000, "fp16"), 0x2000, 0x3000, 1)
    assert gpu.launches == 1
    del kernel
    assert gpu.live_libraries == 0


# ------------------------------------------------------------------------------------ looking at it


def test_library_is_a_collection_of_kernels(library: Library) -> None:
    names = ("add", "choose", "scratch", "shared", "tma")
    assert library.kernels == names
    assert tuple(library) == names
    assert len(library) == len(names)
    assert "add" in library
    assert "nope" not in library
    assert (library.name, library.version, library.toolchain) == ("golden", "1.2.3", "aotc; ptxas")
    assert library["add"] is library["add"]
    assert repr(library).startswith("<aotc library golden 1.2.3 from ")


def test_unknown_kernel_names_the_nearest(library: Library) -> None:
    with pytest.raises(NotFoundError, match="did you mean 'shared'") as error:
        library["share"]
    assert isinstance(error.value, LookupError)
    assert error.value.kernel == "share"
    with pytest.raises(TypeError, match="a kernel's name, got int"):
        library[0]  # type: ignore[index]


def test_info_of_a_kernel(library: Library) -> None:
    info = library["add"].info
    assert [str(param) for param in info.params] == [
        "x_ptr: *T:16", "y_ptr: *T:16", "out_ptr: *T:16", "n: i32:16?",
    ]  # fmt: skip
    assert [param.access for param in info.params] == ["read", "read", "write", "unknown"]
    assert info.types == {"T": ("fp16", "fp32")}
    assert info.grid_rank == 1
    assert [guard.is_promise for guard in info.guards] == [True, False, False]
    assert info.configs == ({"BLOCK": 1024, "num_warps": 4}, {"BLOCK": 2048, "num_warps": 8})
    assert info.targets == ("sm_80", "sm_90a")
    first = info.variants[0]
    assert (first.target, first.types, first.num_threads) == ("sm_80", {"T": "fp16"}, 128)
    assert first.guards == ("x_ptr is a multiple of 16", "n is a multiple of 16")
    assert first.config == info.configs[0]
    assert len(info.variants) == 16


def test_info_of_choices_and_constants(library: Library) -> None:
    info = library["choose"].info
    assert info.choices == {
        "CAUSAL": (True, False), "MODE": ("fast", "exact", None, 3, 0.5), "ONLY": (7,),
    }  # fmt: skip
    assert info.constants == {
        "BLOCK": 4096, "NAME": "x", "SCALE": 0.25, "FLAG": True, "NOTHING": None,
    }  # fmt: skip
    assert info.variants[6].choices == {"CAUSAL": False, "MODE": "exact", "ONLY": 7}
    assert info.variants[0].remarks == ("one", "two")
    tma = library["tma"].info.variants[1]
    assert (tma.cluster, tma.waits_pdl, tma.dynamic_shared_bytes) == ((2, 1, 1), True, 102400)


def test_a_launch_of_blocks_that_loop_has_as_many_as_run_at_a_time(
    load: Load, archives: Path, gpu: FakeGpu
) -> None:
    """The fake GPU has 5 multiprocessors for 2 blocks each."""
    kernel = load(archives / "looped.aotc")["looped"]
    assert kernel.info.variants[0].is_persistent
    for grid, num_ctas in (((1,), 1), ((3, 2), 6), ((2, 3, 5), 10)):
        programs = (*grid, 1, 1)[:3]
        options = {"grid": grid, "config": {"CONFIG": 0}}
        scratch = (0x1000, 16 * math.prod(grid))
        pointer = Pointer(0x100, "fp32")
        chosen = kernel.select((pointer,), **options)
        kernel.launch((pointer,), scratch=scratch, **options)
        assert gpu.last().grid == chosen.grid == (num_ctas, 1, 1)
        assert gpu.last().unpack("8x3I") == (programs[2], programs[0], programs[1])


def test_a_launch_of_programs_that_wait_for_each_other_is_cooperative(
    load: Load, archives: Path, gpu: FakeGpu
) -> None:
    kernel = load(archives / "together.aotc")["together"]
    assert kernel.info.variants[0].cooperative
    pointer, config = Pointer(0x100, "fp32"), {"CONFIG": 0}
    kernel.launch((pointer,), grid=(2, 5), config=config)
    assert gpu.last().is_cooperative
    with pytest.raises(ArgumentError, match="at most 10 programs, which wait for each other"):
        kernel.launch((pointer,), grid=(11,), config=config)


def test_repr_is_the_signature(library: Library) -> None:
    assert repr(library["add"]) == (
        "<aotc kernel add(x_ptr: *T:16, y_ptr: *T:16, out_ptr: *T:16, n: i32:16?) "
        "where T in fp16, fp32; 16 variants for sm_80, sm_90a>"
    )
    assert "CAUSAL=True|False" in repr(library["choose"])


# ------------------------------------------------------------------------------------------ refusals


def test_missing_file_is_an_os_error(load: Load, tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="nothing.aotc.*No such file") as error:
        load(tmp_path / "nothing.aotc")
    assert isinstance(error.value, OSError)
    assert (error.value.errno, error.value.status) == (2, "IO")


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda data: b"", FormatError),
        (lambda data: b"PK" + data[2:], FormatError),
        (lambda data: data[:-1], FormatError),
        (lambda data: data + b"\0", FormatError),
        (lambda data: data[:8] + b"\1" + data[9:], VersionError),
        (lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:], ChecksumError),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), ChecksumError),
    ],
)
def test_damaged_archive(
    load: Load, archives: Path, damage: Callable[[bytes], bytes], error: type[AotcError]
) -> None:
    data = damage((archives / "small.aotc").read_bytes())
    with pytest.raises(error, match="memory"):
        load(data)


def test_verify_checks_blobs_that_nobody_loads(
    gpu: FakeGpu, archives: Path, tmp_path: Path
) -> None:
    data = bytearray((archives / "golden.aotc").read_bytes())
    data[-1] ^= 1
    path = tmp_path / "flipped.aotc"
    path.write_bytes(data)
    aotc.load(path, kernels=["add"], driver=gpu.path).close()
    with pytest.raises(ChecksumError):
        aotc.load(path, kernels=["add"], driver=gpu.path, verify=True)


def test_missing_driver_says_what_to_do(archives: Path) -> None:
    with pytest.raises(DriverError, match="install the NVIDIA driver"):
        aotc.load(archives / "small.aotc", driver="/nowhere/libcuda.so.1")


@pytest.mark.parametrize("device", [1, 7, -1, 1 << 40, 1 << 70, "cuda:0", 0.5, [0, "x"]])
def test_unknown_device(load: Load, archives: Path, device: object) -> None:
    with pytest.raises(ArgumentError, match="device"):
        load(archives / "small.aotc", device=device)


def test_a_driver_error_keeps_its_number(gpu: FakeGpu, archives: Path) -> None:
    gpu.fail("cuLibraryLoadData", 2)
    with pytest.raises(CudaError, match="free GPU memory") as error:
        aotc.load(archives / "small.aotc", driver=gpu.path)
    assert error.value.cuda == 2
    assert gpu.live_libraries == gpu.retained_contexts == 0


def test_a_launch_in_a_capture_that_forbids_it(library: Library, gpu: FakeGpu) -> None:
    gpu.fail("cuLaunchKernelEx", 900)
    with pytest.raises(CaptureError, match="capture"):
        library["shared"](0x1000)


def test_undecodable_blob_keeps_the_cause(
    gpu: FakeGpu, archives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zstandard

    def broken(frame: object, size: int) -> bytes:
        raise zstandard.ZstdError(f"broken at {size}")

    monkeypatch.setattr(zstandard, "decompress", broken)
    with pytest.raises(FormatError, match="cannot be decoded") as error:
        aotc.load(archives / "small.aotc", driver=gpu.path)
    assert isinstance(error.value.__cause__, zstandard.ZstdError)
    monkeypatch.setattr(zstandard, "decompress", lambda frame, size: b"short")
    with pytest.raises(FormatError, match="cannot be decoded"):
        aotc.load(archives / "small.aotc", driver=gpu.path)


def test_interrupt_while_loading_goes_through(
    gpu: FakeGpu, archives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zstandard

    def interrupted(frame: object, size: int) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(zstandard, "decompress", interrupted)
    with pytest.raises(KeyboardInterrupt):
        aotc.load(archives / "small.aotc", driver=gpu.path)


def test_missing_zstandard_says_what_to_install(
    archives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UnsupportedError, match="pip install zstandard"):
        aotc.load(archives / "small.aotc")


def test_every_status_of_the_c_library_has_a_class() -> None:
    header = (ROOT / "runtime_c/include/aotc/aotc.h").read_text()
    statuses = re.findall(r"^ +AOTC_ERROR_(\w+) = (\d+)", header, re.MULTILINE)
    numbers = {int(number): name for name, number in statuses}
    classes = error_module._BY_NUMBER
    assert len(numbers) == 16
    assert {number: kind.status for number, kind in classes.items()} == numbers
    for kind in classes.values():
        assert kind.__name__ in aotc.runtime.__all__
        assert issubclass(kind, AotcError)


# ------------------------------------------------------------------------ processes, threads, memory


def test_threads_share_a_library(library: Library, gpu: FakeGpu) -> None:
    """64 threads launch; each without a context of its own, as worker threads come."""
    failures: list[BaseException] = []
    kernel = library["add"]

    def work(index: int) -> None:
        try:
            for n in range(200):
                kernel((16 * index, "fp16"), 0x2000, 0x3000, n + 1)
                library["shared"](0x1000)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert gpu.launches == 64 * 400


def test_loads_in_threads_do_not_block_each_other(load: Load, archives: Path) -> None:
    """A load waiting for another one must not hold Python's lock: the other's decompressor needs
    it.
    """
    library = load(archives / "golden.aotc", kernels=["shared"])
    threads = [threading.Thread(target=library.load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    library["add"]((0x1000, "fp16"), 0x2000, 0x3000, 1)


_FORK = """
import os, sys
import aotc
from aotc.runtime import ForkedError
library = aotc.load(sys.argv[1], driver=sys.argv[2])
child = os.fork()
if child == 0:
    try:
        library["shared"](0x1000)
    except ForkedError as error:
        library.close()
        os._exit(0 if "spawn" in str(error) else 4)
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
library["shared"](0x1000)
"""


def test_a_forked_child_is_refused(driver: FakeGpu, archives: Path) -> None:
    command = [sys.executable, "-c", _FORK, str(archives / "golden.aotc"), str(driver.path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")


_IMPORT = """
import sys
import aotc.runtime
wanted = {"aotc", "aotc.runtime", "aotc.runtime._native", "aotc.runtime.errors",
          "aotc.runtime.library"}
loaded = {name for name in sys.modules if name.split(".")[0] == "aotc"}
assert loaded == wanted, loaded
heavy = {"numpy", "llvmlite", "torch", "zstandard", "ctypes", "dataclasses", "inspect", "click"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def test_import_is_light() -> None:
    subprocess.run([sys.executable, "-c", _IMPORT], check=True, timeout=60, cwd=ROOT)


def test_loading_and_dropping_leaks_nothing(gpu: FakeGpu, archives: Path) -> None:
    import tracemalloc

    data = (archives / "small.aotc").read_bytes()

    def cycle() -> None:
        library = aotc.load(data, driver=gpu.path)
        library["add"]((0x1000, "fp16"), 0x2000, 0x3000, 1)
        repr(library["add"])
        with pytest.raises(NotFoundError):
            library["nope"]

    cycle()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(2):
            cycle()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            cycle()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 20 * 200
    finally:
        tracemalloc.stop()
    assert gpu.live_libraries == gpu.retained_contexts == 0
