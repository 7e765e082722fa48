"""`aotc split`, `merge`, `wheel` and `report`: files, messages and exit codes."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotc.package.archive import file as archives
from aotc.package.archive.index import Choice, Kernel
from aotc.package.archive.label import variant_label
from tests.support.command_line import MANIFEST

_LOGGED = """\
JIT compilation during inference: add (key=[('*fp16', 'D'), ('i32', ''), ('constexpr', 'ok')]{}).
"""

pytestmark = pytest.mark.usefixtures("one_worker")


@pytest.fixture
def built(folder: Path, run: Any) -> Path:
    """An archive for two targets."""
    manifest = MANIFEST.replace('["sm_90a"]', '["sm_80", "sm_90a"]')
    (folder / "kernels.toml").write_text(manifest)
    assert run("build")[0] == 0
    return folder / "dist" / "demo.aotc"


def test_split_and_merge(built: Path, run: Any) -> None:
    code, out, _ = run("split", str(built), "-o", "parts", "--json")
    assert code == 0
    paths = [entry["path"] for entry in json.loads(out)]
    assert paths == ["parts/demo-sm_80.aotc", "parts/demo-sm_90a.aotc"]
    assert run("merge", *reversed(paths), "-o", "joined/demo.aotc")[0] == 0
    for suffix in (".aotc", ".sources.json"):
        joined = Path("joined/demo").with_suffix(suffix).read_bytes()
        assert joined == built.with_suffix(suffix).read_bytes()


def test_parts_are_those_of_builds_for_one_target(built: Path, run: Any) -> None:
    """Builds for single targets merge to the bytes of a joint build."""
    for target in ("sm_80", "sm_90a"):
        assert run("build", "--target", target, "-o", target)[0] == 0
    assert run("merge", "sm_80/demo.aotc", "sm_90a/demo.aotc", "-o", "demo.aotc")[0] == 0
    assert Path("demo.aotc").read_bytes() == built.read_bytes()


def test_split_writes_nothing_for_a_wrong_target(built: Path, run: Any) -> None:
    code, _, err = run("split", str(built), "--target", "sm_80", "--target", "sm_99", "-o", "parts")
    assert code == 1
    assert "expected a target of demo (sm_80, sm_90a), got 'sm_99'" in err
    assert not Path("parts").exists()


def test_merge_says_what_differs(built: Path, run: Any) -> None:
    Path("k.py").write_text(Path("k.py").read_text() + "# changed\n")
    assert run("build", "-o", "other")[0] == 0
    code, _, err = run("merge", str(built), "other/demo.aotc", "-o", "demo.aotc")
    assert code == 1
    assert "different sources" in err
    assert not Path("demo.aotc").exists()


def test_sources_of_another_build_are_refused(built: Path, run: Any) -> None:
    path = built.with_suffix(".sources.json")
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "archive_sha256": "0" * 64}))
    code, _, err = run("wheel", str(built))
    assert code == 1
    assert "was written for another archive" in err
    path.write_text("[]")
    assert run("wheel", str(built))[0] == 1
    path.unlink()
    assert run("wheel", str(built))[0] == 0


def test_wheels(built: Path, run: Any) -> None:
    code, out, _ = run("wheel", str(built), "-o", "wheels", "--json")
    assert code == 0
    names = [Path(entry["path"]).name for entry in json.loads(out)]
    assert names == ["demo_sm80-0.1.0-py3-none-any.whl", "demo_sm90a-0.1.0-py3-none-any.whl"]
    with zipfile.ZipFile(Path("wheels") / names[1]) as wheel:
        assert wheel.testzip() is None
        assert "demo_sm90a/demo.sources.json" in wheel.namelist()
    together = run("wheel", str(built), "--together", "--name", "other", "--version", "2.0")
    assert (together[0], together[1].split(":")[0]) == (0, "dist/other-2.0-py3-none-any.whl")
    assert run("wheel", str(built), "--version", "x")[0] == 1


def test_report(built: Path, run: Any) -> None:
    code, out, _ = run("report", str(built), "--json", "--html", "report.html")
    assert code == 0
    report = json.loads(out)
    assert report["size_bytes"] == built.stat().st_size
    assert Path("report.html").read_text().startswith("<!DOCTYPE html>")
    code, out, _ = run("report", str(built))
    assert (code, out.splitlines()[0].split(":")[0]) == (0, "demo 0.1.0")


@pytest.mark.parametrize("command", ["split", "wheel", "report"])
def test_what_is_no_archive(folder: Path, run: Any, command: str) -> None:
    code, _, err = run(command, "kernels.toml")
    assert code == 1
    assert "kernels.toml" in err
    assert "not an archive" in err
    assert run(command, "missing.aotc")[0] == 1


def test_frames_may_be_stored(built: Path, run: Any) -> None:
    """A build and a merge of one archive write the same; the way back drops texts no launch reads."""
    assert run("build", "--frames", "stored", "-o", "stored")[0] == 0
    assert run("merge", str(built), "-o", "merged.aotc", "--frames", "stored")[0] == 0
    stored = Path("stored/demo.aotc").read_bytes()
    assert Path("merged.aotc").read_bytes() == stored
    assert int.from_bytes(stored[16:24], "little") == 0
    assert run("merge", "merged.aotc", "-o", "alone.aotc", "--frames", "alone")[0] == 0
    assert Path("alone.aotc").stat().st_size < len(stored)
    assert run("inspect", "merged.aotc")[0] == 0


def _writers(built: Path) -> dict[str, tuple[str, ...]]:
    """Commands that write a file, then commands that write a folder; the path comes last."""
    return {
        "merge": ("merge", str(built), "-o"),
        "report": ("report", str(built), "--html"),
        "init": ("init", "jit.py", "--force", "-o"),
        "build": ("build", "-o"),
        "split": ("split", str(built), "-o"),
        "wheel": ("wheel", str(built), "-o"),
        "record": ("record", "--log", "jit.log", "--source", "k.py", "-o"),
    }


@pytest.mark.parametrize("command", ["merge", "report", "init"])
def test_no_output_takes_the_place_of_what_is_no_file(
    built: Path, run: Any, command: str, tmp_path: Path
) -> None:
    Path("jit.py").write_text("import triton\n@triton.jit\ndef f(x):\n    pass\n")
    os.mkfifo("fifo")
    Path("link").symlink_to("fifo")
    before = sorted(tmp_path.iterdir())
    for path in ("fifo", "link"):
        code, _, err = run(*_writers(built)[command], path)
        assert code == 1
        assert f"cannot write {path}: expected a regular file, got a FIFO" in err
        assert Path("fifo").is_fifo()
        assert Path("link").is_symlink()
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("command", ["build", "split", "wheel", "merge", "init", "record"])
def test_a_file_where_a_folder_is_to_be_is_told(built: Path, run: Any, command: str) -> None:
    Path("file").write_text("old")
    Path("jit.log").write_text(_LOGGED)
    path = "file" if command not in ("merge", "init") else "file/demo"
    code, _, err = run(*_writers(built)[command], path)
    assert code == 1
    assert "cannot make the folder file" in err
    assert "bug in aotc" not in err
    assert Path("file").read_text() == "old"


def test_a_build_leaves_links_and_fifos_in_its_folder(built: Path, run: Any) -> None:
    header = built.with_suffix(".h")
    content = header.read_bytes()
    header.unlink()
    header.symlink_to(Path("header").absolute())
    assert run("build")[0] == 0
    assert header.is_symlink()
    assert Path("header").read_bytes() == content
    header.unlink()
    os.mkfifo(header)
    code, _, err = run("build")
    assert code == 1
    assert f"cannot write {header.relative_to(Path.cwd())}: expected a regular file" in err
    assert header.is_fifo()


EVIL = "a\nEVIL\x1b[31m\u202e/../b"


@pytest.fixture
def hostile(built: Path) -> Path:
    """An archive with hostile names, as no build writes them."""
    archive = archives.read(built)

    def renamed(kernel: Kernel) -> Kernel:
        return replace(
            kernel,
            name=EVIL,
            choices=(Choice(EVIL, (EVIL,)),),
            configs=tuple(((EVIL, EVIL), *config) for config in kernel.configs),
            variants=tuple(replace(variant, choices=(EVIL,)) for variant in kernel.variants),
            constants=((EVIL, EVIL),),
        )

    kernels = tuple(map(renamed, archive.kernels))
    path = Path("hostile.aotc")
    archives.write(replace(archive, name=EVIL, version=EVIL, toolchain=EVIL, kernels=kernels), path)
    return path


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("inspect", "hostile.aotc"), 0),
        (("report", "hostile.aotc", "--html", "page.html"), 0),
        (("split", "hostile.aotc", "-o", "parts"), 0),
        (("split", "hostile.aotc", "--target", "sm_100a", "-o", "parts"), 1),
        (("merge", "hostile.aotc", "dist/demo.aotc", "-o", "merged.aotc"), 1),
        (("merge", "hostile.aotc", "-o", "merged.aotc"), 0),
        (("wheel", "hostile.aotc", "-o", "wheels"), 1),
        (("explain", "hostile.aotc"), 1),
        (("explain", "hostile.aotc", "--variant", "LABEL"), 0),
        (("dump", "hostile.aotc", "--stage", "ptx"), 1),
        (("dump", "hostile.aotc", "--stage", "ptx", "--variant", "LABEL"), 1),
        (("verify", "hostile.aotc"), 1),
        (("verify", "hostile.aotc", "-v"), 1),
        (("doctor", "hostile.aotc"), None),
    ],
)
def test_no_name_of_an_archive_begins_a_line(
    hostile: Path, run: Any, tmp_path: Path, command: tuple[str, ...], code: int | None
) -> None:
    before = {path.name for path in tmp_path.parent.iterdir()}
    kernel = archives.read(hostile).kernels[0]
    label = variant_label(kernel, kernel.variants[0])
    exit_code, out, err = run(*(label if word == "LABEL" else word for word in command))
    assert code in (None, exit_code)
    for line in (out + err).splitlines():
        assert line.isprintable()
        assert not line.lstrip().startswith("EVIL")
    assert {path.name for path in tmp_path.parent.iterdir()} == before
