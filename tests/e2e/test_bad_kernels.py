"""Every mistake in a kernel or in compiling one, as a user makes it.

The exit code is 1 (2 for wrong usage), and the message marks the right text.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

import aotc
from aotc.ir.diagnostics import DiagnosticError
from tests.support.mistakes import (
    ADD,
    HEAD,
    KERNEL,
    MANIFEST,
    SETTINGS,
    Run,
    dump,
    set_options,
)

pytestmark = pytest.mark.usefixtures("one_worker")

# -------------------------------------------------------------------------------------- kernels

_BODIES = [
    # body | marked text | message, parts separated by " | "
    ("x = tl.maxmum(n, 1)", "tl.maxmum", "unknown name tl.maxmum | did you mean 'maximum'?"),
    ("x = n.to(tl.float31)", "tl.float31", "did you mean 'float32'?"),
    ("offsets = n\nx = ofsets + 1", "ofsets", "ofsets is not defined | did you mean 'offsets'?"),
    ("y = x + 1\nx = 2", "x", "x is not defined | not before this"),
    (
        "x = tl.arange(0, BLOCK)[:, None] + tl.arange(0, 64)[:, None]",
        "tl.arange(0, BLOCK)[:, None] + tl.arange(0, 64)[:, None]",
        "shapes (128, 1) and (64, 1) do not broadcast: axis 0 has 128 and 64 | [None, :]",
    ),
    ("x = n // n.to(tl.uint32)", "n // n.to(tl.uint32)", "int32 and uint32 | .to(...)"),
    ("x = n & 1.5", "n & 1.5", "`&` is for integers | bitcast=True"),
    ("o = tl.arange(0, 100)", "tl.arange(0, 100)", "power of two, got 100 | tl.arange(0, 128)"),
    ("o = tl.arange(0, BLOCK)\nx = o[0:4]", "o[0:4]", "`None` and `:` only, got 0:4"),
    ("class A:\n    pass", "class A:", "a class is not part of the kernel language"),
    ("try:\n    x = 1\nexcept E:\n    pass", "try:", "`try` is not part | nothing to catch"),
    ("with n as m:\n    pass", "with n as m:", "`with` is not part"),
    ("yield n", "yield n", "`yield` is not part | tl.store"),
    ("yield from n", "yield from n", "`yield` is not part"),
    ("await n", "await n", "`await` is not part"),
    ("async for i in n:\n    pass", "async for i in n:", "`async for` is not part"),
    ("async def f():\n    pass", "async def f():", "a nested function is not part"),
    ("global q", "global q", "`global` is not part | return them"),
    ("nonlocal q", "nonlocal q", "`nonlocal` is not part | return them"),
    ("x = 1\ndel x", "del x", "`del` is not part"),
    ("a, *b = (1, 2, 3)", "*b", "is not part of the kernel language | name each value"),
    ("match n:\n    case 1:\n        pass", "match n:", "`match` is not part | `if` and `elif`"),
    ("x = {1: 2}", "{1: 2}", "a dictionary is not part | tuple"),
    ("x = {1, 2}", "{1, 2}", "a set is not part | tuple"),
    ("x = [i for i in range(4)]", "range(4)", "`for` statement | tl.static_range"),
    ("x = n @ n", "n @ n", "the operator `@` is not part | tl.dot"),
    ("x = n\nx @= n", "x @= n", "the operator `@` is not part | tl.dot"),
    ("p.x = 1", "p.x", "an attribute cannot be assigned"),
    ("import os", "import os", "an import inside a kernel | module level"),
    ("x = tl.dot(n, n)", "tl.dot(n, n)", "first operand of tl.dot must be a tile, got int32"),
    (
        "x = tl.map_elementwise(n)",
        "tl.map_elementwise(n)",
        "tl.map_elementwise takes a @triton.jit function of scalars first, got int32",
    ),
    ("a = 0\nfor i in range(n):\n    a = a + 1.5", None, "a is int32 before this loop | float32"),
    ("if n > 1:\n    a = 1.0\ntl.store(p, a)", "a", "only if the condition in line 6 is true"),
    ("x = tl.load(p, mask=n)", "tl.load(p, mask=n)", "truth values, got int32 | mask != 0"),
    ("tl.store(p, tl.arange(0, 4))", None, "float32[4]? | a tile | the pointer is a scalar"),
    ("for i in range(n):\n    return", "return", "a `return` cannot leave a run-time loop"),
    ("return n", "return n", "a kernel returns nothing, k returns int32 | tl.store"),
    (
        "x = helper(n)",
        "helper(n)",
        "helper is missing the argument 'y' | signature is helper(x, y)",
    ),
    ("x = helper(n, z=1)", "helper(n, z=1)", "no parameter 'z' | signature is helper(x, y)"),
    ("x = LIMIT + n", "LIMIT", "kernels read only constexpr globals | tl.constexpr('4')"),
    ("x = plain(n)", "plain(n)", "a plain Python function | decorate it with @triton.jit"),
    ("x: tl.constexpr = 10 ** 10 ** 10", "10 ** 10 ** 10", "is too large"),
    ("for i in tl.static_range(10**9):\n    pass", None, "repeat the body 1000000000 times"),
    ("tl.static_assert(BLOCK > 1000, 'too small')", None, "static assertion failed: too small"),
]
_MODULE = """\
LIMIT = "4"
def plain(x):
    return x
