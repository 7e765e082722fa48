"""`aotc cover` and `aotc bench` on the command line: rows valid in the manifest, measurements."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from aotc import cli
from aotc.package.tuning.shapes import Launch
from aotc.tuning import bench_session
from aotc.tuning.launcher import Launcher
from aotc.tuning.messages import Identity, Times
from tests.support.cover_kernels import MANIFEST, write
from tests.support.fake_compiler import compile_empty

SHAPE = """
[[shape]]
kernel = "scale"
n = 512
"""


def with_row(manifest: str, row: str) -> str:
    """Return the manifest with a row in place of the one of its key, or after its header."""
    head, _, line = row.partition("\n")
    if head == "[[kernel.config]]":
        return f"{manifest}\n{row}\n"
    section = manifest.index(head)
    before, after = manifest[:section], manifest[section:]
    key = re.escape(line.partition(" = ")[0])
    replaced, count = re.subn(rf"(?m)^{key} = .*$", line.replace("\\", r"\\"), after, count=1)
    return before + (replaced if count else after.replace(head, f"{head}\n{line}", 1))


@pytest.fixture
def cover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    monkeypatch.chdir(tmp_path)

    def cover(shapes: str, *options: str, path: str = "kernels.toml") -> tuple[int, str, str]:
        capsys.readouterr()
        (tmp_path / "shapes.toml").write_text(shapes)
        code = cli.run(["cover", path, "--shapes", "shapes.toml", *options], compile_empty)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return cover


@pytest.mark.parametrize(
    ("shape", "missing", "row"),
    [
        ('types = { T = "fp32" }\nn = 512', "expected T to be one of fp16, bf16", "T = "),
        ("choices = { NEGATE = false }\nn = 512", "expected NEGATE to be one of True", "NEGATE = "),
        ("n = 517", "expected that n is a multiple of 16", 'n = "i32:16?"'),
        ("n = 2048", "no config serves it", "BLOCK = [512, 1024, 2048]"),
        ("n = 512\nstride = 2048", "which is compiled in, got 2048", 'stride = "i32:16?"'),
        ("n = 512\nstride = 2047", "which is compiled in, got 2047", 'stride = "i32"'),
    ],
)
def test_the_row_to_add_serves_the_launch(
    cover: Any, tmp_path: Path, shape: str, missing: str, row: str
) -> None:
    """And the manifest's reader takes it."""
    path = write(tmp_path)
    shape = f'[[shape]]\nkernel = "scale"\n{shape}\n'
    code, out, err = cover(shape, "--json", "--no-compile", "--strict")
    assert code == 1, err
    document = json.loads(out)
    assert all(missing in entry["missing"] for entry in document["launches"] if entry["missing"])
    assert [entry["kernel"] for entry in document["rows"]] == ["scale"]
    assert row in document["rows"][0]["toml"]
    path.write_text(with_row(MANIFEST, document["rows"][0]["toml"]))
    code, out, err = cover(shape, "--json", "--no-compile")
    assert code == 0, err
    assert [entry["missing"] for entry in json.loads(out)["launches"]] == [None] * len(
        document["launches"]
    )


def test_rows_for_several_launches_are_one(cover: Any, tmp_path: Path) -> None:
    write(tmp_path)
    _, out, _ = cover(
        '[[shape]]\nkernel = "scale"\ntypes = { T = ["fp32", "fp64"] }\nn = [512, 2048, 4096]\n',
        "--no-compile",
    )
    assert "scale sm_90a: 6 launches, 6 without a variant (100% by weight), 0 slow\n" in out
    assert "  T=fp32 NEGATE=True n=512 and 2 more: expected T to be one of" in out
    assert "\n# to add to [[kernel]] scale\n[kernel.types]\n" in out
    assert out.count('T = ["fp16", "bf16", "fp32", "fp64"]') == 1


def test_a_config_of_a_list_is_a_whole_table(cover: Any, tmp_path: Path) -> None:
    text = MANIFEST.replace("[kernel.configs]\nBLOCK = [512, 1024]", "")
    text += "[[kernel.config]]\nBLOCK = 512\nnum_warps = 2\n"
    path = write(tmp_path, text)
    _, out, _ = cover(SHAPE.replace("512", "1040"), "--json", "--no-compile")
    (row,) = json.loads(out)["rows"]
    assert row["toml"] == "[[kernel.config]]\nBLOCK = 2048\nnum_warps = 2"
    path.write_text(with_row(text, row["toml"]))
    _, out, _ = cover(SHAPE.replace("512", "1040"), "--json", "--no-compile")
    assert not json.loads(out)["rows"]


