"""Every mistake a user can make, made as a user makes it, through the command line.

What is printed must name the place, mark the right text, say what was expected and what to do, and
never be a traceback or a bug report. The exit code is 1 (2 for wrong usage), nothing is written,
and what an earlier build wrote stays.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import aotc
from aotc import cli
from aotc.ir.diagnostics import DiagnosticError
from aotc.package import workers

_HEAD = "import triton\nimport triton.language as tl\n\n"
_KERNEL = "@triton.jit\ndef k(p, n, BLOCK: tl.constexpr):\n    tl.store(p, 1.0)\n"
_ADD = """\
@triton.jit
def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr, MODE: tl.constexpr = 0):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + o, tl.load(x_ptr + o, mask=o < n), mask=o < n)
"""
_MANIFEST = """\
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a"]

[[kernel]]
source = "k.py:add"
grid = ["cdiv(n, BLOCK)"]
[kernel.signature]
x_ptr = "*fp32:16"
y_ptr = "*fp32:16"
n = "i32"
[kernel.constants]
BLOCK = 128
"""
_SETTINGS = ("x_ptr=*fp32", "y_ptr=*fp32", "n=i32", "BLOCK=64")


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def marked(self) -> str:
        """The text above the first line of carets."""
        lines = self.err.splitlines()
        at = next(i for i, line in enumerate(lines) if set(line.strip()) == {"^"})
        start = lines[at].index("^")
        return lines[at - 1][start : start + lines[at].count("^")]


Run = Callable[..., Ran]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "k.py").write_text(_HEAD + _ADD)
    (tmp_path / "kernels.toml").write_text(_MANIFEST)
    return tmp_path


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*args: str) -> Ran:
        code = cli.run(args)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert "internal error" not in captured.err
        return Ran(code, captured.out, captured.err)

    return run


def dump(run: Run, text: str | bytes, name: str = "k") -> Ran:
    """Dump the kernel `name` of a source that is `text`."""
    Path("k.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    settings = ("p=*fp32:16", "n=i32", "BLOCK=128")
    return run("dump", f"k.py:{name}", "--stage", "tile", *_set(settings))


def _set(settings: tuple[str, ...]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


# -------------------------------------------------------------------------------------- kernels

_BODIES = [
    # body | what is marked | what is printed, parts separated by " | "
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
    ("f = lambda x: x", "lambda x: x", "a lambda is not part | @triton.jit"),
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
        "aotc does not have tl.map_elementwise yet | docs/reference/language.md",
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
    # The module's other names come last, so that the body starts in line 6.
    source = _HEAD + _KERNEL.partition("    ")[0] + textwrap.indent(body, "    ")
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
    ran = dump(run, _HEAD + textwrap.dedent(source))
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
    ran = dump(run, _HEAD + functions + _KERNEL.replace("1.0", "f(n)"))
    assert ran.code == 1
    assert "g calls itself: k → f → g → f → g, more than 40 calls deep" in ran.err
    assert "more calls" in ran.err


_SOURCES = [
    # file | what is printed
    (b"# caf\xe9\n" + _HEAD.encode(), "in UTF-8, k.py is not at line 1, byte 5 | save the file"),
    ((_HEAD + _KERNEL).encode("utf-16"), "in UTF-8, k.py is not at line 1"),
    (b"# coding: klingon\n", "k.py declares 'klingon'"),
    (b"", "expected a function of k.py, got 'k' | it defines no function"),
    (b"x = 1\ny = '\0'\n", "k.py:2:6: error: expected Python source, got a NUL character"),
    ((_HEAD + _KERNEL + "    x = 1 +\n").encode(), "k.py:7:12: error: expected Python source"),
    ((_HEAD + _KERNEL + "  x = 1\n").encode(), "unindent does not match"),
    (b"x = " + b"(" * 5000 + b")" * 5000, "expected Python source | nested"),
    (b"x = " + b"-" * 100_000 + b"1", "k.py is nested too deeply to be parsed"),
    (b"k = lambda p: p\n", "expected a function of k.py, got 'k'"),
    (
        (_HEAD + _KERNEL.replace("constexpr", "constexpr, *rest")).encode(),
        "cannot have `*` or `**` parameters",
    ),
    (_KERNEL.encode(), "tl is not defined | import triton.language as tl"),
    ((_HEAD + _KERNEL.replace("@triton.jit\n", "")).encode(), "decorate it with @triton.jit"),
    (
        ("from .broken import f\n" + _HEAD + _KERNEL.replace("1.0", "f(n)")).encode(),
        "broken.py:1:9: error: invalid Python syntax",
    ),
    (
        ("from broken2 import f\n" + _HEAD + _KERNEL.replace("1.0", "f(n)")).encode(),
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
    ran = dump(run, f"{_HEAD}{_KERNEL}{deep}\n")
    assert ran.code == 0 or (ran.code == 1 and ran.err.startswith("k.py:")), ran.err


@pytest.mark.parametrize("prefix", ["\ufeff", "# coding: utf-8\n"])
def test_marks_that_editors_leave_are_no_mistake(run: Run, prefix: str) -> None:
    assert dump(run, prefix + _HEAD + _KERNEL).code == 0
    Path("k.py").write_text(prefix + _HEAD + _ADD)
    Path("kernels.toml").write_bytes((prefix.strip() + "\n" + _MANIFEST).encode())
    assert run("dump", "kernels.toml:add", "--stage", "tile").code == 0


def test_the_source_is_not_executed(run: Run) -> None:
    effects = "open('ran', 'w')\nprint('HELLO')\nraise SystemExit(7)\n"
    ran = dump(run, effects + _HEAD + _KERNEL)
    assert ran.code == 0
    assert "HELLO" not in ran.out
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", ["ядро", "_"])
def test_a_name_that_cannot_be_a_symbol(run: Run, name: str) -> None:
    ran = dump(run, _HEAD + _KERNEL.replace("def k", f"def {name}"), name)
    assert ran.code == 1
    assert f"of ASCII letters, digits and `_`, and more than `_`; got {name!r}" in ran.err


# ------------------------------------------------------------------------------------- manifests

_TWICE = _MANIFEST[_MANIFEST.index("[[kernel") :]
_MISTAKES = [
    # old | new | place | what is printed
    ("grid =", "gird =", "8:1", "the unknown key 'gird' | did you mean 'grid'?"),
    ("version =", "verison =", "3:1", "the unknown key 'verison' | did you mean 'version'?"),
    ("[package]", "[pakage]", "1:2", "the unknown key 'pakage' | did you mean 'package'?"),
    ('"0.1.0"', "1.0", "3:11", "expected a string for 'version', got the number 1.0"),
    ('["sm_90a"]', '"sm_90a"', "4:11", "a list of strings | write targets = [...]"),
    ('"sm_90a"', '"sm_90"', "4:12", "expected a target (sm_80, | did you mean 'sm_90a'?"),
    ("k.py:add", "kk.py:add", "7:10", "cannot read kk.py: No such file | did you mean 'k.py'?"),
    ("k.py:add", ".:add", "7:10", "cannot read .: Is a directory"),
    ("k.py:add", "k.py/x.py:add", "7:10", "cannot read k.py/x.py: Not a directory"),
    ("k.py:add", "k\\u0000.py:add", "7:10", "embedded null byte"),
    ("k.py:add", "k.py:ad", "7:10", "expected a function of k.py, got 'ad' | 'add'?"),
    ("k.py:add", "k.py", "7:10", "expected 'FILE.py:FUNCTION', got 'k.py'"),
    ("k.py:add", "k.py:ядро", "7:10", "expected 'FILE.py:FUNCTION' | in ASCII"),
    ('"*fp32:16"\ny', '"*float32:16"\ny', "10:9", "a dtype, got 'float32' | did you mean 'fp32'?"),
    ('"i32"', '"bool"', "12:5", "expected a dtype, got 'bool' | did you mean 'i1'?"),
    ('n = "i32"\n', "", "9:9", "expected a type for argument 'n' of add | add `n = "),
    ('n = "i32"\n', 'nn = "i32"\n', "12:1", "an argument of add, got 'nn' | did you mean 'n'?"),
    ("cdiv(n, BLOCK)", "cdiv(items, BLOCK)", "8:15", "`items` is unknown | there are x_ptr,"),
    ("cdiv(n, BLOCK)", "cdiv(n, BLOK)", "8:18", "`BLOK` is unknown | did you mean 'BLOCK'?"),
    ("cdiv(n, BLOCK)", "cdvi(n, BLOCK)", "8:10", "no function is called `cdvi`"),
    ("cdiv(n, BLOCK)", "n / 2", "8:12", "use `//`, or `cdiv(a, b)` to round up"),
    ("cdiv(n, BLOCK)", "n // 0", "8:12", "`n // 0` divides by zero"),
    ("cdiv(n, BLOCK)", "BLOCK - 128", "8:16", "a grid of at least 1, this is always 0"),
    ("cdiv(n, BLOCK)", "(" * 2000, "8:10", "an expression of at most 1024 bytes"),
    ("BLOCK = 128", "BLOKC = 128", "14:1", "got 'BLOKC' | did you mean 'BLOCK'?"),
    ("BLOCK = 128", 'BLOCK = "big"', "8:18", "an integer for `BLOCK`, it is 'big' | in add"),
    ("BLOCK = 128", "BLOCK = 99999999999999999999", "14:9", "an integer of 64 bits for 'BLOCK'"),
    ("grid =", 'configs = "autotune"\ngrid =', "", "no @triton.autotune decorator | in add"),
    ("grid =", 'where = "BLOCK > 128"\ngrid =', "8:9", "expected `where` to accept a config"),
    ("grid =", 'source = "k.py:add"\ngrid =', "8:1", "each key of a table once"),
    ("grid =", "grid :", "8:6", "expected TOML"),
    ("[[kernel]]", "[kernel]", "6:2", "one or more [[kernel]] tables | with two brackets"),
    (_TWICE, _TWICE + _TWICE, "16:10", "a unique name, got 'add' as at kernels.toml:7:10"),
    (_TWICE, "", "1:1", "expected one or more [[kernel]] tables"),
    (_MANIFEST, "", "1:1", "expected a table at 'package', which is missing"),
    (_MANIFEST, "a = " + "[" * 5000, "", "the values in kernels.toml are nested too deeply"),
    (
        "BLOCK = 128\n",
        "BLOCK = 128\n[kernel.configs]\nnum_warps = [64]",
        "15:9",
        "a config of 'add' that sm_90a can hold, got none | takes 2048 threads, the limit is 1024",
    ),
    (
        "[kernel.constants]\nBLOCK = 128\n",
        f"[kernel.configs]\nBLOCK = {list(range(1000))}\nMODE = {list(range(1000))}",
        "13:9",
        "expected at most 262144 configs, got 1000000 (1000 BLOCK x 1000 MODE)",
    ),
    (
        "[kernel.constants]\nBLOCK = 128\n",
        f"[kernel.configs]\nBLOCK = {list(range(1, 501))}\nMODE = {list(range(500))}",
        "7:10",
        "expected at most 65536 variants of 'add', got 250000",
    ),
]


@pytest.mark.parametrize(("old", "new", "place", "printed"), _MISTAKES)
def test_a_wrong_manifest(
    run: Run, folder: Path, old: str, new: str, place: str, printed: str
) -> None:
    assert _MANIFEST.count(old) == 1
    (folder / "kernels.toml").write_text(_MANIFEST.replace(old, new))
    ran = run("build", "-j", "1")
    assert ran.code == 1
    assert ran.out == ""
    if place:
        assert ran.err.startswith(f"kernels.toml:{place}: error: "), ran.err
    for part in printed.split(" | "):
        assert part in ran.err
    assert max(len(line) for line in ran.err.splitlines()) < 250
    assert not (folder / "dist").exists()


@pytest.mark.parametrize(
    ("args", "printed"),
    [
        (["build", "absent.toml"], "cannot read absent.toml: No such file or directory | give a"),
        (["build", "kernel.toml"], "did you mean 'kernels.toml'?"),
        (["build", "."], "cannot read .: Is a directory"),
        (["build", "k.py"], "k.py:1:8: error: expected TOML"),
        (["build", "latin.toml"], "in UTF-8, latin.toml is not at line 2, byte 7"),
        (["build", "--target", "sm_90"], "did you mean 'sm_90a'?"),
        (["build", "--kernel", "ad"], "expected a kernel of kernels.toml (add), got 'ad' | 'add'?"),
        (["build", "--host", "x86"], "expected a host (x86_64 or aarch64), got 'x86'"),
    ],
)
def test_a_build_of_what_is_not_there(
    run: Run, folder: Path, args: list[str], printed: str
) -> None:
    (folder / "latin.toml").write_bytes(b"\n# caf \xe9\n")
    ran = run(*args)
    assert ran.code == 1
    for part in printed.split(" | "):
        assert part in ran.err
    assert not (folder / "dist").exists()


# ---------------------------------------------------------------------------------------- builds

_FAILING = """
[[kernel]]
name = "sometimes"
source = "k.py:add"
[kernel.signature]
x_ptr = "*fp32"
y_ptr = "*fp32"
n = "i32"
[kernel.configs]
BLOCK = [64, 100]

