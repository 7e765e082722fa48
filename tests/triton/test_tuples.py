"""Launches with tuples, from an archive of kernels with their items as arguments."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from aotc import cli

pytestmark = pytest.mark.usefixtures("one_worker")

KERNELS = """
import triton
import triton.language as tl


@triton.heuristics({"ALL": lambda args: args["shape"][0] % args["BLOCK"] == 0})
@triton.jit
def pair(x, shape, strides, BLOCK: tl.constexpr, ALL: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at * strides[0], at.to(tl.float32), mask=ALL or at < shape[0])


@triton.jit
def fill(x, others, values):
    tl.store(x, len(values) * 1.0)
    for i in tl.static_range(len(values)):
        tl.store(others[i], values[i])


@triton.jit
def put(x, nothing, n):
    tl.store(x + n, len(nothing) * 1.0)
"""
FUNCTIONS = """
import triton
import triton.language as tl
from others import third


@triton.jit
def twice(v):
    return v * 2


@triton.jit
def same(v):
    return v


@triton.jit
def call(x, op, n):
    tl.store(x + n, op[0](op[1]))
"""
OTHERS = """
import triton


@triton.jit
def third(v):
    return v / 3
"""
CALL = """
[[kernel]]
name = "call_{name}"
source = "functions.py:call"
signature = {{ x = "*fp32", op = "({text}, fp32)", n = "i32" }}
[[kernel.config]]
num_warps = {num_warps}
"""
TABLE = """
[[kernel]]
name = "{name}"
source = "pairs.py:pair"
[kernel.signature]
x = "*fp32"
shape = "{shape}"
strides = "{strides}"
[kernel.constants]
BLOCK = 64
[kernel.choices]
ALL = [false, true]
"""
EMPTY = """
[[kernel]]
name = "fill_none"
source = "pairs.py:fill"
signature = { x = "*fp32", others = "()", values = "( )" }
[[kernel]]
name = "fill_one"
source = "pairs.py:fill"
signature = { x = "*fp32", others = "(*fp32,)", values = "(fp32,)" }
[[kernel]]
source = "pairs.py:put"
signature = { x = "*fp32", nothing = "()", n = "i32" }
"""
HEAD = '[package]\nname = "ops"\nversion = "0.1.0"\ntargets = ["sm_90a"]\n'


@pytest.fixture(scope="module")
def pairs(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    shutil.copy(project / "libcuda.so.1", folder)
    (folder / "pairs.py").write_text(KERNELS)
    tables = (
        ("plain", "(i32, i64)", "(i32=1, i32)"),
        ("named", "(rows: i32:16, cols: i32)", "(i32, (i32, i32))"),
    )
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "others.py").write_text(OTHERS)
    named = (("twice", "twice", 1), ("same", "functions.py:same", 2), ("third", "third", 8))
    calls = "".join(CALL.format(name=n, text=text, num_warps=w) for n, text, w in named)
    text = "".join(TABLE.format(name=n, shape=a, strides=b) for n, a, b in tables)
    (folder / "kernels.toml").write_text(HEAD + text + EMPTY + calls)
    arguments = ["build", str(folder / "kernels.toml"), "-o", str(folder / "dist"), "-j", "1"]
    assert cli.run([*arguments, "--no-cache"]) == 0
    return folder


def test_items_are_arguments(launches: Any, pairs: Path) -> None:
    """Of plain, nested and named tuples; META and heuristics have the tuples themselves."""
    assert launches(
        """
