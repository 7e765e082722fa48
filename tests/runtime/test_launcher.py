"""The extension's launchers: binding, cache keys, and the caller's code in between.

`aotc.triton` derives launchers with a search for kernels; here the kernels are a list.
`test_sanitized.py` runs this file under sanitizers.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from typing_extensions import Self

from aotc.runtime import ArgumentError, Kernel, NotFoundError
from aotc.runtime._native import GridSubscript, Launcher
from tests.runtime.conftest import Load
from tests.support.fake_gpu import FakeGpu
from tests.support.gpu_arrays import CudaArray, ExchangeArray

X, OUT = 0x7F00_0000_1000, 0x7F00_0000_2000
NAMES = ("x", "n", "out", "alpha", "BLOCK")
MISSING = object()


class Scale(Launcher):
    """Launches of `scale(x, n, out, alpha=2.0, BLOCK)`; calls of `_find` are in `requests`."""

    requests: list[tuple[dict[str, Any], dict[str, Any]]]
    candidates: list[Any]
    telling: tuple[int, ...] = (0, 3)

    def __new__(cls, *kernels: Kernel, hooks: list[Callable[..., object]] | None = None) -> Self:
        self = super().__new__(
            cls,
            NAMES,
            (MISSING, MISSING, MISSING, 2.0, 64),
            frozenset({"BLOCK"}),
            {"alpha": (1.0, 7), "n": (1,)},
            ("num_warps",),
            [] if hooks is None else hooks,
            (ArgumentError, NotFoundError),
        )
        self.requests = []
        self.candidates = [(kernel, (0, 2, 3, 1), {}, {}) for kernel in kernels]
        return self

    def _find(self, bound: dict[str, Any], options: dict[str, Any]) -> Any:
        self.requests.append((bound, options))
        return tuple(self.candidates), self.telling

    def _find_again(self, error: Exception, _bound: object, _options: object) -> Any:
        raise error

    _refuse = _find_again


@pytest.fixture
def scale(load: Load, archives: Any) -> Kernel:
    return load(archives / "loader.aotc")["scale"]


def test_arguments_are_bound_as_python_binds_them(scale: Kernel, gpu: FakeGpu) -> None:
    launcher = Scale(scale)
    x, out = CudaArray(X), CudaArray(OUT)
    launcher[(3, 2)](x, 7, out)
    assert gpu.last().grid == (3, 2, 1)
    assert gpu.last().unpack("QQf4xi") == (X, OUT, 2.0, 7)
    launcher[1](out=out, alpha=3.0, n=8, x=x, num_warps=4)
    assert gpu.last().unpack("QQf4xi") == (X, OUT, 3.0, 8)
    bound, options = launcher.requests[-1]
    assert bound == {"x": x, "n": 8, "out": out, "alpha": 3.0, "BLOCK": 64}
    assert options == {"num_warps": 4}


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "message"),
    [
        ((1, 2, 3, 4, 5, 6), {}, TypeError, "at most 5"),
        ((1,), {"x": 2}, TypeError, "two values for argument 'x'"),
        ((1,), {"warps": 2}, KeyError, "warps was specified but unrecognised"),
    ],
)
def test_what_cannot_be_bound_is_an_error(
    arguments: tuple[int, ...],
    keywords: dict[str, Any],
    error: type[Exception],
    message: str,
    scale: Kernel,
    gpu: FakeGpu,
) -> None:
    with pytest.raises(error, match=message):
        Scale(scale)[1](*arguments, **keywords)
    assert gpu.launches == 0


def test_constants_types_and_options_are_what_a_launch_is_kept_by(scale: Kernel) -> None:
    launcher = Scale(scale)
    x, out = CudaArray(X), CudaArray(OUT)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x, 7, out), {}),
        ((x, 7, out), {"BLOCK": 2 << 20}),
        ((x, 7, out), {"BLOCK": 1}),
        ((x, 7, out), {"BLOCK": True}),
        ((x, 7, out), {"BLOCK": 1.0}),
        ((x, 7, out), {"BLOCK": "a"}),
        ((x, 7, out), {"num_warps": 8}),
        ((ExchangeArray(X, "fp32"), 7, out), {}),
    ]
    for _ in range(2):
        for arguments, keywords in calls:
            launcher[1](*arguments, **keywords)
    assert len(launcher.requests) == len(calls)
    launcher[1](CudaArray(OUT), 9, CudaArray(X), 5.0)  # other values of the same types
    launcher[1](x, 7, out, BLOCK=int("1" + "0" * 9))
    launcher[1](x, 7, out, BLOCK=int("1" + "0" * 9))  # equal, and not the same object
    assert len(launcher.requests) == len(calls) + 1


def test_a_value_that_a_kernel_was_built_for_is_what_a_launch_is_kept_by(scale: Kernel) -> None:
    """Other values of a type are one another's equals; of other types each is on its own."""
    launcher, x, out = Scale(scale), CudaArray(X), CudaArray(OUT)

    class Int(int):
        pass

    cases = [
        (1.0, 1),
        (0.5, 2),
        (7, 3),
        (8, 4),
        (1, 4),
        (9.0, 4),
        (Int(7), 5),
        (Int(8), 6),
        (1.0, 6),
    ]
    for alpha, count in cases:
        launcher[1](x, 16, out, alpha)
        assert len(launcher.requests) == count
    launcher[1](x, 1, out, 1.0)
    launcher[1](x, 2, out, 1.0)
    assert len(launcher.requests) == 7


