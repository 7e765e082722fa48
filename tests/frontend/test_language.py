"""The importable language agrees with the frontend."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import aotc.language as tl
from aotc.frontend.language.builtins import MODULES
from aotc.frontend.values import Builtin
from aotc.ir.types import ScalarType
from tests.frontend.conftest import Sources

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

LANGUAGE = MODULES["triton.language"]
FUNCTIONS = {name: function for name, function in LANGUAGE.items() if isinstance(function, Builtin)}


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "to"])
def test_signatures_agree(name: str) -> None:
    builtin = FUNCTIONS[name]
    parameters = inspect.signature(getattr(tl, name)).parameters.values()
    positional = [
        parameter for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    assert tuple(parameter.name for parameter in positional) == builtin.parameters.positional
    required = [
        parameter.name
        for parameter in parameters
        if parameter.kind in _NAMED and parameter.default is parameter.empty
    ]
    assert tuple(required) == builtin.parameters.required
    assert (
        tuple(
            parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
        )
        == builtin.parameters.keyword_only
    )
    assert any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters) == bool(
        builtin.parameters.vararg
    )


def test_every_dtype_is_there() -> None:
    for name, kind in LANGUAGE.items():
        if isinstance(kind, ScalarType):
            assert repr(getattr(tl, name)) == f"tl.{name}"


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_documented(name: str) -> None:
    if name != "to":
        assert getattr(tl, name).__doc__


def test_calling_one_outside_a_kernel_says_so() -> None:
    with pytest.raises(tl.OutsideKernelError, match=r"tl\.load has a meaning in kernels only"):
        tl.load(None)  # type: ignore[arg-type]
    with pytest.raises(tl.OutsideKernelError, match=r"tl\.extra\.libdevice\.tanh"):
        tl.extra.libdevice.tanh(1.0)


def test_decorators_leave_functions_as_they_are() -> None:
    def kernel() -> int:
        return 3

    assert tl.jit(kernel) is kernel
    assert tl.jit(noinline=True)(kernel) is kernel
    assert tl.constexpr_function(kernel)() == 3
    assert int(tl.constexpr(4).__index__()) == 4


def test_a_kernel_may_import_it_instead_of_triton(sources: Sources) -> None:
    text = """
    import aotc.language as al
    from aotc.language import jit, load

    @al.jit
    def helper(x):
        return al.exp(x)

    @jit
    def k(p):
        al.store(p, helper(load(p)))
    """
    assert "arith.exp" in sources.text(text, {"p": "*fp32"})


CHECKED = """
import aotc.language as tl

SCALE = tl.constexpr(0.5)


@tl.jit
def kernel(
    x_ptr, n, BLOCK: tl.constexpr, DTYPE: tl.constexpr = tl.float32, ACT: tl.constexpr = None,
    EVEN: tl.constexpr = False, N: tl.constexpr = 4,
):
    HALF: tl.constexpr = BLOCK // 2
    ONE: tl.constexpr = 1
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, HALF), dtype=DTYPE)
    for i in range(0, n, BLOCK):
        acc += tl.full([BLOCK, HALF], SCALE, DTYPE) * i
    for j in tl.static_range(N):
        acc = acc * j
    if ACT is not None:
        acc = ACT(acc)
    y = tl.sum(tl.reshape(acc, (HALF, BLOCK * ONE)), axis=0)
    tl.store(x_ptr + offs, y if EVEN else y.to(DTYPE), mask=(offs < n) & (offs >= N))
"""


def test_constants_type_check_as_what_they_are(tmp_path: Path) -> None:
    """Numbers, dtypes and functions, with defaults, and called; a mistake is reported."""
    pytest.importorskip("pyright")
    (tmp_path / "good.py").write_text(CHECKED)
    (tmp_path / "bad.py").write_text("import aotc.language as tl\n\ntl.arange('0', 4)\n")
    root = Path(tl.__file__).parents[1]
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(root)]}))
    command = [sys.executable, "-m", "pyright", "-p", str(tmp_path), "--outputjson"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    diagnostics = json.loads(ran.stdout)["generalDiagnostics"]
    assert [Path(diagnostic["file"]).name for diagnostic in diagnostics] == ["bad.py"]