def test_a_promise_that_widens_accesses_is_a_row(cover: Any, tmp_path: Path) -> None:
    """Compiling shows that it does; a promise broken by a launch is no row."""
    text = MANIFEST.replace('n = "i32:16"', 'n = "i32"').replace("*T:16", "*T:16?")
    text = text.replace('x = "*T:16?"', 'x = "*T"').replace("[512, 1024]", "[1024]")
    path = write(tmp_path, text)
    shape = '[[shape]]\nkernel = "scale"\ntypes = { T = "bf16" }\nn = [512, 511]\n'
    code, out, err = cover(shape, "--json")
    assert code == 0, err
    even, odd = json.loads(out)["launches"]
    assert [reason["kind"] for reason in even["slow"]] == ["narrow", "narrow"]
    assert "load of x: 2 bytes a thread" in even["slow"][0]["text"]
    assert even["rows"] == [
        '[kernel.signature]\nx = "*T:16?"',
        '[kernel.signature]\nn = "i32:16?"',
    ]
    assert odd["slow"]
    for row in even["rows"]:
        text = with_row(text, row)
    path.write_text(text)
    _, out, _ = cover(shape, "--json")
    even, odd = json.loads(out)["launches"]
    assert not even["slow"]
    assert "n = 511 is no multiple of 16" in odd["slow"][0]["text"]
    assert not odd["rows"]


def test_a_config_that_does_not_fit_serves_no_launch(cover: Any, tmp_path: Path) -> None:
    """A build leaves it out, so a launch takes the next one."""
    text = MANIFEST.replace("[kernel.configs]", "[kernel.limits]\nstrict = true\n[kernel.configs]")
    text = text.replace(
        "BLOCK = [512, 1024]", "BLOCK = [65536, 1024]\nmaxnreg = [24]\nnum_warps = [1, 8]"
    )
    write(tmp_path, text)
    shape = '[[shape]]\nkernel = "scale"\ntypes = { T = "bf16" }\nn = [512, 2048]\n'
    code, out, err = cover(shape, "--json")
    assert code == 0, err
    small, large = json.loads(out)["launches"]
    assert "BLOCK=1024" in small["variant"]
    assert large["missing"] == "no config that serves it fits the target"


def test_a_launch_far_from_what_was_measured_is_not_tuned(cover: Any, tmp_path: Path) -> None:
    """Within a factor of 2 of each argument it is; one config needs no tuning."""
    write(tmp_path)
    (tmp_path / "kernels.tuning.toml").write_text(
        '[[tuning]]\nkernel = "scale"\ntarget = "sm_90a"\ngpu = "NVIDIA H200"\n'
        "configs = [\n  { BLOCK = 512 },\n  { BLOCK = 1024 },\n]\n[[tuning.launch]]\n"
        'types = { T = "bf16" }\nchoices = { NEGATE = true }\nkey = { n = 128 }\n'
        "microseconds = [2.0, 3.0]\n"
    )
    shape = '[[shape]]\nkernel = "scale"\ntypes = { T = "bf16" }\nn = [48, 64, 256, 272, 1008]\n'
    code, out, err = cover(shape, "--no-compile", "--json")
    assert code == 0, err
    untuned = [launch["key"]["n"] for launch in json.loads(out)["launches"] if launch["slow"]]
    assert untuned == [48, 272]
    assert cover(shape, "--no-compile", "--strict")[0] == 1
    assert cover(shape.replace("48, 64, 256, 272", "64"), "--no-compile", "--strict")[0] == 0


@pytest.mark.usefixtures("one_worker")
def test_an_archive_is_asked_as_well(cover: Any, tmp_path: Path) -> None:
    write(tmp_path, MANIFEST.replace("i32:16", "i32:16?"))
    assert cli.run(["build", "-o", "dist", "--no-cache", "-j", "1"], compile_empty) == 0
    shape = '[[shape]]\nkernel = "scale"\ntypes = { T = ["bf16", "fp32"] }\nn = [512, 511, 4096]\n'
    code, out, err = cover(shape, "--json", path="dist/demo.aotc")
    assert code == 0, err
    document = json.loads(out)
    missing = {
        (launch["types"]["T"], launch["key"]["n"])
        for launch in document["launches"]
        if launch["missing"]
    }
    assert missing == {("bf16", 4096), ("fp32", 4096), ("fp32", 511), ("fp32", 512)}
    slow = [launch for launch in document["launches"] if launch["slow"]]
    assert [launch["key"]["n"] for launch in slow] == [511]
    assert slow[0]["slow"][0]["text"] == "expected that n is a multiple of 16, for wide accesses"
    assert document["rows"] == [
        {"kernel": "scale", "toml": '[kernel.types]\nT = ["fp16", "bf16", "fp32"]'}
    ]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ('kernel = "scal"\nn = 5', "expected a kernel (scale), got 'scal'"),
        ('kernel = "scale"\nm = 5', "expected an argument of scale or an option, got 'm'"),
        ('kernel = "scale"\nn = "x"', "m"),
        ('kernel = "scale"', "expected a value for 'n' of scale, got none"),
    ],
)
def test_mistakes_in_shapes_have_their_place(
    cover: Any, tmp_path: Path, shape: str, expected: str
) -> None:
    write(tmp_path)
    code, _, err = cover(f"[[shape]]\n{shape}\n")
    assert code == 1
    assert expected in err
    assert "shapes.toml" in err


