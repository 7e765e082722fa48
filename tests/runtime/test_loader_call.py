"""Calling a kernel: words, numbers, choices, configs, grids, streams, and the errors of each."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aotc
from aotc.runtime import ArgumentError, Kernel, Library, NotFoundError
from aotc.runtime.info import Value
from tests.runtime.conftest import PICK_CONFIGS, Load
from tests.support.fake_gpu import AMPERE, HOPPER, FakeGpu

X, Y, OUT = (0x1000, "fp16"), 0x2000, 0x3000

_ZEROS = {
    "a_i1": 0, "a_i8": 0, "a_i16": 0, "a_i32": 0, "a_i64": 0, "a_u8": 0, "a_u16": 0, "a_u32": 0,
    "a_u64": 0, "a_fp16": 0.0, "a_bf16": 0.0, "a_fp32": 0.0, "a_fp64": 0.0, "a_fp8e4nv": 0.0,
    "a_fp8e5": 0.0,
}  # fmt: skip


@pytest.fixture
def add(library: Library) -> Kernel:
    return library["add"]


@pytest.fixture
def picked(load: Load, archives: Path, gpu: FakeGpu) -> Callable[[Mapping[str, Value]], int]:
    """Launch `pick` with a config and return its number."""
    pick = load(archives / "loader.aotc", kernels=["pick"])["pick"]

    def launch(config: Mapping[str, Value]) -> int:
        pick.launch((), config=config)
        return gpu.last().grid[0] - 1

    return launch


@pytest.fixture
def scalars(library: Library, gpu: FakeGpu) -> Callable[..., dict[str, object]]:
    """Launch `choose` with some scalars and return the driver's parameters."""

    def launch(**given: object) -> dict[str, object]:
        library["choose"](**{**_ZEROS, **given}, CAUSAL=True, MODE="fast", grid=1)
        names = [name.removeprefix("a_") for name in _ZEROS]
        return dict(zip(names, gpu.last().unpack(_params_layout()), strict=True))

    return launch


def _params_layout() -> str:
    """Return the `struct` layout of `choose`: each argument aligned to its size."""
    layout, end = "", 0
    for code, size in zip("BbhiqBHIQHHfdBB", (1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 1, 1),
                          strict=True):  # fmt: skip
        gap = -end % size
        layout += f"{gap}x" * bool(gap) + code
        end += gap + size
    return layout


# ----------------------------------------------------------------------------------------- binding


def test_by_position_and_by_name(add: Kernel, gpu: FakeGpu) -> None:
    calls: list[Callable[[], None]] = [
        lambda: add(X, Y, OUT, 1030),
        lambda: add(X, Y, n=1030, out_ptr=OUT),
        lambda: add(n=1030, out_ptr=OUT, y_ptr=Y, x_ptr=X),
        lambda: add.launch((X, Y, OUT, 1030)),
        lambda: add.launch([X, Y, OUT, 1030]),
        lambda: add.launch({"n": 1030, "out_ptr": OUT, "y_ptr": Y, "x_ptr": X}),
    ]
    for number, call in enumerate(calls, 1):
        call()
        assert gpu.launches == number
        assert gpu.last().symbol == "add_fp16_0"
        assert gpu.last().grid == (2, 1, 1)
        assert gpu.last().unpack("QQQi") == (0x1000, 0x2000, 0x3000, 1030)


def test_names_that_are_not_interned(add: Kernel, gpu: FakeGpu) -> None:
    name = "x_ptr_".removesuffix("_")
    assert name is not sys.intern("x_ptr")
    add(**{name: X}, y_ptr=Y, out_ptr=OUT, n=16)
    assert gpu.last().unpack("QQQi")[0] == 0x1000


@pytest.mark.parametrize(
    ("args", "words", "message"),
    [
        ((), {}, r"expected 4 \(x_ptr, y_ptr, out_ptr, n\), got 0"),
        ((X, Y, OUT), {}, r"expected 4 \(x_ptr, y_ptr, out_ptr, n\), got 3"),
        ((X, Y, OUT, 1, 2), {}, "got 5"),
        ((X,), {"n": 1, "out_ptr": OUT}, "argument 'y_ptr': expected a value, got none"),
        ((X, Y, OUT, 1), {"n": 1}, "argument 'n': expected one value, got two"),
        ((X, Y, OUT), {"m": 1}, r"keyword: expected an argument \(x_ptr.*stream.*got 'm'"),
        ((X, Y, OUT, 1), {"CAUSAL": True}, "keyword: .*got 'CAUSAL'"),
    ],
)
def test_wrong_words(
    add: Kernel, gpu: FakeGpu, args: tuple[object, ...], words: dict[str, object], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message) as error:
        add(*args, **words)
    assert error.value.kernel == "add"
    assert isinstance(error.value, TypeError)
    assert isinstance(error.value, ValueError)
    assert gpu.launches == 0