[[kernel]]
name = "on_sm_80_only"
source = "k.py:newer"
[kernel.signature]
p = "*fp32"
[kernel.choices]
WIDE = [true, false]
"""
_NEWER = """

ARCH = tl.constexpr(triton.runtime.driver.active.get_current_target().arch)

@triton.jit
def newer(p, WIDE: tl.constexpr):
    if WIDE and ARCH >= 90:
        tl.store(p, undefined)
    tl.store(p, 1.0)
"""


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_failing_kernel_loses_nothing(run: Run, folder: Path) -> None:
    assert run("build").code == 0
    before = _files(folder / "dist")
    (folder / "k.py").write_text(_HEAD + _ADD + _NEWER)
    manifest = _MANIFEST.replace('["sm_90a"]', '["sm_90a", "sm_80"]') + _FAILING
    (folder / "kernels.toml").write_text(manifest)

    ran = run("build", "-j", "2")
    assert ran.code == 1
    assert ran.out == ""
    # Each mistake is told once, with the kernel, the target and the config it is in.
    assert ran.err.count("power of two, got 100 - 0 = 100") == 1
    assert "k.py:6:36: error: the extent of arange" in ran.err
    assert "  note: in sometimes sm_90a BLOCK=100\n  note: in sometimes sm_80 BLOCK=100" in ran.err
    assert "k.py:15:21: error: undefined is not defined" in ran.err
    assert "  note: in on_sm_80_only sm_90a WIDE=true\n" in ran.err
    assert "on_sm_80_only sm_80 WIDE=true FAILED" not in ran.err
    assert "aotc: 3 failed, nothing is written (7 compiled, 0 cached, " in ran.err
    assert _files(folder / "dist") == before

    again = run("build", "--keep-going")
    assert again.code == 1
    assert "aotc: 3 failed, wrote the rest (0 compiled, 7 cached, " in again.err
    assert _files(folder / "dist")["demo.aotc"] != before["demo.aotc"]
    listed = json.loads(run("inspect", "dist/demo.aotc", "--json").out)
    assert [
        (kernel["name"], variant["target"])
        for kernel in listed["kernels"]
        for variant in kernel["variants"]
    ] == [
        ("add", "sm_80"),
        ("add", "sm_90a"),
        ("on_sm_80_only", "sm_80"),
        ("on_sm_80_only", "sm_80"),
        ("on_sm_80_only", "sm_90a"),
        ("sometimes", "sm_80"),
        ("sometimes", "sm_90a"),
    ]


def test_a_failure_as_json(run: Run, folder: Path) -> None:
    (folder / "k.py").write_text(_HEAD + _ADD.replace("o < n", "o < m"))
    ran = run("build", "--json", "-j", "1")
    assert (ran.code, ran.err) == (1, "")
    result = json.loads(ran.out)
    assert (result["status"], result["files"]) == ("failed", [])
    (error,) = result["errors"]
    assert error["in"] == "add sm_90a"
    assert error["report"].startswith("k.py:7:53: error: m is not defined")


@pytest.mark.parametrize(
    ("output", "printed"),
    [
        ("k.py", "error: cannot make the folder k.py: File exists"),
        ("k.py/dist", "error: cannot make the folder k.py/dist: Not a directory"),
        ("taken", "error: cannot write taken/demo.aotc: Is a directory"),
    ],
)
def test_an_output_that_cannot_be_written(
    run: Run, folder: Path, output: str, printed: str
) -> None:
    (folder / "taken" / "demo.aotc").mkdir(parents=True)
    (folder / "taken" / "demo.h").write_text("older")
    ran = run("build", "-j", "1", "-o", output)
    assert ran.code == 1
    assert printed in ran.err
    assert "nothing is written (1 compiled" in ran.err
    # Nothing of it is new: no header without its archive, no temporary file.
    assert sorted(path.name for path in (folder / "taken").iterdir()) == ["demo.aotc", "demo.h"]
    assert (folder / "taken" / "demo.h").read_text() == "older"


@pytest.mark.parametrize(
    ("old", "new", "printed"),
    [
        ('"demo"', '"aotc"', "an archive called 'aotc' would declare what the runtime declares"),
        ("source", 'name = "int"\nsource', "'int' and 'int_' are both `int_` in C"),
    ],
)
def test_names_that_collide_in_the_header(
    run: Run, folder: Path, old: str, new: str, printed: str
) -> None:
    other = _TWICE.replace("source", 'name = "int_"\nsource')
    (folder / "kernels.toml").write_text(_MANIFEST.replace(old, new) + other)
    ran = run("build", "-j", "1")
    assert ran.code == 1
    assert printed in ran.err
    assert "help: rename" in ran.err
    assert list((folder / "dist").glob("*")) == []


def test_a_system_that_starts_no_process_is_told_as_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_process: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(workers.SpawnProcess, "start", refuse)
    assert cli.run(["build", "-j", "1"]) == 1
    assert capsys.readouterr().err == (
        "error: Resource temporarily unavailable (errno 11)\n"
        "  help: build with fewer jobs (-j), or raise the limit of processes (ulimit -u)\n"
    )
    assert not (folder / "dist").exists()


# -------------------------------------------------------------------------------------- archives


def test_archives_that_are_none(run: Run, folder: Path) -> None:
    assert run("build", "-j", "1").code == 0
    good = (folder / "dist" / "demo.aotc").read_bytes()
    contents = {
        "not an archive": [b"", good[:1], good[:127], b"hello\n" * 99, b"\x7fELF" + bytes(300)],
        "the archive is truncated": [good[:128], good[: len(good) // 2], good[:-1]],
        "followed by other bytes": [good + b"x"],
        "CHECKSUM": [_flipped(good, 200), _flipped(good, len(good) - 100)],
        "VERSION: the archive has format 99.0, this reader knows 1.": [
            good[:8] + b"\x63" + good[9:]
        ],
    }
    for printed, files in contents.items():
        for content in files:
            (folder / "bad.aotc").write_bytes(content)
            ran = run("inspect", "bad.aotc")
            assert (ran.code, ran.out) == (1, "")
            assert ran.err.startswith("aotc: bad.aotc: ")
            assert printed in ran.err
    for name, printed in (
        ("none.aotc", "cannot read none.aotc: No such file or directory"),
        ("dist", "cannot read dist: Is a directory"),
        ("dist/demo.h", "not an archive"),
        ("/dev/null", "expected a regular file, got a character device"),
    ):
        for args in (["inspect", name], ["inspect", name, "--json"]):
            ran = run(*args)
            assert (ran.code, ran.out) == (1, "")
            assert printed in ran.err


def _flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


# ----------------------------------------------------------------- files of the wrong kind or size

_READERS = [
    ("m.toml", ("build", "{}"), "expected a manifest, cannot read {}: "),
    ("m.toml", ("verify", "{}"), "expected a manifest, cannot read {}: "),
    ("m.py", ("dump", "{}:add", "--stage", "tile"), "expected a kernel source, cannot read {}: "),
    ("m.py", ("explain", "{}:add"), "expected a kernel source, cannot read {}: "),
    ("m.aotc", ("inspect", "{}"), "aotc: {}: "),
    ("m.aotc", ("verify", "{}"), "aotc: {}: "),
]


@pytest.mark.parametrize(("name", "args", "printed"), _READERS)
@pytest.mark.parametrize("kind", ["FIFO", "device", "huge", "folder"])
def test_what_is_no_file_to_read(
    run: Run, folder: Path, name: str, args: tuple[str, ...], printed: str, kind: str
) -> None:
    """Neither waited for nor read: a FIFO would block for ever, the others fill the memory."""
    path = folder / name
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "huge":
        path.touch()
        os.truncate(path, 1 << 32)
    else:
        path.mkdir()
    ran = run(*(arg.format(name) for arg in args))
    assert (ran.code, ran.out) == (1, "")
    assert printed.format(name) in ran.err
    reasons = {
        "FIFO": "expected a regular file, got a FIFO",
        "device": "expected a regular file, got a character device",
        "huge": "not an archive" if name == "m.aotc" else "at most 8388608 bytes, got 4294967296",
        "folder": "Is a directory",
    }
    assert reasons[kind] in ran.err


def test_what_an_earlier_build_left_is_not_read_whole(run: Run, folder: Path) -> None:
    (folder / "dist").mkdir()
    os.mkfifo(folder / "dist" / "demo.h")
    (folder / "dist" / "demo.aotc").symlink_to("/dev/zero")
    (folder / "dist" / "libdemo.a").touch()
    os.truncate(folder / "dist" / "libdemo.a", 1 << 36)
    assert run("build", "-j", "1").code == 0
    assert all(0 < len(content) < 1 << 20 for content in _files(folder / "dist").values())


def test_a_module_that_shadows_another_is_compiled_anew(run: Run, folder: Path) -> None:
    (folder / "pkg").mkdir()
    for path in ("pkg/__init__.py", "pkg/k.py"):
        (folder / path).write_text(
            f"from helper import f\n{_HEAD}{_ADD}".replace("+ o, tl", "+ f(o), tl")
        )
    helper = "import triton\n@triton.jit\ndef f(x):\n    return x + {}\n"
    (folder / "helper.py").write_text(helper.format(1))
    (folder / "kernels.toml").write_text(_MANIFEST.replace("k.py", "pkg/k.py"))
    found: list[bytes] = []
    for shadow in ("", "pkg/helper.py", ""):
        if shadow:
            (folder / shadow).write_text(helper.format(2))
        assert run("build", "-j", "1").code == 0
        found.append((folder / "dist" / "demo.aotc").read_bytes())
        if shadow:
            (folder / shadow).unlink()
    assert found[0] == found[2] != found[1]


def test_swapped_entries_of_the_cache_are_not_taken(run: Run, folder: Path) -> None:
    (folder / "kernels.toml").write_text(
        _MANIFEST.replace("[kernel.constants]\nBLOCK = 128", "[kernel.configs]\nBLOCK = [64, 128]")
    )
    assert run("build", "-j", "1").code == 0
    before = _files(folder / "dist")
    one, two = (path for path in (folder / "cache").rglob("kernels/*/*") if path.is_file())
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    ran = run("build", "-j", "1", "-o", "again")
    assert ran.code == 0
    assert ran.err.count("is damaged or in the wrong place; its kernel is compiled again") == 2
    assert _files(folder / "again") == before


# ---------------------------------------------------------------------------- texts and their names


def _is_harmless(text: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"demo"', '"de\\u001b[31mmo"'),
        ('"0.1.0"', '"0.1.0-\\u001b"'),
        ("k.py:add", "k\\u001b[31m\\naotc: fine.py:add"),
        ("BLOCK = 128", '"BL\\u009bOCK" = 128'),
        ("BLOCK = 128", 'BLOCK = "a\\u202e\\u001bb"'),
        ("cdiv(n, BLOCK)", "cdiv(n, \\u001b)"),
    ],
)
def test_what_a_manifest_says_cannot_steer_the_terminal(
    run: Run, folder: Path, old: str, new: str
) -> None:
    (folder / "kernels.toml").write_text(_MANIFEST.replace(old, new))
    ran = run("build", "-j", "1")
    assert ran.code == 1
    assert _is_harmless(ran.err)
    assert not any(line.startswith("aotc: fine") for line in ran.err.splitlines())


@pytest.mark.parametrize("name", ["a\x1b[31m\nb", "caf\udce9"])
def test_names_of_files_cannot_steer_the_terminal(run: Run, name: str) -> None:
    for args in (
        ("build", f"{name}.toml"),
        ("inspect", f"{name}.aotc"),
        ("verify", f"{name}.aotc"),
        ("dump", f"{name}.py:add", "--stage", "tile"),
        ("build", "--target", name),
        ("build", "--kernel", name),
        ("build", "--host", name),
    ):
        ran = run(*args)
        assert (ran.code, ran.out) == (1, "")
        assert _is_harmless(ran.err)


@pytest.mark.parametrize(
    "content",
    [
        ("\ufeff" + _HEAD + _ADD).encode(),
        (_HEAD + _ADD).replace("\n", "\r\n").encode(),
        ("# coding: latin-1\n# caf\xe9\n" + _HEAD + _ADD).encode("latin-1"),
    ],
    ids=["byte-order mark", "CRLF", "latin-1"],
)
def test_texts_of_other_systems_are_read(run: Run, folder: Path, content: bytes) -> None:
    (folder / "k.py").write_bytes(content)
    (folder / "kernels.toml").write_bytes(
        b"\xef\xbb\xbf" + _MANIFEST.replace("\n", "\r\n").encode()
    )
    assert run("dump", "kernels.toml:add", "--stage", "tile").code == 0


# -------------------------------------------------------------------------------- dump and usage


@pytest.mark.parametrize(
    ("subject", "settings", "printed"),
    [
        ("k.py:add", ("x_ptr=*fp32",), "expected a type for argument 'y_ptr' of add | --set"),
        ("k.py:add", _SETTINGS[:3], "for the tl.constexpr parameter 'BLOCK' | --set BLOCK=128"),
        ("k.py:add", (*_SETTINGS, "n=int32"), "a dtype, got 'int32' | did you mean 'i32'?"),
        ("k.py:add", (*_SETTINGS, "BLOKC=1"), "got 'BLOKC' | did you mean 'BLOCK'?"),
        ("k.py:add", (*_SETTINGS, "zzz=1"), "got 'zzz' | there are x_ptr, y_ptr, n, BLOCK,"),
        ("k.py:add", (*_SETTINGS, "num_warps=3"), "a power of two from 1 to 64 for num_warps"),
        ("k.py:add", (*_SETTINGS, "num_warps=64"), "sm_90a can hold: num_warps = 64 takes 2048"),
        ("kernels.toml:add", ("num_warps=64",), "sm_90a can hold: num_warps = 64 takes 2048"),
        ("k.py:add", (*_SETTINGS, "BLOCK=100"), "must be a power of two, got 100"),
        ("k.py:add", (*_SETTINGS, "BLOCK=big"), "expected a number or a tile for `*`, got 'big'"),
        ("k.py:add", (*_SETTINGS, "x_ptr=tensordesc<fp16[BLOK]>"), "extent 'BLOK' | 'BLOCK'?"),
        ("k.py:add", (*_SETTINGS, "x_ptr=tensordesc<fp16[64]>"), "a value, got tensordesc<fp16"),
        ("k.py:ad", (), "expected a function of k.py, got 'ad' | did you mean 'add'?"),
        ("kk.py:add", (), "cannot read kk.py | did you mean 'k.py'?"),
        ("kernels.toml:ad", (), "expected a kernel of kernels.toml (add), got 'ad'"),
        ("k.py", (), "expected SOURCE.py:KERNEL or MANIFEST:KERNEL, got 'k.py'"),
    ],
)
def test_a_wrong_dump(run: Run, subject: str, settings: tuple[str, ...], printed: str) -> None:
    ran = run("dump", subject, "--stage", "ptx", *_set(settings))
    assert (ran.code, ran.out) == (1, "")
    for part in printed.split(" | "):
        assert part in ran.err


@pytest.mark.parametrize(
    ("args", "printed"),
    [
        ([], "Usage: aotc"),
        (["bild"], "Did you mean 'build'?"),
        (["build", "--tagret", "sm_80"], "Did you mean '--target'?"),
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
        ("k.py:add", {"signature": {"x": "i32"}}, "names 'x', which is no parameter of add"),
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
    usual = {"signature": dict(s.split("=") for s in _SETTINGS[:3]), "constants": {"BLOCK": 64}}
    with pytest.raises(DiagnosticError) as caught:
        aotc.compile(kernel, **{**usual, **options})  # pyright: ignore[reportArgumentType]
    assert printed in str(caught.value)
