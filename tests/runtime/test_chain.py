"""Chains: a config chosen earlier, constants of heuristics, and code that runs in between.

`test_sanitized.py` runs this file under sanitizers.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from typing_extensions import Self

from aotc.runtime import ArgumentError, Kernel, NotFoundError
from aotc.runtime._native import Chain, Chained, Jitted, Launcher
from tests.runtime.conftest import Load
from tests.support.fake_gpu import FakeGpu
from tests.support.gpu_arrays import CPU, Content, CudaArray, ExchangeArray

X, OUT, ELSEWHERE = 0x7F00_0000_1000, 0x7F00_0000_2000, 0x7F00_0000_3000
NAMES = ("x", "n", "out", "alpha", "BLOCK")
MISSING = object()


class Scale(Launcher):
    """Launches of `scale(x, n, out, alpha=2.0, BLOCK)`."""

    kernel: Kernel

    def __new__(cls, kernel: Kernel) -> Self:
        defaults = (MISSING, MISSING, MISSING, 2.0, MISSING)
        refusals = (ArgumentError, NotFoundError)
        constants = frozenset({"BLOCK"})
        self = super().__new__(cls, NAMES, defaults, constants, {}, (), [], refusals)
        self.kernel = kernel
        return self

    def _find(self, _bound: dict[str, Any], _options: dict[str, Any]) -> Any:
        return ((self.kernel, (0, 2, 3, 1), {}, {}),), (0, 3)

    def _find_again(self, error: Exception, _bound: object, _options: object) -> Any:
        raise error

    _refuse = _find_again


@pytest.fixture
def scale(load: Load, archives: Any) -> Kernel:
    return load(archives / "loader.aotc")["scale"]


def _chain(
    kernel: Kernel, compute: Callable[[dict[str, Any]], object] | None = None
) -> tuple[Chain, list[tuple[Any, ...]]]:
    """Return a chain of an autotuner, with the key `n`, and a heuristic, and the calls of `run`."""
    ran: list[tuple[Any, ...]] = []
    steps: Any = (None,) if compute is None else (None, (("BLOCK", compute, None),))
    tuner = SimpleNamespace(best_config=None)
    settings = {"BLOCK": 64} if compute is None else {}
    chain = Chain(
        Scale(kernel),
        steps,
        tuner,
        frozenset({"n"}),
        lambda *args, **_words: ran.append(args),
        lambda _args, _words: ("config", settings),
    )
    return chain, ran


def test_a_config_is_asked_for_once_for_each_key_and_dtype(scale: Kernel, gpu: FakeGpu) -> None:
    chain, ran = _chain(scale)
    for _ in range(3):
        for n in (7, 8):
            for dtype in ("fp32", "bf16"):
                chain[(3,)](ExchangeArray(X, dtype), n, ExchangeArray(OUT, dtype))
    assert [args[1] for args in ran] == [7, 7, 8, 8]
    assert gpu.launches == 8


@pytest.mark.parametrize("is_plain", [True, False])
def test_tensors_that_code_changes_are_read_again(
    scale: Kernel, gpu: FakeGpu, is_plain: bool
) -> None:
    x, out = ExchangeArray(X), ExchangeArray(OUT)

    def compute(_passed: dict[str, Any]) -> int:
        x.content = Content(ELSEWHERE)
        return 64

    chain, ran = _chain(scale, None if is_plain else compute)
    for _ in range(3):
        x.content = Content(X)
        chain[(3,)](x, 7, out)
    assert len(ran) == 1
    assert gpu.last().unpack("QQf4xi") == (X if is_plain else ELSEWHERE, OUT, 2.0, 7)


def test_pinned_memory_is_taken_at_every_launch(scale: Kernel, gpu: FakeGpu) -> None:
    class Pinned(ExchangeArray):
        answer = True

        def is_pinned(self) -> bool:
            return self.answer

    x, out = Pinned(X, device=(CPU, 0)), ExchangeArray(OUT)
    chain, ran = _chain(scale)
    for _ in range(3):
        chain[(3,)](x, 7, out)
    assert len(ran) == 1
    assert gpu.last().unpack("QQf4xi") == (X, OUT, 2.0, 7)
    x.answer, launches = False, gpu.launches
    chain[(3,)](x, 7, out)
    assert (len(ran), gpu.launches) == (2, launches)  # the autotuner's turn: the kernel is refused


def test_grids_and_numbers_that_run_code_are_asked_before_tensors(
    scale: Kernel, gpu: FakeGpu
) -> None:
    x, out = ExchangeArray(X), ExchangeArray(OUT)

    class Changing:
        def __init__(self, address: int) -> None:
            self.address = address

        def __index__(self) -> int:
            out.content = Content(self.address)
            return 3

        __float__ = __index__  # type: ignore[assignment]

    chain, _ = _chain(scale)
    for grid in ((Changing(ELSEWHERE),), lambda _meta: (int(Changing(ELSEWHERE)),)):
        for _ in range(2):
            out.content = Content(OUT)
            chain[grid](x, 7, out)
        assert gpu.last().unpack("QQf4xi") == (X, ELSEWHERE, 2.0, 7)


def test_a_heuristic_that_fails_launches_nothing(scale: Kernel, gpu: FakeGpu) -> None:
    chain, _ = _chain(scale, lambda passed: 64 // passed["n"])
    for n in (7, 7):
        chain[(3,)](ExchangeArray(X), n, ExchangeArray(OUT))
    assert gpu.launches == 1
    chain, _ = _chain(scale, lambda passed: passed["missing"])
    chain[(3,)](ExchangeArray(X), 7, ExchangeArray(OUT))
    with pytest.raises(KeyError, match="missing"):
        chain[(3,)](ExchangeArray(X), 7, ExchangeArray(OUT))


# ---- subscripted objects of classes
# ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "attribute"), [(Jitted, "aotc_launcher"), (Chained, "aotc_chain")]
)
def test_objects_of_a_derived_class_keep_what_launches_them(
    base: type, attribute: str, scale: Kernel, gpu: FakeGpu
) -> None:
    lookups: list[str] = []

    class Mixin:
        def __getattr__(self, name: str) -> Any:
            lookups.append(name)
            if name != attribute:
                raise AttributeError(name)
            return Scale(scale)

    class Function(Mixin, base):  # type: ignore[misc]
        pass

    function = Function()
    for rows in (3, 4):
        function[(rows,)](CudaArray(X), 7, CudaArray(OUT), BLOCK=64)
    assert gpu.last().grid == (4, 1, 1)
    assert lookups.count(attribute) == 1
    function.name = "scale"
    twin = copy.copy(function)
    twin[(5,)](CudaArray(X), 7, CudaArray(OUT), BLOCK=64)
    assert (gpu.last().grid, twin.name) == ((5, 1, 1), "scale")
    assert lookups.count(attribute) == 2
    function.itself = function
    reference = weakref.ref(function)
    del function
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("base", [Jitted, Chained])
def test_an_object_without_a_launcher_says_so(base: type) -> None:
    derived = type("Function", (base,), {})
    with pytest.raises(AttributeError, match="aotc_"):
        derived()[(1,)]
    derived = type("Function", (base,), {"aotc_launcher": 1, "aotc_chain": 1})
    with pytest.raises(TypeError, match="not subscriptable"):
        derived()[(1,)]
