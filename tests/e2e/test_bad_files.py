"""Every mistake in manifests, archives and other files, as a user makes it.

The exit code is 1, nothing is written, and the output of an earlier build stays.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from aotc import cli
from aotc.package.builder import workers
from tests.support.mistakes import (
    ADD,
    HEAD,
    MANIFEST,
    Run,
)

pytestmark = pytest.mark.usefixtures("one_worker")

# ------------------------------------------------------------------------------------- manifests

_TWICE = MANIFEST[MANIFEST.index("[[kernel") :]
_MISTAKES = [
    # old | new | position | message
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
    (MANIFEST, "", "1:1", "expected a table at 'package', which is missing"),
    (MANIFEST, "a = " + "[" * 5000, "", "the values in kernels.toml are nested too deeply"),
    (
        "BLOCK = 128\n",
        "BLOCK = 128\n[kernel.configs]\nnum_warps = [32]\nnum_consumer_groups = [2]",
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


@pytest.mark.parametrize(("old", "new", "position", "printed"), _MISTAKES)
def test_a_wrong_manifest(
    run: Run, folder: Path, old: str, new: str, position: str, printed: str
) -> None:
    assert MANIFEST.count(old) == 1
    (folder / "kernels.toml").write_text(MANIFEST.replace(old, new))
    ran = run("build", "-j", "1")
    assert ran.code == 1
    assert ran.out == ""
    if position:
        assert ran.err.startswith(f"kernels.toml:{position}: error: "), ran.err
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
        (["build", "k.py"], "write one for its kernels: `aotc init k.py`"),
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
    (folder / "k.py").write_text(HEAD + ADD + _NEWER)
    manifest = MANIFEST.replace('["sm_90a"]', '["sm_90a", "sm_80"]') + _FAILING
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
    assert ran.err.endswith("; --keep-going writes the rest\n")
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
    (folder / "k.py").write_text(HEAD + ADD.replace("o < n", "o < m"))
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
        ("k.py", "error: cannot make the folder k.py: a file of that name is there"),
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
    assert "--keep-going" not in ran.err
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
    (folder / "kernels.toml").write_text(MANIFEST.replace(old, new) + other)
    ran = run("build", "-j", "1")
    assert ran.code == 1
    assert printed in ran.err
    assert "help: rename" in ran.err
    assert list((folder / "dist").glob("*")) == []


@pytest.mark.usefixtures("own_workers")
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
        "does not match: the file changed": [_flipped(good, 200), _flipped(good, len(good) - 100)],
        "the archive has format 99.0, this reader knows 9.": [good[:8] + b"\x63" + good[9:]],
    }
    for printed, files in contents.items():
        for content in files:
            (folder / "bad.aotc").write_bytes(content)
            ran = run("inspect", "bad.aotc")
            assert (ran.code, ran.out) == (1, "")
            assert ran.err.startswith("bad.aotc: error: ")
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


def _flipped(content: bytes, offset: int) -> bytes:
    return content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :]


# ----------------------------------------------------------------- files of the wrong kind or size

_READERS = [
    ("m.toml", ("build", "{}"), "expected a manifest, cannot read {}: "),
    ("m.toml", ("verify", "{}"), "expected a manifest, cannot read {}: "),
    ("m.py", ("dump", "{}:add", "--stage", "tile"), "expected a kernel source, cannot read {}: "),
    ("m.py", ("explain", "{}:add"), "expected a kernel source, cannot read {}: "),
    ("m.aotc", ("inspect", "{}"), "error: "),
    ("m.aotc", ("verify", "{}"), "error: "),
]


@pytest.mark.parametrize(("name", "args", "printed"), _READERS)
@pytest.mark.parametrize("kind", ["FIFO", "device", "huge", "folder"])
def test_what_is_no_file_to_read(
    run: Run, folder: Path, name: str, args: tuple[str, ...], printed: str, kind: str
) -> None:
    """Neither waited for nor read."""
    _make_unreadable(folder / name, kind)
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


@pytest.mark.parametrize("kind", ["FIFO", "device", "huge", "folder"])
@pytest.mark.parametrize(
    ("name", "args", "printed"),
    [
        ("dist/demo.sources.json", ("split", "dist/demo.aotc"), "expected a file of `aotc build`"),
        (
            "measured.json",
            ("report", "dist/demo.aotc", "--measured", "measured.json"),
            "expected JSON",
        ),
    ],
)
def test_what_lies_beside_an_archive_is_no_file(
    run: Run, folder: Path, name: str, args: tuple[str, ...], printed: str, kind: str
) -> None:
    assert run("build", "-j", "1").code == 0
    path = folder / name
    path.unlink(missing_ok=True)
    _make_unreadable(path, kind)
    ran = run(*args)
    assert (ran.code, ran.out) == (1, "")
    assert printed in ran.err


def _make_unreadable(path: Path, kind: str) -> None:
    """Make files impossible to read whole: a FIFO would block for ever, others fill the memory."""
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "huge":
        path.touch()
        os.truncate(path, 1 << 32)
    else:
        path.mkdir()


def test_what_an_earlier_build_left_is_not_read_whole(run: Run, folder: Path) -> None:
    (folder / "dist").mkdir()
    for name in ("demo.h", "libdemo.a"):
        (folder / "dist" / name).touch()
        os.truncate(folder / "dist" / name, 1 << 36)
    assert run("build", "-j", "1").code == 0
    assert all(0 < len(content) < 1 << 20 for content in _files(folder / "dist").values())


def test_what_is_no_file_stays_as_it_is(run: Run, folder: Path) -> None:
    (folder / "dist").mkdir()
    os.mkfifo(folder / "dist" / "demo.h")
    (folder / "dist" / "demo.aotc").symlink_to("/dev/zero")
    ran = run("build", "-j", "1")
    assert ran.code == 1
    assert "expected a regular file, got a " in ran.err
    assert (folder / "dist" / "demo.h").is_fifo()
    assert (folder / "dist" / "demo.aotc").readlink() == Path("/dev/zero")
    assert not (folder / "dist" / "libdemo.a").exists()


def test_a_module_that_shadows_another_is_compiled_anew(run: Run, folder: Path) -> None:
    (folder / "pkg").mkdir()
    for path in ("pkg/__init__.py", "pkg/k.py"):
        (folder / path).write_text(
            f"from helper import f\n{HEAD}{ADD}".replace("+ o, tl", "+ f(o), tl")
        )
    helper = "import triton\n@triton.jit\ndef f(x):\n    return x + {}\n"
    (folder / "helper.py").write_text(helper.format(1))
    (folder / "kernels.toml").write_text(MANIFEST.replace("k.py", "pkg/k.py"))
    archives: list[bytes] = []
    for shadow in ("", "pkg/helper.py", ""):
        if shadow:
            (folder / shadow).write_text(helper.format(2))
        assert run("build", "-j", "1").code == 0
        archives.append((folder / "dist" / "demo.aotc").read_bytes())
        if shadow:
            (folder / shadow).unlink()
    assert archives[0] == archives[2] != archives[1]


def test_swapped_entries_of_the_cache_are_not_taken(run: Run, folder: Path) -> None:
    (folder / "kernels.toml").write_text(
        MANIFEST.replace("[kernel.constants]\nBLOCK = 128", "[kernel.configs]\nBLOCK = [64, 128]")
    )
    assert run("build", "-j", "1").code == 0
    before = _files(folder / "dist")
    first, two = (path for path in (folder / "cache").rglob("kernels/*/*") if path.is_file())
    content = first.read_bytes()
    first.write_bytes(two.read_bytes())
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
    (folder / "kernels.toml").write_text(MANIFEST.replace(old, new))
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
        ("\ufeff" + HEAD + ADD).encode(),
        (HEAD + ADD).replace("\n", "\r\n").encode(),
        ("# coding: latin-1\n# caf\xe9\n" + HEAD + ADD).encode("latin-1"),
    ],
    ids=["byte-order mark", "CRLF", "latin-1"],
)
def test_texts_of_other_systems_are_read(run: Run, folder: Path, content: bytes) -> None:
    (folder / "k.py").write_bytes(content)
    (folder / "kernels.toml").write_bytes(b"\xef\xbb\xbf" + MANIFEST.replace("\n", "\r\n").encode())
    assert run("dump", "kernels.toml:add", "--stage", "tile").code == 0
