"""The caller's code in the middle of a launch: objects that it drops must not be used.

`__index__`, `__bool__`, `__eq__`, `__getattr__`, properties, finalizers and destructors run
while an argument is read. Each of these changes or frees an object in use by the extension.
Without a sanitizer most of them read freed memory and get away with it, so `test_sanitized.py`
runs this file under one.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import zstandard

from aotc.runtime import AotcError, ArgumentError, Kernel, Library, StateError
from aotc.runtime._native import Archive
from tests.runtime.conftest import Load
from tests.support.fake_gpu import FakeGpu
from tests.support.gpu_arrays import CudaArray, TorchTensor, torch

BUFFER = 0x7F00_0000_1000


class Trap:
    """A number with a callback when its value is read."""

    def __init__(self, value: int, act: Callable[[], object]) -> None:
        self.value = value
        self.act = act

    def __index__(self) -> int:
        self.act()
        return self.value

    def __bool__(self) -> bool:
        self.act()
        return bool(self.value)


class Name(str):
    """A word unequal to every other word in a dictionary."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


@pytest.fixture
def scale(load: Load, archives: Any) -> Kernel:
    return load(archives / "loader.aotc")["scale"]


@pytest.fixture
def shape(load: Load, archives: Any) -> Kernel:
    return load(archives / "loader.aotc")["shape"]


def _fresh(text: str) -> str:
    """Return a string with no other reference."""
    return "".join(list(text))


def _tuple(*items: object) -> tuple[object, ...]:
    """Return a tuple with no other reference."""
    return items


def _reuse() -> list[bytes]:
    """Take freshly freed memory, so that stale reads see other data."""
    return [bytes([65]) * size for size in range(1, 200) for _ in range(4)]


# ---------------------------------------------------------------------- __cuda_array_interface__


def test_read_only_flag_takes_the_type_string_away(scale: Kernel, gpu: FakeGpu) -> None:
    def act() -> None:
        array.interface["typestr"] = None
        array.interface["data"] = None
        _reuse()

    array = CudaArray(BUFFER)
    array.interface["typestr"] = _fresh("<f4")
    array.interface["data"] = (BUFFER, Trap(0, act))
    scale(array, (BUFFER, "fp32"), 1.0, 1)
    assert gpu.last().symbol == "scale_fp32"


@pytest.mark.parametrize("entry", ["shape", "strides"])
def test_an_extent_takes_the_shape_away(
    load: Load, archives: Any, gpu: FakeGpu, entry: str
) -> None:
    def act() -> None:
        array.interface["shape"] = array.interface["strides"] = None
        _reuse()

    library = load(archives / "loader.aotc")
    array = CudaArray(BUFFER, "<f4", (4, 4))
    array.interface["shape"] = _tuple(4, 4)
    array.interface["strides"] = _tuple(16, 4)
    array.interface[entry] = (Trap(16, act), Trap(4, lambda: None))
    assert len(library.tensor_map(array, (4, 4))) == 128
    assert gpu.calls("cuTensorMapEncodeTiled") == 1


def test_a_key_takes_the_entries_away(load: Load, archives: Any) -> None:
    """Looking a word up compares it with keys of the same hash: this runs the caller's code."""
    library = load(archives / "loader.aotc")

    class Key:
        def __init__(self, word: str) -> None:
            self.hash = hash(word)

        def __hash__(self) -> int:
            return self.hash

        def __eq__(self, other: object) -> bool:
            if array.asked:  # not while the dictionary is made
                for entry in {"data", "shape", "typestr"} - {word}:
                    array.interface[entry] = None
                _reuse()
            return False

    for word in ("typestr", "strides", "stream"):
        array = CudaArray(BUFFER)
        array.interface = {Key(word): 0, "data": (BUFFER, False)}  # type: ignore[dict-item]
        array.interface.update(typestr=_fresh("<f4"), shape=_tuple(4, 4), strides=_tuple(16, 4))
        array.interface["stream"] = None
        if word == "strides":
            assert len(library.tensor_map(array, (4, 4))) == 128
        else:
            library["scale"](array, (BUFFER, "fp32"), 1.0, 1)


# ------------------------------------------------------------------------------- blocks of maps


def test_an_extent_empties_the_block(library: Library, gpu: FakeGpu) -> None:
    block: list[object] = []

    def act() -> None:
        block.clear()
        block.extend(_reuse())
        block.clear()

    block += [Trap(4, act), Trap(64, act)]
    array = CudaArray(BUFFER, "<f2", (64, 64))
    assert len(library.tensor_map(array, block)) == 128  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------- types