install(stand_in=True)
import collections
import pairs
Shape = collections.namedtuple("Shape", "rows cols")
Other = collections.namedtuple("Other", "height width")
grid = lambda meta: (meta["shape"][0] // meta["BLOCK"],)
def read(layout):
    seen.append(list(gpu.last().unpack(layout)))
launched(lambda: pairs.pair[grid](x, (128, 1 << 40), (1, 7), BLOCK=64))
read("Qi4xqi")
launched(lambda: pairs.pair[(3,)](x, (100, 5), strides=(1, 7), BLOCK=64))
read("Qi4xqi")
launched(lambda: pairs.pair[grid](x, Shape(1600, 5), (3, (2, 7)), BLOCK=64))
read("Qiiiii")
launched(lambda: pairs.pair[(2,)](x, Shape(1616, 5), (3, (2, 7)), BLOCK=64))
read("Qiiiii")
launched(lambda: pairs.pair.fn.run(x, (100, 5), (1, 7), 64, False, grid=(9,), warmup=False))
print(pairs.pair.warmup(x, (100, 5), (1, 7), BLOCK=64, grid=(1,)))
""",
        folder=pairs,
        path=(str(pairs),),
    ) == [
        [[2, 1, 1], 128], [4096, 128, 1 << 40, 7],
        [[3, 1, 1], 128], [4096, 100, 5, 7],
        [[25, 1, 1], 128], [4096, 1600, 5, 3, 2, 7],
        [[2, 1, 1], 128], [4096, 1616, 5, 3, 2, 7],
        [[9, 1, 1], 128],
    ]  # fmt: skip


def test_empty_tuples(launches: Any, pairs: Path) -> None:
    """Empty tuples beside others, and in a kernel with only empty ones."""
    outcomes = launches(
        """
install(stand_in=True)
import pairs
def read(layout):
    seen.append(list(gpu.last().unpack(layout)))
launched(lambda: pairs.fill[(1,)](x, (), ()))
read("Q")
launched(lambda: pairs.fill[(1,)](x, (x,), (2.5,)))
read("QQf")
launched(lambda: pairs.put[(1,)](x, (), 7))
read("Qi")
class Elementwise:
    def __eq__(self, other):
        raise ValueError("an array of truth values")
launched(lambda: pairs.put[(1,)](x, (Elementwise(),), 7))
launched(lambda: pairs.put[(1,)](x, ((), ()), 7))
launched(lambda: pairs.put[(1,)](x, (3,), 7))
launched(lambda: pairs.put[(1,)](x, None, 7))
""",
        folder=pairs,
        path=(str(pairs),),
    )
    assert outcomes[:-4] == [
        *([[1, 1, 1], 128], [4096]),
        *([[1, 1, 1], 128], [4096, 4096, 2.5]),
        *([[1, 1, 1], 128], [4096, 7]),
    ]
    assert [name for name, _ in outcomes[-4:]] == ["NotInArchiveError"] * 4
    assert 'nothing = "((), ())"' in outcomes[-3][1]


def test_tuples_that_no_kernel_has_are_named(launches: Any, pairs: Path) -> None:
    outcomes = launches(
        """
install(stand_in=True)
import collections
import pairs
Other = collections.namedtuple("Other", "height width")
launched(lambda: pairs.pair[(1,)](x, (128, 5), (2, 7), BLOCK=64))
launched(lambda: pairs.pair[(1,)](x, Other(128, 5), (1, 7), BLOCK=64))
launched(lambda: pairs.pair[(1,)](x, (128, 5, 6), (1, 7), BLOCK=64))
""",
        folder=pairs,
        path=(str(pairs),),
    )
    assert [name for name, _ in outcomes] == ["NotInArchiveError"] * 3
    assert 'shape = "(i32:16, i32)"\n' in outcomes[0][1]
    assert 'strides = "(i32, i32)"\n' in outcomes[0][1]
    assert 'shape = "(height: i32:16, width: i32)"\n' in outcomes[1][1]


def test_functions_are_items(launches: Any, pairs: Path) -> None:
    """Each launch takes the kernel of its function; a function without one is refused."""
    outcomes = launches(
        """
install(stand_in=True)
import triton
import functions
from others import third
@triton.jit
def strange(v):
    return v
for op in (functions.twice, functions.same, third, functions.twice):
    launched(lambda: functions.call[(1,)](x, (op, 1.5), 3))
    seen.append(list(gpu.last().unpack("Qfi")))
launched(lambda: functions.call[(1,)](x, (strange, 1.5), 3))
launched(lambda: functions.call[(1,)](x, (2.5, 1.5), 3))
""",
        folder=pairs,
        path=(str(pairs),),
    )
    passed = [4096, 1.5, 3]
    assert outcomes[:8] == [
        [[1, 1, 1], 32], passed, [[1, 1, 1], 64], passed,
        [[1, 1, 1], 256], passed, [[1, 1, 1], 32], passed,
    ]  # fmt: skip
    assert [name for name, _ in outcomes[8:]] == ["NotInArchiveError"] * 2
    assert 'op = "(<string>:strange, fp32)"' in outcomes[8][1]
    assert 'op = "(fp32, fp32)"' in outcomes[9][1]
