"""Launches keep none of their arguments alive.

`test_sanitized.py` runs this file under sanitizers.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from typing_extensions import Self

from aotc.runtime import ArgumentError, Kernel, NotFoundError
from aotc.runtime._native import Chain, Launcher
from aotc.triton.tuning import _quick_key  # pyright: ignore[reportPrivateUsage]
from tests.support.fake_gpu import FakeGpu
from tests.support.gpu_arrays import Content, CudaArray, DLPackArray, ExchangeArray, TorchTensor

X, OUT, STEP = 0x7F00_0000_0000, 0x7F80_0000_0000, 0x0100_0010
NAMES = ("x", "n", "out", "alpha", "bias", "BLOCK")
MANY = 100_000

Call = Callable[[int], None]


class Scale(Launcher):
    """Launches of `scale(x, n, out, alpha, bias, BLOCK)`, with kernels for some fixed values."""

    num_asked = 0
    kernel: Kernel

    def __new__(cls, kernel: Kernel, fixed: dict[str, Any] | None = None) -> Self:
        refusals = (ArgumentError, NotFoundError)
        defaults = (None, None, None, 2.0, None, 64)
        constants = frozenset({"BLOCK"})
        self = super().__new__(cls, NAMES, defaults, constants, fixed or {}, (), [], refusals)
        self.kernel = kernel
        return self

    def _find(self, _bound: dict[str, Any], _options: dict[str, Any]) -> Any:
        self.num_asked += 1
        candidate = (self.kernel, (0, 2, 3, 1), {}, {})
        return (candidate, candidate), (0, 1, 2, 3)

    def _find_again(self, error: Exception, _bound: object, _options: object) -> Any:
        raise error

    _refuse = _find_again


class _Arrays:
    """Makes arrays at ever other addresses, and tracks the live ones."""

    def __init__(self, kind: Callable[..., Any]) -> None:
        self._kind, self.alive = kind, weakref.WeakSet[Any]()

    def __call__(self, base: int, i: int) -> Any:
        address = base + i % 4096 * STEP
        array = self._kind(Content(address) if self._kind is DLPackArray else address)
        self.alive.add(array)
        return array


KINDS = [CudaArray, ExchangeArray, DLPackArray, TorchTensor]
FIXED: list[dict[str, Any]] = [
    {},
    {"bias": (None,)},
    {"x": (None,), "out": (None,), "alpha": (None, 1.0), "bias": (None,), "n": (None, 1)},
]


def _flat(call: Call, arrays: _Arrays, count: int) -> None:
    """Call often, and check for leaks of arrays and memory."""
    for i in range(8):
        call(i)
    gc.collect()
    before = sys.getallocatedblocks()
    for i in range(count):
        call(i)
    gc.collect()
    assert len(arrays.alive) <= 4
    assert sys.getallocatedblocks() - before < 500


@pytest.mark.parametrize("fixed", FIXED)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("frameworks")
def test_launches_keep_no_tensor(
    scale: Kernel, gpu: FakeGpu, kind: type[Any], fixed: dict[str, Any]
) -> None:
    """The last form once cost 150 us per launch: `bias` is None at times."""
    launcher, arrays = Scale(scale, fixed), _Arrays(kind)

    def call(i: int) -> None:
        bias = arrays(OUT, i) if i % 3 else None
        launcher[1](arrays(X, i), 7, arrays(OUT, i), 2.0, bias)

    _flat(call, arrays, 1000)
    assert gpu.launches == 1008
    assert launcher.num_asked == 2


def test_a_hundred_thousand_launches_look_up_two_keys(scale: Kernel, gpu: FakeGpu) -> None:
    launcher, arrays = Scale(scale, {"bias": (None,)}), _Arrays(CudaArray)
    x, out = CudaArray(X), CudaArray(OUT)
    gpu.record(on=False)

    def call(i: int) -> None:
        launcher[1](x, 7, out, 2.0, arrays(OUT, i) if i % 1000 else None)

    _flat(call, arrays, MANY)
    assert launcher.num_asked == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("frameworks")
def test_autotuners_keep_no_tensor_of_their_key(
    scale: Kernel, gpu: FakeGpu, kind: type[Any]
) -> None:
    ran: list[int] = []
    chain = Chain(
        Scale(scale),
        (None, (("BLOCK", lambda _passed: 64, None),)),
        SimpleNamespace(best_config=None),
        frozenset({"n", "x", "bias"}),
        lambda *_args, **_words: ran.append(1),
        lambda _args, _words: ("config", {}),
    )
    arrays = _Arrays(kind)

    def call(i: int) -> None:
        chain[(3,)](arrays(X, i), 7 + i % 2, arrays(OUT, i), 2.0, arrays(X, i))

    _flat(call, arrays, 1000)
    assert len(ran) == 2
    assert gpu.launches == 1006


@pytest.mark.parametrize("kind", [CudaArray, DLPackArray, TorchTensor])
def test_what_a_config_is_kept_by_has_no_tensor(kind: type[Any]) -> None:
    names = ["x", "n", "bias"]
    tuner = SimpleNamespace(configs=[1, 2], keys=names, arg_names=names)
    arrays = _Arrays(kind)
    keys = {
        _quick_key(tuner, (arrays(X, i), 7 + i % 2), {"bias": arrays(X, i) if i % 4 < 2 else None})
        for i in range(100)
    }
    assert len(keys) <= 4
    gc.collect()
    assert len(arrays.alive) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("frameworks")
def test_kernels_keep_no_tensor(scale: Kernel, gpu: FakeGpu, kind: type[Any]) -> None:
    arrays = _Arrays(kind)

    def call(i: int) -> None:
        scale(arrays(X, i), arrays(OUT, i), 2.0, 7, grid=1)
        scale.launch((arrays(X, i), arrays(OUT, i), 2.0, 7), grid=1)
        scale.select((arrays(X, i), arrays(OUT, i), 2.0, 7), grid=1)
        with pytest.raises(ArgumentError):
            scale(arrays(X, i), arrays(OUT, i), arrays(OUT, i), 7, grid=1)

    _flat(call, arrays, 300)
    assert gpu.launches == 616