def test_a_type_goes_while_it_is_classified(scale: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object may change its class, and so drop the type in use."""

    class Other:
        pass

    class Changing(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            holder.array.__class__ = Other
            gc.collect()
            _reuse()
            return getattr(torch, name)

    monkeypatch.setitem(sys.modules, "torch", Changing("torch"))
    holder = SimpleNamespace()
    for _ in range(3):
        kind = type("Array", (), {})
        reference = weakref.ref(kind)
        holder.array = kind()
        del kind
        with pytest.raises(ArgumentError):
            scale(holder.array, 1, 1.0, 1)
        assert reference() is None or reference().__name__ == "Array"  # type: ignore[union-attr]


def test_types_push_each_other_out(load: Load, archives: Any, gpu: FakeGpu) -> None:
    """A type evicted from the table runs code to fill the table."""
    library = load(archives / "loader.aotc")
    kernel = library["scale"]

    def launch_with_new_type(depth: int) -> None:
        if library.closed:
            return
        kind = type("Array", (CudaArray,), {})
        if depth:
            weakref.finalize(kind, launch_with_new_type, depth - 1).atexit = False
        kernel(kind(BUFFER), (BUFFER, "fp32"), 1.0, 1)
        assert gpu.last().symbol == "scale_fp32"

    for _ in range(300):
        launch_with_new_type(2)
        gc.collect(0)
    gc.collect()


# ----------------------------------------------------------------------------------------- torch


def test_torch_goes_while_it_is_asked(
    scale: Kernel, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Leaving(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name == "Tensor":
                sys.modules.pop("torch", None)
                _reuse()
            return getattr(torch, name)

    monkeypatch.setitem(sys.modules, "torch", Leaving("torch"))
    with suppress(AotcError):
        scale(TorchTensor(BUFFER, "float32"), (BUFFER, "fp32"), 1.0, 1)
    assert gpu.launches in (0, 1)


def test_a_torch_without_methods_is_none(load: Load, archives: Any, gpu: FakeGpu) -> None:
    """A missing attribute is missing the second time, too."""
    run_alone(
        """
        class Tensor: pass
        torch = ModuleType("torch"); torch.Tensor = Tensor
        sys.modules["torch"] = torch
        scale = aotc.load(archive, driver=driver)["scale"]
        for _ in range(3):
            for kind in (Tensor, type("Other", (Tensor,), {})):
                try: scale(kind(), 1, 1.0, 1)
                except aotc.runtime.ArgumentError: pass
                else: raise AssertionError("launched")
        """,
        archives,
        gpu,
    )


def test_torch_is_opened_within_its_opening(archives: Any, gpu: FakeGpu) -> None:
    run_alone(
        """
        from tests.support import gpu_arrays
        depth = 0
        class Nested(ModuleType):
            def __getattribute__(self, name):
                global depth
                if name.startswith("float") and depth < 3:
                    depth += 1
                    try: scale(type("T", (gpu_arrays.TorchTensor,), {})(4096, "float32"), (1, "fp32"), 1.0, 1)
                    finally: depth -= 1
                return getattr(gpu_arrays.torch, name)
        sys.modules["torch"] = Nested("torch")
        scale = aotc.load(archive, driver=driver)["scale"]
        for _ in range(3):
            scale(gpu_arrays.TorchTensor(4096, "float32"), (4096, "fp32"), 1.0, 1)
        """,
        archives,
        gpu,
    )


def run_alone(code: str, archives: Any, gpu: FakeGpu) -> None:
    """Run code in a process of its own: knowledge of torch lasts as long as the module."""
    head = "\n".join([
        "import os, sys",
        "if 'AOTC_SANITIZED' in os.environ: import tests.support.sanitized",
        "from types import ModuleType",
        "import aotc, aotc.runtime",
        f"archive, driver = {str(archives / 'loader.aotc')!r}, {str(gpu.path)!r}",
    ])  # fmt: skip
    process = subprocess.run(
        [sys.executable, "-c", head + "\n" + textwrap.dedent(code)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-6000:]


# ----------------------------------------------------------------------- repeated words


@pytest.mark.parametrize("count", [2, 33, 1000])
def test_a_choice_comes_more_than_once(library: Library, count: int) -> None:
    choose = library["choose"]
    args = [0] * 9 + [0.0] * 6
    with pytest.raises(ArgumentError, match="MODE"):
        choose(*args, **{Name("MODE"): "fast" for _ in range(count)}, CAUSAL=True, grid=1)
    with pytest.raises(ArgumentError, match="MODE"):
        twice: dict[str, Any] = {Name("MODE"): "fast" for _ in range(count)}
        choose.launch(args, choices={**twice, "CAUSAL": True}, grid=1)


@pytest.mark.parametrize("option", ["config", "grid", "stream"])
def test_an_option_comes_more_than_once(library: Library, option: str) -> None:
    value: object = {} if option == "config" else 1
    words: dict[str, Any] = {Name(option): value for _ in range(400)}
    with pytest.raises(ArgumentError, match=option):
        library["add"]((1, "fp16"), 2, 3, 16, **words)


# --------------------------------------------------------------------------------------- closing


def _each_argument(act: Callable[[], object]) -> dict[str, tuple[object, ...]]:
    array = CudaArray(BUFFER)
    array.interface["data"] = (BUFFER, Trap(0, act))
    return {
        "pointer": (Trap(BUFFER, act), (BUFFER, "fp32"), 1.0, 1),
        "array": (array, (BUFFER, "fp32"), 1.0, 1),
        "integer": ((BUFFER, "fp32"), (BUFFER, "fp32"), 1.0, Trap(1, act)),
    }


@pytest.mark.parametrize("argument", ["pointer", "array", "integer"])
def test_closed_by_an_argument(load: Load, archives: Any, gpu: FakeGpu, argument: str) -> None:
    library = load(archives / "loader.aotc")
    with pytest.raises(StateError, match="closed"):
        library["scale"](*_each_argument(library.close)[argument])
    assert gpu.launches == 0


@pytest.mark.parametrize("option", ["grid", "stream", "config", "choices", "scratch"])
def test_closed_by_an_option(load: Load, archives: Any, gpu: FakeGpu, option: str) -> None:
    library = load(archives / "loader.aotc")
    trap = Trap(1, library.close)
    values: dict[str, Any] = {
        "grid": (trap,), "stream": trap, "config": {"num_warps": trap}, "choices": {"X": trap},
        "scratch": (trap, 1),
    }  # fmt: skip
    with pytest.raises(AotcError):
        library["pick"].launch((), **{option: values[option]})
    assert gpu.launches == 0


def test_closed_by_a_name_or_a_device(load: Load, archives: Any) -> None:
    class Closing(str):
        __slots__ = ()

        def __hash__(self) -> int:
            library.close()
            return str.__hash__(self)

        __eq__ = str.__eq__

    library = load(archives / "loader.aotc")
    with pytest.raises(StateError, match="closed"):
        library[Closing("scale")]
    library = load(archives / "loader.aotc")
    with pytest.raises(StateError, match="closed"):
        library._load(Trap(0, library.close), None)  # type: ignore[arg-type]
    library = load(archives / "loader.aotc")
    with pytest.raises(StateError, match="closed"):
        library.tensor_map(CudaArray(BUFFER, "<f4", (4, 4)), [Trap(4, library.close), 4])


class Finalizer:
    """Does something once, when the collector finds it in a cycle."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act
        self.cycle = self

    def __del__(self) -> None:
        self.act()


@pytest.mark.parametrize("question", ["info", "repr", "names", "identity", "item"])
def test_closed_by_the_collector(load: Load, archives: Any, question: str) -> None:
    """Making any tuple may start a collection, and a finalizer may close the library."""
    threshold = gc.get_threshold()
    try:
        for delay in range(1, 60, 1 if question == "info" else 3):
            gc.set_threshold(100_000)
            gc.collect(1)  # an earlier round's objects are young; pytest's are not
            library = load(archives / "loader.aotc", kernels=["pick"])
            kernel = library["pick"]
            _ = kernel.info
            ask = {
                "info": lambda kernel=kernel: kernel.info,
                "repr": lambda kernel=kernel: repr(kernel),
                "names": library._names,
                "identity": library._identity,
                "item": lambda library=library: library["scale"],
            }[question]
            Finalizer(library.close)
            gc.set_threshold(gc.get_count()[0] + delay)
            try:
                ask()
            except StateError:
                assert library.closed
            gc.set_threshold(100_000)
            library.close()
    finally:
        gc.set_threshold(*threshold)


def test_closed_while_info_is_imported(load: Load, archives: Any, gpu: FakeGpu) -> None:
    run_alone(
        """
        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "aotc.runtime.info":
                    library.close()
        sys.modules.pop("aotc.runtime.info", None)
        sys.meta_path.insert(0, Finder())
        library = aotc.load(archive, driver=driver)
        try: library["scale"].info
        except aotc.runtime.StateError: pass
        """,
        archives,
        gpu,
    )


def test_a_frame_outlives_its_decompression(gpu: FakeGpu, archives: Any) -> None:
    """The decompressor's frames may be kept, and read after the library is gone."""
    frames: list[bytes | memoryview] = []

    def decompress(frame: bytes | memoryview, size_bytes: int) -> bytes:
        frames.append(frame)
        return zstandard.decompress(frame, size_bytes)

    archive = Archive((archives / "loader.aotc").read_bytes(), decompress, False, str(gpu.path))
    archive._load(0, "scale")
    archive.close()
    del archive
    _reuse()
    assert len(frames) == 2, "the index of a kernel is one, its variants are in another"
    assert all(bytes(frame[:4]) == b"\x28\xb5\x2f\xfd" for frame in frames)
