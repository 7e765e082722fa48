"""Kernels as operators of PyTorch: schemas, tracers, and the fast path of eager calls.

Kernels here compute on the host, in the launch's place. Without PyTorch only schemas are tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module, util
from typing import Any

import pytest

from aotc.runtime.errors import ArgumentError
from aotc.runtime.info import KernelInfo, ParamInfo
from aotc.torch import Operators, register, schema_of

HAS_TORCH = util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs PyTorch")
torch: Any = import_module("torch") if HAS_TORCH else None


def param(
    name: str, kind: str, element: str, access: str = "unknown", *, may_be_none: bool = False
) -> ParamInfo:
    return ParamInfo(name, kind, element, 0, 1, False, access, may_be_none)


def kernel_info(
    *params: ParamInfo, name: str = "scale", grid_rank: int = 1, **given: Any
) -> KernelInfo:
    types, choices = given.get("types", {}), given.get("choices", {})
    return KernelInfo(name, grid_rank, params, types, choices, {}, (), ({},), ())


SCALE = kernel_info(
    param("x", "pointer", "T", "read"),
    param("bias", "pointer", "T", "read", may_be_none=True),
    param("out", "pointer", "T", "write"),
    param("n", "scalar", "i32"),
    param("factor", "scalar", "fp32"),
    types={"T": ("fp32",)},
    choices={"TWICE": (True, False)},
)


@pytest.mark.parametrize(
    ("info", "schema"),
    [
        (
            SCALE,
            "scale(Tensor x, Tensor? bias, Tensor(a2!) out, SymInt n, float factor, *, bool TWICE) -> ()",
        ),
        (
            kernel_info(
                param("x", "tensor", "bf16", "both"),
                param("p", "pointer", "i8", may_be_none=True),
                param("flag", "scalar", "i1"),
                param("a", "scalar", "F"),
                param("b", "scalar", "M"),
                types={"F": ("fp16", "fp32"), "M": ("i32", "fp32")},
                choices={"MODE": ("a", "b"), "WIDTH": (1, 2)},
                name="k",
                grid_rank=0,
            ),
            (
                "k(Tensor(a0!) x, Tensor(a1!)? p, bool flag, float a, Scalar b, *, SymInt[] grid, "
                "str MODE, int WIDTH) -> ()"
            ),
        ),
        (
            kernel_info(param("grid", "scalar", "u64"), grid_rank=0),
            "scale(SymInt grid, *, SymInt[] launch_grid) -> ()",
        ),
        (kernel_info(), "scale() -> ()"),
    ],
)
def test_schemas(info: KernelInfo, schema: str) -> None:
    assert schema_of(info) == schema


def test_choices_of_several_types_have_no_schema() -> None:
    with pytest.raises(ValueError, match=r"one type for 'C' of kernel 'scale', got 1, 'x'"):
        schema_of(kernel_info(choices={"C": (1, "x")}))


class HostKernel:
    """A kernel stand-in: computes on the host and records its launches."""

    def __init__(self, info: KernelInfo, scratch_bytes: int) -> None:
        self.name, self.info, self.scratch_bytes = info.name, info, scratch_bytes
        self.direct: list[Sequence[Any]] = []
        self.launched: list[Sequence[Any]] = []

    def __call__(self, *args: Any, TWICE: bool) -> None:  # noqa: N803 - a choice's name
        self._run(args, TWICE, None)
        self.direct.append(args)

    def launch(self, args: Sequence[Any], *, grid: Any, choices: Any, scratch: Any = None) -> None:
        assert grid is None
        self._run(args, choices["TWICE"], scratch)
        self.launched.append(args)

    def select(self, args: Sequence[Any], *, grid: Any, choices: Any) -> Any:
        del args, grid, choices
        return type("Selection", (), {"scratch_bytes": self.scratch_bytes, "scratch_align": 128})

    def _run(self, args: Sequence[Any], is_twice: bool, scratch: tuple[int, int] | None) -> None:
        if self.scratch_bytes and scratch is None:
            error = ArgumentError("scratch memory is needed")
            error.field = "scratch"
            raise error
        if scratch is not None:
            assert scratch[0] % 128 == 0
            assert scratch[1] == self.scratch_bytes
        x, bias, out, n, factor = args
        assert not isinstance(n, torch.SymInt)
        scaled = x[:n] * factor * (2 if is_twice else 1)
        out[:n] = scaled if bias is None else scaled + bias[:n]


class HostLibrary:
    """A library of one such kernel."""

    kernels = ("scale",)

    def __init__(self, name: str, scratch_bytes: int = 0) -> None:
        self.name = name
        self.kernel = HostKernel(SCALE, scratch_bytes)

    def __getitem__(self, name: str) -> HostKernel:
        assert name == "scale"
        return self.kernel


@pytest.fixture
def library(request: pytest.FixtureRequest) -> HostLibrary:
    name = "".join(char if char.isalnum() else "_" for char in request.node.name)
    return HostLibrary(f"aotc_{name}")


@pytest.fixture
def ops(library: HostLibrary) -> Iterator[Operators]:
    operators = register(library, device_type="cpu")  # pyright: ignore[reportArgumentType]
    yield operators
    if HAS_TORCH:
        torch._dynamo.reset()


def scaled(ops: Operators, x: Any, bias: Any, **choices: bool) -> Any:
    out = torch.zeros_like(x)
    ops.scale(x, bias, out, x.numel(), 3.0, **choices)
    return out + 1


def expected(x: Any, bias: Any, *, is_twice: bool) -> Any:
    return x * (6 if is_twice else 3) + (0 if bias is None else bias) + 1


@needs_torch
def test_eager_calls_skip_the_dispatcher(ops: Operators, library: HostLibrary) -> None:
    x = torch.randn(37)
    torch.testing.assert_close(scaled(ops, x, None, TWICE=True), expected(x, None, is_twice=True))
    assert (len(library.kernel.direct), len(library.kernel.launched)) == (1, 0)
    operator = getattr(torch.ops, library.name).scale
    out = torch.zeros_like(x)
    operator(x, x, out, 37, 3.0, TWICE=False)
    torch.testing.assert_close(out + 1, expected(x, x, is_twice=False))
    assert (len(library.kernel.direct), len(library.kernel.launched)) == (1, 1)


@needs_torch
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_compiled_functions_have_operators(
    ops: Operators, library: HostLibrary, is_dynamic: bool
) -> None:
    compiled = torch.compile(scaled, backend="aot_eager", fullgraph=True, dynamic=is_dynamic)
    for count in (37, 64):
        x, bias = torch.randn(count), torch.randn(count)
        for bias_argument in (bias, None):
            actual = compiled(ops, x, bias_argument, TWICE=False)
            torch.testing.assert_close(actual, expected(x, bias_argument, is_twice=False))
    assert len(library.kernel.launched) == 4
    assert not library.kernel.direct


@needs_torch
def test_exported_programs_have_operators(ops: Operators, library: HostLibrary) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return scaled(ops, x, None, TWICE=True)

    x = torch.randn(5)
    program = torch.export.export(Model(), (x,))
    assert f"torch.ops.{library.name}.scale.default" in program.graph_module.code.replace(
        "torch.ops.higher_order.auto_functionalized", ""
    )
    torch.testing.assert_close(program.module()(x), expected(x, None, is_twice=True))
    assert len(library.kernel.launched) == 1


@needs_torch
def test_fake_tensors_launch_nothing(ops: Operators, library: HostLibrary) -> None:
    with import_module("torch._subclasses.fake_tensor").FakeTensorMode():
        x = torch.empty(9)
        assert scaled(ops, x, None, TWICE=True).shape == (9,)
    assert not library.kernel.direct
    assert not library.kernel.launched


@needs_torch
def test_operators_are_what_torch_expects(ops: Operators, library: HostLibrary) -> None:
    operator = getattr(torch.ops, library.name).scale.default
    assert list(ops) == ["scale"]
    out = torch.zeros(8)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(
        operator, (torch.randn(8), None, out, 8, 2.0), {"TWICE": True}, test_utils=checks
    )


@needs_torch
def test_scratch_memory_is_passed_where_a_kernel_needs_it() -> None:
    library = HostLibrary("aotc_scratch", scratch_bytes=300)
    ops = register(library, device_type="cpu")  # pyright: ignore[reportArgumentType]
    x = torch.randn(3)
    torch.testing.assert_close(scaled(ops, x, x, TWICE=True), expected(x, x, is_twice=True))


@needs_torch
def test_a_name_is_taken_once(ops: Operators, library: HostLibrary) -> None:
    with pytest.raises(ValueError, match="scale is registered already; give another namespace"):
        register(library, device_type="cpu")  # pyright: ignore[reportArgumentType]
    other = register(library, namespace=f"{library.name}_2", device_type="cpu")  # pyright: ignore[reportArgumentType]
    assert len(other) == len(ops) == 1
    with pytest.raises(AttributeError, match="no operator 'scal'; there are scale"):
        _ = ops.scal


@pytest.mark.skipif(HAS_TORCH, reason="PyTorch is here")
def test_without_torch_it_says_so(library: HostLibrary) -> None:
    with pytest.raises(ImportError, match="torch"):
        register(library)  # pyright: ignore[reportArgumentType]
