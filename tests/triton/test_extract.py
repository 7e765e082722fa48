"""Extracted kernels: recorded with the values of their names, built, launched from the archive."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from aotc import cli
from aotc.triton.extract import extract
from tests.support.fake_gpu import build
from tests.support.recorded import STAND_IN

SOURCE = """
import inspect
import linecache
import triton
import triton.language as tl

def found(name):
    return globals()[name]

def twice(x): return x + x
twice = triton.jit(twice)
chosen = found("twice")

@triton.jit
def of_a_call(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), chosen(n))

def make(scale, op):
    @triton.jit
    def captures(x, n, BLOCK: tl.constexpr):
        tl.store(x + tl.arange(0, BLOCK), op(n) * scale)
    return captures

def within():
    @triton.jit
    def plain(x, n, BLOCK: tl.constexpr):
        tl.store(x + tl.arange(0, BLOCK), n)
    return plain

def generated(text):
    source = f"def kernel(x, n, BLOCK: tl.constexpr):\\n    tl.store(x + tl.arange(0, BLOCK), {text})\\n"
    name = f"<{text}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    names = {}
    exec(compile(source, name, "exec"), globals(), names)
    return triton.jit(names["kernel"])

@triton.jit
def applies(x, n, BLOCK: tl.constexpr, OP: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), OP(n))

def plus(amount):
    @triton.jit
    def added(x): return x + amount
    return added

def template(): pass

def copied(text):
    # A template gets another source, under another name, as in libraries that fuse functions.
    exec("def made(x, n, BLOCK: tl.constexpr): pass", globals())
    template.__signature__ = inspect.signature(made)
    function = triton.jit(template)
    function._src = f"def made(x, n, BLOCK: tl.constexpr):\\n    tl.store(x + tl.arange(0, BLOCK), {text})\\n"
    try:
        function.src = function._src
    except AttributeError:
        pass  # a property
    return function

def launch(one, x):
    if one == "copied": copied("chosen(n) * 3")[(7,)](x, 7, BLOCK=32)
    elif one == "call": of_a_call[(2,)](x, 7, BLOCK=32)
    elif one == "generated": generated("chosen(n) + 1")[(3,)](x, 7, BLOCK=32)
    elif one == "other": generated("chosen(n) + 2")[(3,)](x, 7, BLOCK=32)
    elif one == "within": within()[(6,)](x, 7, BLOCK=32)
    elif one[:4] == "plus": applies[(4,)](x, 7, BLOCK=32, OP=plus(int(one[4:])))
    else: make(int(one), plus(3))[(5,)](x, 7, BLOCK=32)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program's record, and the archive built from it."""
    folder = tmp_path_factory.mktemp("extracts")
    (folder / "ops.py").write_text(SOURCE)
    (folder / "app.py").write_text(
        "import ops\nfor one in ('call', 'within', 'generated', 'copied', 'plus1', '2', '3'): ops.launch(one, '*fp32')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(STAND_IN))
        assert cli.run(["record", "--strict", "--", sys.executable, "app.py"]) == 0
    arguments = ["build", str(folder / "record" / "kernels.toml"), "-o", str(folder / "dist")]
    assert cli.run([*arguments, "-j", "1", "--no-cache"]) == 0
    for path in (folder / "dist").glob("record.*"):
        path.rename(path.with_name(path.name.replace("record", "ops")))
    (folder / "record").rename(folder / "elsewhere")  # the program does without its record
    build(folder)
    return folder


@pytest.fixture
def program(launches: Any, folder: Path) -> Any:
    def program(body: str) -> list[Any]:
        start = "install(stand_in=True)\nimport ops\n"
        return launches(start + body, folder=folder, path=(str(folder),), cwd=folder)

    return program


def test_what_was_recorded_launches(program: Any) -> None:
    """From sources without a file, with captured values and functions, and with globals computed by calls."""
    assert program("""
for one in ("call", "generated", "plus1", "2", "3", "2", "within", "copied"):
    launched(lambda: ops.launch(one, x))
""") == [[[grid, 1, 1], 128] for grid in (2, 3, 4, 5, 5, 5, 6, 7)]


@pytest.mark.parametrize("constant", ["4", "other", "plus2"])
def test_other_values_are_another_kernel(program: Any, constant: str) -> None:
    """Captured values, captures of a constant function, and a changed source."""
    ((error, text),) = program(f"launched(lambda: ops.launch({constant!r}, x))")
    assert error == "NotInArchiveError"
    assert "is in no archive" in text


def test_a_global_that_changed_is_another_kernel(program: Any) -> None:
    ((error, _),) = program("ops.chosen = ops.applies\nlaunched(lambda: ops.launch('call', x))")
    assert error == "NotInArchiveError"


def test_the_manifest_says_why(folder: Path) -> None:
    text = (folder / "elsewhere" / "kernels.toml").read_text()
    assert "# extracted: kernel has no file\n" in text
    assert text.count("# extracted: make.<locals>.captures captures op, scale\n") == 2
    assert "# extracted: of_a_call has what only a run tells: " in text
    assert "# extracted: template was given another source\n" in text
    assert "rec/extracted" not in text


def test_no_row_is_suggested_for_a_function_with_another_source(program: Any) -> None:
    ((error, text),) = program("launched(lambda: ops.copied('n')[(7,)](x, 7, BLOCK=32))")
    assert error == "NotInArchiveError"
    assert "template was given another source; aotc record extracts it" in text


class _Jitted:
    def __init__(self, fn: Any) -> None:
        self.fn = fn


def _made(value: Any) -> Any:
    def kernel(x: Any) -> Any:
        return x + value

    return _Jitted(kernel)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("-inf"), 'float("-inf")'),
        (0.1, "0.1"),
        (True, "True"),
        ("a'b", '"a\'b"'),
        ((1, (2.5, None)), ""),
        ((1, (2.5,)), "(1, (2.5,))"),
        ([1], ""),
        (object(), ""),
    ],
)
def test_values_are_as_a_source_says_them(value: object, text: str) -> None:
    if not text:
        with pytest.raises(ValueError, match="value is of type"):
            extract(_made(value))
        return
    extracted = extract(_made(value))
    assert f"value = triton.language.constexpr({text})\n" in extracted.files[extracted.file]
    assert extracted.digest == extract(_made(value)).digest


def test_the_name_of_a_file_covers_those_that_it_imports() -> None:
    def digest(value: int) -> str:
        inner = _made(value)

        def outer(x: Any) -> Any:
            return inner(x)

        return extract(_Jitted(outer)).digest

    assert digest(1) == digest(1) != digest(2)