@pytest.mark.parametrize("args", [7, "abcd", None, {1: 2}, {"x": 1}])
def test_wrong_collections(add: Kernel, args: object) -> None:
    with pytest.raises(ArgumentError, match="args|argument"):
        add.launch(args)  # type: ignore[arg-type]


def test_unknown_options_are_type_errors(add: Kernel) -> None:
    with pytest.raises(TypeError, match="blocks"):
        add.launch((X, Y, OUT, 1), blocks=3)  # type: ignore[call-arg]


# ----------------------------------------------------------------------------------------- integers

_BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "u8": 8, "u16": 16, "u32": 32, "u64": 64}


@pytest.mark.parametrize("dtype", _BITS)
def test_integers_at_their_ends(scalars: Callable[..., dict[str, object]], dtype: str) -> None:
    bits = _BITS[dtype]
    low = -(1 << bits - 1) if dtype[0] == "i" else 0
    high = low + (1 << bits) - 1
    for value in (low, low + 1, 0, 1, high - 1, high):
        assert scalars(**{f"a_{dtype}": value})[dtype] == value
    for value in (low - 1, high + 1, 1 << 64, -(1 << 64), 10**30):
        with pytest.raises(
            ArgumentError, match=f"'a_{dtype}': expected an {dtype}, {low} to {high}"
        ):
            scalars(**{f"a_{dtype}": value})


def test_the_highest_u64(scalars: Callable[..., dict[str, object]]) -> None:
    for value in ((1 << 63) - 1, 1 << 63, (1 << 64) - 1):
        assert scalars(a_u64=value)["u64"] == value


@pytest.mark.parametrize(
    "value",
    [True, np.int32(1), np.uint8(1), np.int64(1), SimpleNamespace, "1", 1.0, None, np.float32(1)],
)
def test_what_counts_as_an_integer(
    scalars: Callable[..., dict[str, object]], value: object
) -> None:
    if isinstance(value, int | np.integer):
        assert scalars(a_i16=value, a_u64=value)["i16"] == 1
    else:
        with pytest.raises(ArgumentError, match="expected a number for i16"):
            scalars(a_i16=value)


@pytest.mark.parametrize(
    ("value", "bit"),
    [(True, 1), (False, 0), (1, 1), (0, 0), (np.True_, 1), (np.False_, 0), (np.int8(1), 1)],
)
def test_booleans(scalars: Callable[..., dict[str, object]], value: object, bit: int) -> None:
    assert scalars(a_i1=value)["i1"] == bit


def test_booleans_are_zero_or_one(scalars: Callable[..., dict[str, object]]) -> None:
    with pytest.raises(ArgumentError, match="expected an i1, 0 to 1, got 2"):
        scalars(a_i1=2)


# ------------------------------------------------------------------------------------------ floats

_FORMATS = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp8e4nv": ml_dtypes.float8_e4m3fn,
    "fp8e5": ml_dtypes.float8_e5m2,
}


@lru_cache
def _values(dtype: str) -> npt.NDArray[np.float64]:
    """Return the value of every pattern without the sign: increasing, then infinity, then NaNs."""
    size = np.dtype(_FORMATS[dtype]).itemsize
    patterns = np.arange(0, 1 << 8 * size - 1, dtype=f"u{size}")
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return patterns.view(_FORMATS[dtype]).astype(np.float64)