def test_a_constant_that_may_change_is_not_kept(scale: Kernel) -> None:
    launcher, block = Scale(scale), [64]
    for _ in range(3):
        launcher[1](CudaArray(X), 7, CudaArray(OUT), BLOCK=block)
    assert len(launcher.requests) == 3


def test_a_grid_may_be_a_function_of_what_is_passed(scale: Kernel, gpu: FakeGpu) -> None:
    Scale(scale)[lambda meta: (meta["n"] // meta["BLOCK"],)](CudaArray(X), 256, CudaArray(OUT))
    assert gpu.last().grid == (4, 1, 1)
    with pytest.raises(ZeroDivisionError):
        Scale(scale)[lambda meta: (1 // 0, meta)](CudaArray(X), 256, CudaArray(OUT))


def test_the_first_kernel_that_takes_a_launch_is_kept_for_launches_like_it(
    load: Load, archives: Any, gpu: FakeGpu
) -> None:
    """The first kernel has no such config; if no kernel accepts it, the error is the first one's."""
    loaded = load(archives / "loader.aotc")["scale"]
    other = load(archives / "loader.aotc")["scale"]
    launcher = Scale(other, loaded)
    launcher.candidates[0] = (other, (0, 2, 3, 1), {"num_warps": 99}, {})
    for _ in range(3):
        launcher[1](CudaArray(X), 16, CudaArray(OUT))
        launcher[1](CudaArray(X + 4), 3, CudaArray(OUT))
    assert gpu.launches == 6
    with pytest.raises(ArgumentError, match="argument .n.: expected an i32"):
        launcher[1](CudaArray(X), 1 << 40, CudaArray(OUT))
    assert len(launcher.requests) == 1


def test_hooks_are_called_with_what_a_launch_passes(scale: Kernel, gpu: FakeGpu) -> None:
    seen: list[Any] = []
    hooks: list[Callable[..., object]] = [lambda *args, **kwargs: seen.append((args, kwargs))]
    launcher = Scale(scale, hooks=hooks)
    x, out = CudaArray(X), CudaArray(OUT)
    launcher[1](x, 7, out=out)
    assert seen == [((x, 7), {"out": out})]
    hooks.append(lambda *_, **__: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        launcher[1](x, 7, out=out)
    assert gpu.launches == 1


@pytest.mark.parametrize(
    "candidates",
    [
        [],
        [()],
        [("kernel", (), {}, {})],
        [("scale", (0, 1, 2), {}, {})],
        [("scale", (0, 1, 2, 9), {}, {})],
        [("scale", (0, 1, 2, -1), {}, {})],
        [("scale", (0, 2, 3, 1), {"a": []}, {})],
    ],
)
def test_what_cannot_be_launched_is_an_error(candidates: list[Any], scale: Kernel) -> None:
    launcher = Scale()
    launcher.candidates = [
        tuple(scale if part == "scale" else part for part in candidate) for candidate in candidates
    ]
    with pytest.raises((TypeError, ValueError, ArgumentError, OverflowError)):
        launcher[1](CudaArray(X), 7, CudaArray(OUT))


# ------------------------------------------------------------------------- code of the caller's


def test_a_grid_launches_and_drops_everything(scale: Kernel, gpu: FakeGpu) -> None:
    """The launcher of the launch in the making has let go of its own specialization meanwhile."""
    launches: list[Any] = []

    def grid(meta: dict[str, Any]) -> tuple[int]:
        launches.clear()
        for block in range(5000):
            launcher[1](CudaArray(X), 1, CudaArray(OUT), BLOCK=block)
        gc.collect()
        return (meta["n"],)

    launcher = Scale(scale)
    launches.append(launcher[grid])
    launches[0](CudaArray(X), 7, CudaArray(OUT))
    assert gpu.last().grid == (7, 1, 1)


def test_an_argument_launches_while_it_is_read(scale: Kernel, gpu: FakeGpu) -> None:
    class Number:
        def __index__(self) -> int:
            for block in range(5000):
                launcher[1](CudaArray(X), 1, CudaArray(OUT), BLOCK=block)
            launcher.candidates.clear()
            gc.collect()
            return 7

    launcher = Scale(scale, scale)
    launcher[1](CudaArray(X), Number(), CudaArray(OUT))
    assert gpu.last().unpack("QQf4xi") == (X, OUT, 2.0, 7)


def test_comparing_constants_launches(scale: Kernel, gpu: FakeGpu) -> None:
    class Constant:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            if launcher.telling == (0, 3):
                launcher.telling = (0,)
                for block in range(5000):
                    launcher[1](CudaArray(X), 1, CudaArray(OUT), BLOCK=block)
            return self is other

    launcher = Scale(scale)
    for _ in range(3):
        launcher[1](CudaArray(X), 7, CudaArray(OUT), BLOCK=Constant())
    assert gpu.last().unpack("QQf4xi") == (X, OUT, 2.0, 7)


@pytest.mark.parametrize(
    ("names", "defaults", "fixed"),
    [(("a",), (), {}), (("a", 1), (1, 2), {}), (("a",), (1,), {"a": 1}), ((), (), {})],
)
def test_a_launcher_needs_names_with_defaults(
    names: tuple[Any, ...], defaults: tuple[Any, ...], fixed: dict[str, Any]
) -> None:
    arguments = (names, defaults, frozenset[str](), fixed, (), [], ())
    if not names:
        assert isinstance(Launcher(*arguments), Launcher)
        return
    with pytest.raises((ValueError, TypeError)):
        Launcher(*arguments)


def test_launchers_are_collected(scale: Kernel) -> None:
    launcher = Scale(scale)
    launcher[1](CudaArray(X), 7, CudaArray(OUT), BLOCK="a")
    launcher.requests.append(({"self": launcher[1]}, {}))
    reference = weakref.ref(launcher)
    del launcher
    gc.collect()
    assert reference() is None


# ------------------------------------------------------------------------------- __getitem__


def test_a_class_subscripts_the_launchers_of_its_objects(scale: Kernel, gpu: FakeGpu) -> None:
    class Function:
        __getitem__ = GridSubscript("launcher")

        def __init__(self) -> None:
            self.launcher = Scale(scale)

    function = Function()
    function[(3,)](CudaArray(X), 7, CudaArray(OUT))
    function.__getitem__((4,))(CudaArray(X), 7, CudaArray(OUT))
    assert gpu.last().grid == (4, 1, 1)
    assert gpu.launches == 2
    function.launcher = SimpleNamespace()  # type: ignore[assignment]
    with pytest.raises(TypeError, match="not subscriptable"):
        function[1]
    with pytest.raises(TypeError, match="takes an object and a grid"):
        Function.__getitem__(function)  # type: ignore[call-arg]
