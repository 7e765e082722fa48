"""Arrays with code that raises or lies, and no references kept to arrays."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from aotc.runtime import ArgumentError, Kernel, Library, Pointer
from tests.support.array_makers import BUFFER, MAKERS, Maker, cuda_array, dlpack, torch_tensor
from tests.support.fake_gpu import FakeGpu
from tests.support.gpu_arrays import (
    CUDA,
    Content,
    CudaArray,
    DLPackArray,
    ExchangeArray,
    TorchTensor,
)

Load = Callable[..., Library]

pytestmark = pytest.mark.usefixtures("frameworks")


# -------------------------------------------------------------------------------------- bad arrays


def _raise(error: BaseException) -> object:
    raise error


def _broken(protocol: str, error: BaseException) -> object:
    """Return an array that raises in a protocol's method."""
    members: dict[str, dict[str, object]] = {
        "cuda_array": {"__cuda_array_interface__": property(lambda self: _raise(error))},
        "dlpack": {
            "__dlpack_device__": lambda self: (CUDA, 0),
            "__dlpack__": lambda self, **keywords: _raise(error),
        },
        "dlpack_device": {
            "__dlpack_device__": lambda self: _raise(error),
            "__dlpack__": lambda self, **keywords: None,
        },
    }
    if protocol == "torch":
        return type("Broken", (_BrokenTensor,), {"dtype": property(lambda self: _raise(error))})(1)
    return type("Broken", (), members[protocol])()


class _BrokenTensor(TorchTensor):
    def __init__(self, address: int) -> None:
        self.address = address
        self.device_index = 0


@pytest.mark.parametrize("protocol", ["cuda_array", "dlpack", "dlpack_device", "torch"])
def test_arrays_that_raise(scale: Kernel, protocol: str) -> None:
    cause = BufferError("not now")
    with pytest.raises(ArgumentError, match="'x_ptr': .*raised an exception") as error:
        scale(_broken(protocol, cause), 16, 1.0, 1)
    assert error.value.__cause__ is cause
    with pytest.raises(KeyboardInterrupt):
        scale(_broken(protocol, KeyboardInterrupt()), 16, 1.0, 1)


def test_an_exchange_table_that_fails(scale: Kernel) -> None:
    with pytest.raises(ArgumentError, match="a tensor that DLPack can describe"):
        scale(ExchangeArray(BUFFER, fails=True), 16, 1.0, 1)


@pytest.mark.parametrize(
    "interface",
    [None, 7, {}, {"data": (1, False)}, {"data": 1, "typestr": "<f4"}, {"data": (1,), "typestr": "<f4"},
     {"data": (1, False), "typestr": 4}, {"data": ("1", False), "typestr": "<f4"},
     {"data": (1, False), "typestr": "<f4\0x"}, {"data": (1, False), "typestr": "\ud800"},
     {"data": (-1, False), "typestr": "<f4"}, {"data": (1 << 64, False), "typestr": "<f4"}],
)  # fmt: skip
def test_broken_cuda_array_interfaces(scale: Kernel, interface: object) -> None:
    array = CudaArray(BUFFER)
    array.interface = interface  # type: ignore[assignment]
    with pytest.raises(ArgumentError, match="'x_ptr': expected a pointer to"):
        scale(array, 16, 1.0, 1)


@pytest.mark.parametrize("shape_entry", [None, 3, [3, 5], (3, "5"), (3, 1 << 70)])
def test_broken_shapes(load: Load, archives: Path, shape_entry: object) -> None:
    """The kernel expects bf16, which NumPy cannot name; DLPack's strides are C integers already."""
    shape = load(archives / "loader.aotc")["shape"]
    array = TorchTensor(BUFFER, "bfloat16", (3, 5))
    array.shape = shape_entry  # type: ignore[assignment]
    with pytest.raises(ArgumentError):
        shape(array, grid=1)


@pytest.mark.parametrize("device", [None, (CUDA,), ("a", "b"), [CUDA, 0], 3])
def test_broken_dlpack_devices(scale: Kernel, device: object) -> None:
    array = type("Odd", (), {"__dlpack_device__": lambda self: device, "__dlpack__": None})()
    with pytest.raises(ArgumentError, match="a tensor with a DLPack device"):
        scale(array, 16, 1.0, 1)


def test_broken_capsules(scale: Kernel) -> None:
    odd = type(
        "Odd", (), {"__dlpack_device__": lambda self: (CUDA, 0), "__dlpack__": lambda self, **k: 3}
    )()
    with pytest.raises(ArgumentError, match="expected a DLPack capsule, got int"):
        scale(odd, 16, 1.0, 1)
    with pytest.raises(ArgumentError, match=r"expected DLPack 1\.x, got 2\.3"):
        scale(DLPackArray(Content(BUFFER), major=2), 16, 1.0, 1)
    with pytest.raises(ArgumentError, match="a copy that DLPack made"):
        scale(DLPackArray(Content(BUFFER), flags=2), 16, 1.0, 1)


@pytest.mark.parametrize("make", [ExchangeArray, torch_tensor, cuda_array, dlpack])
def test_tensors_are_no_scalars(scale: Kernel, make: Maker) -> None:
    x = make(BUFFER)
    with pytest.raises(ArgumentError, match=r"'n': expected a number for i32.*x\.item\(\)"):
        scale(x, x, 1.0, x)
    with pytest.raises(ArgumentError, match=r"'alpha': expected a number for fp32.*x\.item\(\)"):
        scale(x, x, x, 1)