def _bits(value: float, dtype: str) -> int:
    """Return the pattern nearest to a float64, the even one of two: by search, not by arithmetic.

    (ml_dtypes rounds twice, to float32 and on.)
    """
    values = _values(dtype)
    sign = len(values) if math.copysign(1, value) < 0 else 0
    if math.isinf(value):
        return sign | int(np.flatnonzero(np.isinf(values))[0])
    finite = values[np.isfinite(values)]
    above = min(int(np.searchsorted(finite, abs(value))), len(finite) - 1)
    candidates = [max(above - 1, 0), above]
    distance = [abs(Fraction(float(finite[index])) - Fraction(abs(value))) for index in candidates]
    nearest = [c for c, d in zip(candidates, distance, strict=True) if d == min(distance)]
    return sign | min(nearest, key=lambda pattern: pattern % 2)


@pytest.mark.parametrize("dtype", _FORMATS)
def test_every_value_of_a_narrow_float(
    scalars: Callable[..., dict[str, object]], dtype: str
) -> None:
    """Finite values, midpoints between two, and their neighbours: all of an 8-bit dtype's."""
    values = _values(dtype)
    finite = values[np.isfinite(values)]
    low = np.arange(0, len(finite) - 1, max(1, len(finite) // 200))
    middles = (finite[low] + finite[low + 1]) / 2
    near = np.concatenate(
        [finite[low], middles, np.nextafter(middles, 0), np.nextafter(middles, 1e300)]
    )
    for value in near:
        for signed in (float(value), -float(value)):
            assert scalars(**{f"a_{dtype}": signed})[dtype] == _bits(signed, dtype), signed


@pytest.mark.parametrize(
    ("dtype", "largest", "beyond"),
    [
        ("fp16", 65519.99, 65520.0),
        ("bf16", 3.3961e38, 3.3962e38),
        ("fp8e4nv", 463.9, 465.0),
        ("fp8e5", 61439.9, 61440.0),
        ("fp32", 3.4028235e38, 3.402824e38),
    ],
)
def test_floats_out_of_range(
    scalars: Callable[..., dict[str, object]], dtype: str, largest: float, beyond: float
) -> None:
    scalars(**{f"a_{dtype}": largest})
    for value in (beyond, -beyond, 1e300, 10**400):
        with pytest.raises(ArgumentError, match=f"in the range of {dtype}"):
            scalars(**{f"a_{dtype}": value})


def test_infinities_and_nans(scalars: Callable[..., dict[str, object]]) -> None:
    for dtype in ("fp16", "bf16", "fp8e5"):
        for value in (math.inf, -math.inf):
            assert scalars(**{f"a_{dtype}": value})[dtype] == _bits(value, dtype)
    for dtype, kind in _FORMATS.items():
        size = np.dtype(kind).itemsize
        stored = np.array([scalars(**{f"a_{dtype}": math.nan})[dtype]], f"u{size}")
        assert np.isnan(stored.view(kind).astype(np.float64))[0]
    assert scalars(a_fp32=math.inf)["fp32"] == math.inf
    assert math.isnan(scalars(a_fp64=math.nan)["fp64"])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="in the range of fp8e4nv"):
        scalars(a_fp8e4nv=math.inf)


@pytest.mark.parametrize(
    "value", [0.1, np.float32(0.1), np.float64(0.1), 3, True, np.int64(7), np.float16(0.5)]
)
def test_what_counts_as_a_float(scalars: Callable[..., dict[str, object]], value: float) -> None:
    sent = scalars(a_fp32=value, a_fp64=value)
    assert sent["fp64"] == float(value)
    assert sent["fp32"] == struct.unpack("f", struct.pack("f", float(value)))[0]


@pytest.mark.parametrize("value", ["1", None, 1j, [1.0]])
def test_what_is_no_float(scalars: Callable[..., dict[str, object]], value: object) -> None:
    with pytest.raises(ArgumentError, match="expected a number for fp32, got"):
        scalars(a_fp32=value)


@given(value=st.floats(allow_nan=False))
def test_float64_arrives_as_it_is(driver: FakeGpu, archives: Path, value: float) -> None:
    library = _cached_library(driver, archives)
    library["choose"](**{**_ZEROS, "a_fp64": value}, CAUSAL=True, MODE="fast", grid=1)
    sent = driver.last().unpack(_params_layout())[12]
    assert struct.pack("d", sent) == struct.pack("d", value)


def _cached_library(driver: FakeGpu, archives: Path) -> Library:
    """Return a library on a fresh driver, for the many examples of a property."""
    driver.reset()
    driver.make_current(0)
    return aotc.load(archives / "golden.aotc", driver=driver.path, kernels=["choose"])


def test_a_scalar_may_say_its_dtype(
    scalars: Callable[..., dict[str, object]],
) -> None:
    assert scalars(a_i32=(7, "i32"))["i32"] == 7
    with pytest.raises(ArgumentError, match="'a_i32': expected i32, got i64"):
        scalars(a_i32=(7, "i64"))
    with pytest.raises(ArgumentError, match="expected a dtype, one of i1, i8.*got 'int32'"):
        scalars(a_i32=(7, "int32"))


# ----------------------------------------------------------------- type variables of scalars

_LOADER_SIZES = {"fp16": "H", "bf16": "H", "fp32": "f", "fp64": "d", "i64": "q", "i1": "?"}


@pytest.mark.parametrize(
    ("dtype", "alpha", "sent"),
    [
        ("fp16", 1.5, 0x3E00), ("bf16", 1.5, 0x3FC0), ("fp32", 1.5, 1.5), ("fp64", 1.5, 1.5),
        ("i64", -3, -3), ("i1", True, True),
    ],
)  # fmt: skip
def test_a_scalar_takes_the_dtype_of_the_tensors(
    load: Callable[..., Library],
    archives: Path,
    gpu: FakeGpu,
    dtype: str,
    alpha: float,
    sent: float,
) -> None:
    scale = load(archives / "loader.aotc")["scale"]
    # Whichever pointer says it, before or behind the scalar.
    for args in [
        ((16, dtype), 32, alpha, 5),
        (16, (32, dtype), alpha, 5),
        (16, 32, (alpha, dtype), 5),
    ]:
        scale(*args)
        assert gpu.last().symbol == f"scale_{dtype}"
        assert gpu.last().unpack("QQ" + _LOADER_SIZES[dtype]) == (16, 32, sent)


def test_a_scalar_whose_dtype_nobody_says(load: Callable[..., Library], archives: Path) -> None:
    scale = load(archives / "loader.aotc")["scale"]
    with pytest.raises(ArgumentError, match=r"'alpha'.*no other argument says the dtype"):
        scale(16, 32, 1.0, 5)
    with pytest.raises(ArgumentError, match="expected a number for i64, got float"):
        scale((16, "i64"), 32, 1.5, 5)
    with pytest.raises(ArgumentError, match="'alpha': expected fp16, .*got fp32"):
        scale((16, "fp16"), 32, (1.0, "fp32"), 5)


# --------------------------------------------------------------------- choices, configs, grids


def test_choices_as_words(library: Library, gpu: FakeGpu) -> None:
    choose = library["choose"]
    for causal in (True, False):
        for mode in ("fast", "exact", None, 3):
            choose(**_ZEROS, CAUSAL=causal, MODE=mode, grid=1)
            assert gpu.last().symbol == f"choose_{causal}_{mode}"
            choose.launch(_ZEROS, choices={"MODE": mode, "CAUSAL": causal, "ONLY": 7}, grid=1)
            assert gpu.last().symbol == f"choose_{causal}_{mode}"
    choose(**_ZEROS, CAUSAL=True, MODE=0.5, grid=1)
    assert gpu.last().symbol == "choose_True_0_5"


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"CAUSAL": True}, "choice 'MODE': expected one of .*got nothing"),
        ({"CAUSAL": True, "MODE": "slow"}, "choice 'MODE': expected one of .*got \"slow\""),
        ({"CAUSAL": 1, "MODE": "fast"}, "choice 'CAUSAL': expected one of true, false, got 1"),
        ({"CAUSAL": True, "MODE": [1]}, "choice 'MODE': expected a bool.*got list"),
        (
            {"CAUSAL": True, "MODE": 1 << 70},
            "choice 'MODE': expected a bool, an integer of 64 bits",
        ),
        ({"CAUSAL": True, "MODE": "fast", "OTHER": 1}, "got 'OTHER'"),
    ],
)
def test_wrong_choices(library: Library, choices: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        library["choose"].launch(_ZEROS, choices=choices, grid=1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=message):
        library["choose"](**_ZEROS, **choices, grid=1)


def test_a_choice_that_was_not_built(library: Library) -> None:
    with pytest.raises(NotFoundError, match="build that combination"):
        library["choose"](**_ZEROS, CAUSAL=False, MODE=0.5, grid=1)


def test_config_picks_the_variant(add: Kernel, gpu: FakeGpu) -> None:
    add(X, Y, OUT, 4096)
    assert (gpu.last().grid[0], gpu.last().block[0]) == (4, 128)
    for config in ({"num_warps": 8}, {"BLOCK": 2048}, {"BLOCK": 2048, "num_warps": 8}):
        add.launch((X, Y, OUT, 4096), config=config)
        assert (gpu.last().grid[0], gpu.last().block[0]) == (2, 256)
    add(X, Y, OUT, 4096, config={"num_warps": 8})
    assert gpu.last().block[0] == 256
    with pytest.raises(NotFoundError, match="num_warps = 16"):
        add(X, Y, OUT, 4096, config={"num_warps": 16})
    with pytest.raises(ArgumentError, match="config: expected a dictionary"):
        add(X, Y, OUT, 4096, config=8)
    with pytest.raises(ArgumentError, match="config: expected at most 256"):
        add(X, Y, OUT, 4096, config={str(i): i for i in range(257)})


def test_config_picks_the_first_that_has_all_entries(
    picked: Callable[[Mapping[str, Value]], int],
) -> None:
    names = st.sampled_from(["BLOCK", "MODE", "EVEN", "num_warps", "other"])
    numbers = [*(1 << bit for bit in range(11)), *range(14)]
    values = st.sampled_from([*numbers, "fast", "exact", True, 1.0])

    @given(st.dictionaries(names, values))
    def check(request: dict[str, Value]) -> None:
        exact = {name: (type(value), value) for name, value in request.items()}
        fitting = [
            number
            for number, entries in enumerate(PICK_CONFIGS)
            if exact.items() <= {name: (type(value), value) for name, value in entries}.items()
        ]
        if fitting:
            assert picked(request) == fitting[0]
        else:
            with pytest.raises(NotFoundError, match="config: expected one that was built"):
                picked(request)

    check()


def test_every_config_of_many_is_found(picked: Callable[[Mapping[str, Value]], int]) -> None:
    for number, entries in enumerate(PICK_CONFIGS):
        first = next(
            index for index, config in enumerate(PICK_CONFIGS) if set(config) >= set(entries)
        )
        assert picked(dict(entries)) == first, number


def test_guards_pick_the_variant(add: Kernel, gpu: FakeGpu) -> None:
    for n, symbol in ((1024, "add_fp16_01"), (1025, "add_fp16_0"), (16, "add_fp16_01")):
        add(X, Y, OUT, n)
        assert gpu.last().symbol == symbol


def test_broken_promise(add: Kernel) -> None:
    with pytest.raises(ArgumentError, match="x_ptr is a multiple of 16"):
        add((0x1008, "fp16"), Y, OUT, 16)


@pytest.mark.parametrize(
    ("grid", "seen"),
    [(5, (5, 1, 1)), ((5,), (5, 1, 1)), ([2, 3], (2, 3, 1)), ((2, 3, 4), (2, 3, 4)),
     (np.int64(6), (6, 1, 1)), (np.array([2, 3]), (2, 3, 1))],
)  # fmt: skip
def test_the_caller_may_give_the_grid(
    add: Kernel, gpu: FakeGpu, grid: object, seen: tuple[int, ...]
) -> None:
    add(X, Y, OUT, 16, grid=grid)
    assert gpu.last().grid == seen
    add.launch((X, Y, OUT, 16), grid=grid)  # type: ignore[arg-type]
    assert gpu.last().grid == seen


@pytest.mark.parametrize("grid", [(), (1, 2, 3, 4), "x", 1.5, (1.5,), object(), 1 << 70])
def test_wrong_grids(add: Kernel, grid: object) -> None:
    with pytest.raises(ArgumentError, match="grid: expected an integer, or 1 to 3"):
        add(X, Y, OUT, 16, grid=grid)


def test_grids_beyond_limits(add: Kernel) -> None:
    with pytest.raises(ArgumentError, match=r"grid\.y"):
        add(X, Y, OUT, 16, grid=(1, 65536))
    with pytest.raises(ArgumentError, match=r"grid\.x"):
        add(X, Y, OUT, 16, grid=-1)


def test_missing_and_empty_grids(library: Library, gpu: FakeGpu) -> None:
    with pytest.raises(ArgumentError, match="no grid: pass one"):
        library["choose"](**_ZEROS, CAUSAL=True, MODE="fast")
    library["add"](X, Y, OUT, 0)
    library["add"](X, Y, OUT, 16, grid=(1, 0))
    assert gpu.launches == 0


def test_pdl(library: Library, gpu: FakeGpu) -> None:
    from tests.support.gpu_arrays import Content, DLPackArray

    a = DLPackArray(Content(0x1000, "bf16", (256, 128)))
    tma = library["tma"]
    tma.launch((a, 0x2000), pdl=True, config={"WAITS": True})
    assert gpu.last().is_pdl
    tma.launch((a, 0x2000), config={"WAITS": True})
    assert not gpu.last().is_pdl
    with pytest.raises(ArgumentError, match="PDL"):
        library["shared"].launch((0x1000,), pdl=True)


def test_scratch(library: Library, gpu: FakeGpu) -> None:
    scratch = library["scratch"]
    chosen = scratch.select((0x1000, 3))
    assert (chosen.scratch_bytes, chosen.scratch_align, chosen.grid) == (72, 128, (3, 2, 1))
    scratch.launch((0x1000, 3), scratch=(0x8000, 72))
    assert gpu.last().unpack("QQqi") == (0x1000, 0x8000, 8, 4)
    for passed, message in [
        ((0x8000, 71), "got 71 bytes"),
        ((0x8001, 72), "aligned to 128"), (5, "a tuple"), ((0x8000, -1), "a tuple"),
    ]:  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            scratch.launch((0x1000, 3), scratch=passed)  # type: ignore[arg-type]


def test_select_launches_nothing(add: Kernel, gpu: FakeGpu) -> None:
    chosen = add.select((X, Y, OUT, 4100), config={"num_warps": 8})
    assert chosen.grid == (3, 1, 1)
    assert chosen.block == (256, 1, 1)
    variant = add.info.variants[chosen.variant]
    assert (variant.target, variant.config["num_warps"]) == ("sm_90a", 8)
    assert chosen.function != 0
    assert gpu.launches == 0


# ----------------------------------------------------------------------------------------- streams


class CudaCoreStream:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)