class FakeLauncher:
    """A GPU where config `i` takes `i + 1` µs."""

    identity = Identity("NVIDIA H200", "13.0", (9, 0))

    def __init__(self, *_: object) -> None:
        pass

    def prepare(self, launch: Launch, subjects: object, seed: int) -> dict[int, str]:
        return {}

    def times(self, configs: tuple[int, ...], *, is_cold: bool, repeats: int) -> Times:
        return Times(tuple((config + 1) * 1e-6 for config in configs), 1980)

    def close(self) -> str:
        return ""


@pytest.fixture
def bench(one_worker: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench_session, "Launcher", FakeLauncher)
    write(tmp_path, MANIFEST + "[kernel.bench]\nflops = '2 * n'\n")
    assert cli.run(["build", "-o", "dist", "--no-cache", "-j", "1"], compile_empty) == 0
    (tmp_path / "shapes.toml").write_text(
        '[[shape]]\nkernel = "scale"\ntypes = { T = "bf16" }\nn = [512, 1024]\n'
        '"x.size" = "n"\n"out.size" = "n"\n'
    )

    def bench(*options: str) -> tuple[int, str, str]:
        capsys.readouterr()
        command = ["bench", "dist/demo.aotc", "--shapes", "shapes.toml", *options]
        code = cli.run(command, compile_empty)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return bench


def test_bench_measures_what_the_runtime_takes(bench: Any, tmp_path: Path) -> None:
    """`aotc report --measured` reads the JSON."""
    options = ("--manifest", "kernels.toml", "--no-peers", "--passes", "2")
    code, out, err = bench(*options, "--json", "-o", "bench.json")
    assert code == 0, err
    assert "scale T=bf16 NEGATE=True n=512" in err
    document = json.loads(out)
    assert json.loads((tmp_path / "bench.json").read_text()) == document
    small, large = document["launches"]
    assert small["config"] == {"BLOCK": 512}
    assert (small["seconds"], small["flops"], small["bytes"]) == (1e-6, 1024, 2 * 512 * 2)
    assert large["config"] == {"BLOCK": 1024}
    assert large["seconds"] == 2e-6
    assert document["no_peers"] == "--no-peers"
    assert cli.run(["report", "dist/demo.aotc", "--measured", "bench.json"]) == 0
    code, out, _ = bench(*options)
    assert out.splitlines()[0] == "NVIDIA H200, driver 13.0, 1980 MHz, cold L2"
    assert "scale n=1024  BLOCK=1024  2.00" in out


def test_bench_says_what_it_lacks(bench: Any, tmp_path: Path) -> None:
    code, out, _ = bench()
    assert code == 0
    assert "no peers: give --manifest, which names the sources" in out
    text = (tmp_path / "shapes.toml").read_text()
    (tmp_path / "shapes.toml").write_text(text.replace("[512, 1024]", "[512, 4096]"))
    code, out, _ = bench("--no-peers")
    assert code == 1
    assert "scale n=4096: no config serves it" in out
    (tmp_path / "shapes.toml").write_text(text.replace('"scale"', '"scales"'))
    code, _, err = bench()
    assert code == 1
    assert "did you mean 'scale'?" in err
    assert "shapes.toml:2" in err


def test_bench_needs_a_gpu(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_session, "Launcher", Launcher)
    code, _, err = bench("--driver", "no-such-driver.so")
    assert code == 1
    assert "expected a GPU that launches" in err
    assert "Traceback" not in err


def test_a_page_without_matplotlib_is_told_before_anything_is_measured(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = bench("--no-peers", "--html", "page.html")
    assert (code, out) == (1, "")
    assert "pip install 'aotc[report]'" in err
    assert "scale T=bf16" not in err
    assert not (tmp_path / "page.html").exists()