# ------------------------------------------------------------------------------------------ memory


@pytest.mark.parametrize("make", [DLPackArray, lambda content: DLPackArray(content, flags=None)])
def test_capsules_are_given_back(scale: Kernel, gpu: FakeGpu, make: Maker) -> None:
    x, out = make(Content(BUFFER)), make(Content(BUFFER))
    scale(x, out, 1.0, 1)
    with pytest.raises(ArgumentError):
        scale(x, out, "one", 1)
    with pytest.raises(ArgumentError):
        scale(x, _broken("dlpack", BufferError()), 1.0, 1)
    assert len(x.streams) >= 2  # type: ignore[attr-defined]
    assert (x.alive, out.alive) == (0, 0)  # type: ignore[attr-defined]


def test_a_hundred_thousand_launches_leak_nothing(scale: Kernel, gpu: FakeGpu) -> None:
    gpu.record(on=False)
    arrays = [make(BUFFER) for make in MAKERS.values()]
    for array in arrays:
        # A type of its own: objects of other tests may still be about, and go while this one runs.
        kind = type(array)
        array.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__})
    stream = SimpleNamespace(cuda_stream=0)
    big = 1 << 29  # no cached integer

    def launch(rounds: int) -> None:
        for _ in range(rounds):
            for array in arrays[3:]:
                array.streams.clear()  # type: ignore[attr-defined]
            for array in arrays:
                scale(array, array, 1.0, big)
            scale(Pointer(BUFFER, "fp32"), BUFFER, alpha=1.0, n=big, stream=stream)
            scale.launch([arrays[0], BUFFER, 1.0, big], grid=(1, 2), config={}, choices={})
            for wrong in (None, "x", np.zeros(1)):
                with suppress(ArgumentError):
                    scale(wrong, BUFFER, 1.0, big)

    try:
        launch(300)
        gc.collect()
        watched = [*arrays, stream, big, scale]
        references = [sys.getrefcount(thing) for thing in watched]
        types = [sys.getrefcount(type(array)) for array in arrays]
        tracemalloc.start()
        launch(100)
        gc.collect()
        growths: list[int] = []
        for _ in range(3):
            before = tracemalloc.get_traced_memory()[0]
            launch(1000)
            for _ in range(100_000):
                scale(arrays[2], BUFFER, 1.0, big)
            gc.collect()
            growths.append(tracemalloc.get_traced_memory()[0] - before)
            # A leak in any kind of launch is 16 bytes or more, a thousand times, in every round;
            # the interpreter's own tables grow only once.
            if growths[-1] < 16_000:
                break
        assert growths[-1] < 16_000, growths
        assert [sys.getrefcount(thing) for thing in watched] == references
        # A type is remembered or not, as the addresses of the others have it: one reference or none.
        growth = [
            sys.getrefcount(type(array)) - count for array, count in zip(arrays, types, strict=True)
        ]
        assert all(-1 <= more <= 1 for more in growth)
    finally:
        tracemalloc.stop()
        gpu.record(on=True)


def test_more_types_than_are_remembered(scale: Kernel, gpu: FakeGpu) -> None:
    for number in range(300):
        kind = type(f"Array{number}", (CudaArray,), {})
        scale(kind(BUFFER + 16 * number, "<f4"), BUFFER, 1.0, 1)
        assert gpu.last().unpack("Q") == (BUFFER + 16 * number,)


def test_closing_while_an_argument_is_asked(load: Load, archives: Path) -> None:
    """An argument's own code may close the library; the launch must notice."""
    library = load(archives / "loader.aotc")

    class Closes(CudaArray):
        @property
        def __cuda_array_interface__(self) -> dict[str, object]:
            library.close()
            return self.interface

    with pytest.raises(Exception, match="closed"):
        library["scale"](Closes(BUFFER), BUFFER, 1.0, 1)


@pytest.mark.parametrize("text", ["fp32\0x", "fp32\0", "\0", "\ud800"])
def test_a_text_with_a_nul_is_not_what_comes_before_it(
    load: Load, archives: Path, gpu: FakeGpu, text: str
) -> None:
    """C takes a NUL for the end of a text; Python does not."""
    library = load(archives / "loader.aotc")
    for x in ((BUFFER, text), (BUFFER, text, (3,), None)):
        with pytest.raises(ArgumentError, match="'x_ptr': expected a "):
            library["scale"](x, (BUFFER, "fp32"), 1.0, 1)
    with pytest.raises(ArgumentError, match="expected a dtype, one of i1, "):
        library["scale"]((BUFFER, "fp32"), (BUFFER, "fp32"), (1.0, text), 1)
    with pytest.raises(ArgumentError, match="a string without NUL"):
        library["pick"].launch((), grid=1, config={text: 4})
    with pytest.raises(ArgumentError, match="a string without NUL"):
        library["pick"].launch((), grid=1, config={"num_warps": text})
    with pytest.raises((ValueError, UnicodeEncodeError)):
        library[f"scale{text}"]
    assert gpu.launches == 0