class EarlyCudaCoreStream:
    def __init__(self, handle: int) -> None:
        self.__cuda_stream__ = (0, handle)


@pytest.mark.parametrize(
    "wrap",
    [
        int,
        np.int64,
        lambda handle: SimpleNamespace(cuda_stream=handle),
        lambda handle: SimpleNamespace(ptr=handle),
        CudaCoreStream,
        EarlyCudaCoreStream,
    ],
)
def test_streams_of_every_kind(add: Kernel, gpu: FakeGpu, wrap: Callable[[int], object]) -> None:
    stream = gpu.stream()
    add(X, Y, OUT, 16, stream=wrap(stream))
    assert gpu.last().stream == stream
    add.launch((X, Y, OUT, 16), stream=wrap(stream))
    assert gpu.last().stream == stream
    add(X, Y, OUT, 16, stream=None)
    assert gpu.last().stream == 0


@pytest.mark.parametrize(
    "stream",
    ["s", object(), -1, 1 << 64, SimpleNamespace(cuda_stream="s"), SimpleNamespace(__cuda_stream__=3),
     SimpleNamespace(__cuda_stream__=lambda: (0, 1, 2))],
)  # fmt: skip
def test_wrong_streams(add: Kernel, stream: object) -> None:
    with pytest.raises(ArgumentError, match="stream: expected a handle, or an object with"):
        add(X, Y, OUT, 16, stream=stream)


def test_stream_that_raises_keeps_the_cause(add: Kernel) -> None:
    class Broken:
        @property
        def cuda_stream(self) -> int:
            raise RuntimeError("lost")

    with pytest.raises(ArgumentError, match="stream") as error:
        add(X, Y, OUT, 16, stream=Broken())
    assert isinstance(error.value.__cause__, RuntimeError)


def test_stream_of_a_device_without_the_library(
    load: Callable[..., Library], gpu: FakeGpu, archives: Path
) -> None:
    gpu.reset(HOPPER, AMPERE)
    gpu.make_current(0)
    add = load(archives / "golden.aotc")["add"]
    with pytest.raises(ArgumentError, match="stream"):
        add(X, Y, OUT, 16, stream=gpu.stream(1))