@triton.jit
def helper(x, y):
    return x + y
"""


@pytest.mark.parametrize(("body", "marked", "printed"), _BODIES)
def test_a_wrong_kernel(run: Run, body: str, marked: str | None, printed: str) -> None:
    # The module's other names come last, so the body starts in line 6.
    source = HEAD + KERNEL.partition("    ")[0] + textwrap.indent(body, "    ")
    ran = dump(run, f"{source}\n{_MODULE}")
    assert ran.code == 1
    assert ran.out == ""
    assert ran.err.startswith("k.py:"), ran.err
    for part in printed.split(" | "):
        assert part.partition("?")[0] in ran.err or part in ran.err, ran.err
    if marked is not None:
        assert ran.marked == marked


def test_the_chain_of_calls_two_deep(run: Run) -> None:
    source = """
        @triton.jit
        def inner(a, b):
            return a + b
        @triton.jit
        def outer(p):
            return inner(tl.load(p))
        @triton.jit
        def k(p, n, BLOCK: tl.constexpr):
            tl.store(p, outer(p))
        """
    ran = dump(run, HEAD + textwrap.dedent(source))
    assert ran.code == 1
    assert ran.err.splitlines() == [
        "k.py:10:12: error: inner is missing the argument 'b'",
        "      return inner(tl.load(p))",
        "             ^^^^^^^^^^^^^^^^^",
        "  called from k.py:13:17",
        "        tl.store(p, outer(p))",
        "                    ^^^^^^^^",
        "  help: the signature is inner(a, b)",
    ]


def test_recursion_names_the_cycle(run: Run) -> None:
    functions = "@triton.jit\ndef f(a):\n    return g(a)\n@triton.jit\ndef g(a):\n    return f(a)\n"
    ran = dump(run, HEAD + functions + KERNEL.replace("1.0", "f(n)"))
    assert ran.code == 1
    assert "g calls itself: k → f → g → f → g, more than 40 calls deep" in ran.err
    assert "more calls" in ran.err


_SOURCES = [
    # file | message
    (b"# caf\xe9\n" + HEAD.encode(), "in UTF-8, k.py is not at line 1, byte 5 | save the file"),
    ((HEAD + KERNEL).encode("utf-16"), "in UTF-8, k.py is not at line 1"),
    (b"# coding: klingon\n", "k.py declares 'klingon'"),
    (b"", "expected a function of k.py, got 'k' | it defines no function"),
    (b"x = 1\ny = '\0'\n", "k.py:2:6: error: expected Python source, got a NUL character"),
    ((HEAD + KERNEL + "    x = 1 +\n").encode(), "k.py:7:12: error: expected Python source"),
    ((HEAD + KERNEL + "  x = 1\n").encode(), "unindent does not match"),
    (b"x = " + b"(" * 5000 + b")" * 5000, "expected Python source | nested"),
    (b"x = " + b"-" * 100_000 + b"1", "k.py is nested too deeply to be parsed"),
    (b"k = lambda p: p\n", "expected a function of k.py, got 'k'"),
    (
        (HEAD + KERNEL.replace("constexpr", "constexpr, *rest")).encode(),
        "cannot have `*` or `**` parameters",
    ),
    (KERNEL.encode(), "tl is not defined | import triton.language as tl"),
    ((HEAD + KERNEL.replace("@triton.jit\n", "")).encode(), "decorate it with @triton.jit"),
    (
        ("from .broken import f\n" + HEAD + KERNEL.replace("1.0", "f(n)")).encode(),
        "broken.py:1:9: error: invalid Python syntax",
    ),
    (
        ("from broken2 import f\n" + HEAD + KERNEL.replace("1.0", "f(n)")).encode(),
        "broken2.f is not known without running the file",
    ),
]


@pytest.mark.parametrize(("source", "printed"), _SOURCES)
def test_a_wrong_source_file(run: Run, source: bytes, printed: str) -> None:
    Path("broken.py").write_text("def foo(:\n")
    ran = dump(run, source)
    assert ran.code == 1
    for part in printed.split(" | "):
        assert part in ran.err
    assert max(len(line) for line in ran.err.splitlines()) < 200


@pytest.mark.parametrize(
    "deep",
    [
        "    x = " + "(" * 150 + "1" + ")" * 150,
        "    if n == 0:\n        pass\n"
        + "".join(f"    elif n == {i}:\n        pass\n" for i in range(1, 900)),
        "".join(f"{' ' * (4 + i)}if n > 1:\n" for i in range(90)) + " " * 99 + "pass",
    ],
    ids=["parentheses", "elif", "if"],
)
def test_deep_nesting_is_reported_where_it_is(run: Run, deep: str) -> None:
    ran = dump(run, f"{HEAD}{KERNEL}{deep}\n")
    assert ran.code == 0 or (ran.code == 1 and ran.err.startswith("k.py:")), ran.err


@pytest.mark.parametrize("prefix", ["\ufeff", "# coding: utf-8\n"])
def test_marks_that_editors_leave_are_no_mistake(run: Run, prefix: str) -> None:
    assert dump(run, prefix + HEAD + KERNEL).code == 0
    Path("k.py").write_text(prefix + HEAD + ADD)
    Path("kernels.toml").write_bytes((prefix.strip() + "\n" + MANIFEST).encode())
    assert run("dump", "kernels.toml:add", "--stage", "tile").code == 0


def test_the_source_is_not_executed(run: Run) -> None:
    effects = "open('ran', 'w')\nprint('HELLO')\nraise SystemExit(7)\n"
    ran = dump(run, effects + HEAD + KERNEL)
    assert ran.code == 0
    assert "HELLO" not in ran.out
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", ["ядро", "_"])
def test_a_name_that_cannot_be_a_symbol(run: Run, name: str) -> None:
    ran = dump(run, HEAD + KERNEL.replace("def k", f"def {name}"), name)
    assert ran.code == 1
    assert f"of ASCII letters, digits and `_`, and more than `_`; got {name!r}" in ran.err


# -------------------------------------------------------------------------------- dump and usage


@pytest.mark.parametrize(
    ("subject", "settings", "printed"),
    [
        ("k.py:add", (*SETTINGS, "n=int32"), "a dtype, got 'int32' | did you mean 'i32'?"),
        ("k.py:add", (*SETTINGS, "BLOKC=1"), "got 'BLOKC' | did you mean 'BLOCK'?"),
        ("k.py:add", (*SETTINGS, "zzz=1"), "got 'zzz' | there are x_ptr, y_ptr, n, BLOCK,"),
        ("k.py:add", (*SETTINGS, "num_warps=3"), "a power of two from 1 to 32 for num_warps"),
        ("k.py:add", (*SETTINGS, "num_warps=64"), "a power of two from 1 to 32 for num_warps"),
        (
            "kernels.toml:add",
            ("num_warps=32", "num_consumer_groups=2"),
            "sm_90a can hold: num_warps = 32 in 2 groups takes 2048",
        ),
        ("k.py:add", (*SETTINGS, "BLOCK=100"), "must be a power of two, got 100"),
        ("k.py:add", (*SETTINGS, "BLOCK=big"), "expected a number or a tile for `*`, got 'big'"),
        ("k.py:add", (*SETTINGS, "x_ptr=tensordesc<fp16[BLOK]>"), "extent 'BLOK' | 'BLOCK'?"),
        ("k.py:add", (*SETTINGS, "x_ptr=tensordesc<fp16[64]>"), "a value, got tensordesc<fp16"),
        ("k.py:ad", (), "expected a function of k.py, got 'ad' | did you mean 'add'?"),
        ("kk.py:add", (), "cannot read kk.py | did you mean 'k.py'?"),
        ("kernels.toml:ad", (), "expected a kernel of kernels.toml (add), got 'ad'"),
        ("k.py", (), "expected SOURCE.py:KERNEL or MANIFEST:KERNEL, got 'k.py'"),
    ],
)
def test_a_wrong_dump(run: Run, subject: str, settings: tuple[str, ...], printed: str) -> None:
    ran = run("dump", subject, "--stage", "ptx", *set_options(settings))
    assert (ran.code, ran.out) == (1, "")
    for part in printed.split(" | "):
        assert part in ran.err


@pytest.mark.parametrize(
    ("args", "printed"),
    [
        ([], "Usage: aotc"),
        (["bild"], "Did you mean 'build'?"),
        (["build", "--taget", "sm_80"], "Did you mean '--target'?"),
        (["build", "-j", "0"], "0 is not in the range x>=1"),
        (["inspect"], "Missing argument 'ARCHIVE'"),
        (["dump", "k.py:add"], "Missing option '--stage'"),
        (["dump", "k.py:add", "--stage", "asm"], "'asm' is not one of 'tile', 'gpu'"),
        (["dump", "k.py:add", "--stage", "ptx", "--set", "n"], "expected NAME=VALUE, got 'n'"),
    ],
)
def test_wrong_usage(run: Run, args: list[str], printed: str) -> None:
    ran = run(*args)
    assert ran.code == 2
    assert printed in ran.out + ran.err


# ------------------------------------------------------------------------------- from Python code


def _plain(p):
    pass


@pytest.mark.parametrize(
    ("kernel", "options", "printed"),
    [
        ("k.py:add", {"constants": {}}, "the parameter BLOCK of add has no value"),
        ("k.py:add", {"signature": {}}, "the parameter x_ptr of add has no type (nor have y_ptr"),
        ("k.py:add", {"signature": {"x": "i32"}}, "'x' of the signature is no parameter of add"),
        ("k.py:add", {"signature": {"n": "i32:16?"}}, "`?` is for manifests"),
        ("k.py:add", {"signature": {"n": 32}}, "the type of n must be a string like"),
        ("k.py:add", {"constants": {3: 64}}, "must map names of parameters, got 3"),
        ("k.py:add", {"constants": {"BLOCK": {}}}, "the constant BLOCK must be a number"),
        ("k.py:add", {"target": "sm_90"}, "did you mean 'sm_90a'?"),
        ("k.py:ad", {}, "k.py has no function 'ad'"),
        ("kk.py:add", {}, "cannot read kk.py: No such file"),
        ("k.py", {}, "expected 'path/to/source.py:kernel', got 'k.py'"),
        (len, {}, "or a function, got <built-in function len>"),
        (_plain, {"signature": {"p": "*fp32"}}, "decorate it with @triton.jit"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_wrong_call_of_compile(kernel: object, options: dict[str, object], printed: str) -> None:
    usual = {"signature": dict(s.split("=") for s in SETTINGS[:3]), "constants": {"BLOCK": 64}}
    with pytest.raises(DiagnosticError) as caught:
        aotc.compile(kernel, **{**usual, **options})  # pyright: ignore[reportArgumentType]
    assert printed in str(caught.value)
