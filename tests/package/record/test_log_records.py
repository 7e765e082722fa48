"""`aotc record --log`: from a monitor's log and the sources to a buildable manifest."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli

from aotc import cli
from tests.support.fake_compiler import compile_empty

pytestmark = pytest.mark.usefixtures("one_worker")

SOURCE = """
import triton
import triton.language as tl

@triton.jit
def act(x):
    return tl.maximum(x, 0.0)

@triton.jit
def add(x, y, n, bias, shape, ACT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n) + shape[0]
    if bias is not None:
        v += tl.load(bias)
    tl.store(y + at, ACT(v), mask=at < n)

def run(x, y, n):
    add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n, None, (3, 1), act, BLOCK=64)
"""
EVENT = "JIT compilation during inference: {} (key=[{}]{}). This causes a latency spike"
TYPES = "('*fp16', '{}'), ('*fp16', 'D'), ('i32', ''), ('constexpr', None), (('i32', 'constexpr'), ('D', 1))"
ACT = "('constexpr', JITFunction(pkg.ops:act))"


def event(promise: str = "D", block: int = 64, options: str = "{}", name: str = "add") -> str:
    types = f"{TYPES.format(promise)}, {ACT}, ('constexpr', {block})"
    return EVENT.format(name, types, options)


Record = Callable[..., tuple[int, str]]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Record:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "ops.py").write_text(SOURCE)

    def record(log: str, *options: str) -> tuple[int, str]:
        (tmp_path / "server.log").write_text(log)
        words = options or ("--source", "pkg")
        code = cli.run(["record", "--log", "server.log", *words], compile_empty)
        return code, capsys.readouterr().err

    return record


def kernels(folder: Path) -> list[dict[str, Any]]:
    return tomli.loads((folder / "kernels.toml").read_text())["kernel"]


def test_a_manifest_from_keys_builds(record: Record, tmp_path: Path) -> None:
    log = "\n".join([event(), event("", options="{'num_warps': 8}"), "", event()])
    code, err = record(log)
    assert code == 0, err
    (kernel,) = kernels(tmp_path / "record")
    assert kernel == {
        "name": "add",
        "source": "../pkg/ops.py:add",
        "grid": ["cdiv(n, BLOCK)"],
        "guards": "together",
        "limits": {"spill_bytes": 65536},
        "signature": {
            "x": "*fp16:16?", "y": "*fp16:16", "n": "i32", "bias": "none", "shape": "(i32:16, i32=1)",
        },
        "constants": {"ACT": "ops.py:act", "BLOCK": 64},
        "config": [{"num_warps": 4, "num_stages": 3}, {"num_warps": 8, "num_stages": 3}],
    }  # fmt: skip
    assert cli.run(["build", "record/kernels.toml", "--no-cache", "-j", "1"]) == 0


def test_logs_add_to_what_was_recorded_and_sources_are_copied(
    record: Record, tmp_path: Path
) -> None:
    record(event())
    code, _ = record(event(block=128), "--source", "pkg/ops.py", "--vendor")
    assert code == 0
    tables = kernels(tmp_path / "record")
    assert [table["constants"]["BLOCK"] for table in tables] == [64, 128]
    assert {table["source"] for table in tables} == {"sources/pkg/ops.py:add"}
    (tmp_path / "record").rename(tmp_path / "moved")
    assert cli.run(["build", "moved/kernels.toml", "--no-cache", "-j", "1"]) == 0


def test_only_what_an_autotuner_chose_is_taken(record: Record, tmp_path: Path) -> None:
    chose = (
        "Triton autotuning for function add,\nwith key as (100,),\nfinished after 0.01s,\n"
        "best config selected: BLOCK: 128, num_warps: 8, num_ctas: 1, num_stages: 3, maxnreg: None;"
    )
    trials = [event(block=block, options="{'num_warps': 8}") for block in (64, 128)]
    assert record("\n".join([*trials, chose]))[0] == 0
    (kernel,) = kernels(tmp_path / "record")
    assert kernel["config"] == [{"BLOCK": 128, "num_warps": 8, "num_stages": 3}]
    assert kernel["constants"] == {"ACT": "ops.py:act"}


def test_functions_of_one_name_are_told_apart_by_module_and_parameters(
    record: Record, tmp_path: Path
) -> None:
    """The log tells them apart; else the file must be named."""
    for name, text in (("copy", SOURCE), ("other", SOURCE.replace("bias, shape", "shape"))):
        (tmp_path / "pkg" / f"{name}.py").write_text(text)
    code, err = record(event())
    assert code == 1
    assert "got none" in err
    assert "note: " in err
    assert "name the one that was launched (--source)" in err
    fields = {
        "name": "add",
        "module": "pkg.ops",
        "signature": {
            "x": "*fp16", "y": "*fp16", "n": "i32", "bias": "constexpr", "shape": ["i32", "i32"],
            "ACT": "constexpr", "BLOCK": "constexpr",
        },
        "constants": {"3": None, "6": 64, "5": {"jit_function": "pkg.ops:act"}},
        "target": "sm_80",
    }  # fmt: skip
    code, err = record("\n".join([json.dumps(fields), event(), event(name="gone")]))
    assert code == 0
    (kernel,) = kernels(tmp_path / "record")
    assert kernel["source"] == "../pkg/ops.py:add"
    assert kernel["signature"]["x"] == "*fp16"
    assert 'targets = ["sm_80"]' in (tmp_path / "record" / "kernels.toml").read_text()
    assert "add is in " in err
    assert "name the one that was launched (--source)" in err
    assert "gone is in no source: name its file or folder (--source)" in err


def test_products_that_are_not_fused_are_another_table(record: Record, tmp_path: Path) -> None:
    log = [event(), event(options="{'enable_fp_fusion': False}"), event("")]
    assert record("\n".join(log))[0] == 0
    fused, unfused = kernels(tmp_path / "record")
    assert "enable_fp_fusion" not in fused
    assert unfused["enable_fp_fusion"] is False
    assert cli.run(["build", "record/kernels.toml", "--no-cache", "-j", "1"]) == 0
    tables = json.loads((tmp_path / "dist" / "record.sources.json").read_text())["kernels"]
    assert [table.get("enable_fp_fusion") for table in tables.values()] == [None, False]


def test_open_promises_are_built_both_ways(record: Record, tmp_path: Path) -> None:
    line = (
        "JIT compilation during inference: act (constexprs={}; signature={x='*fp32'}; "
        "extra_compile_info={configs=[{(0,): [['tt.divi..., device=0, num_warps=4}; key='[...')"
    )
    (tmp_path / "one.py").write_text(
        "import triton\nimport triton.language as tl\n@triton.jit\ndef act(x):\n    tl.store(x, 1.0)\n"
    )
    assert record(line, "--source", "one.py", "--target", "sm_80")[0] == 0
    (kernel,) = kernels(tmp_path / "record")
    assert kernel["signature"] == {"x": "*fp32:16?"}


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["record"], 2, "expected -- COMMAND…, or --log FILE"),
        (["record", "--log", "a.log"], 2, "--log FILE together with --source PATH"),
        (["record", "--log", "a.log", "--source", "."], 1, "cannot read a.log: No such file"),
        (
            ["record", "--log", "b.log", "--source", "gone"],
            1,
            "a file or a folder of sources, got gone",
        ),
        (["record", "--log", "b.log", "--source", ".", "--target", "sm_1"], 1, "expected a target"),
        (["record", "--log", "b.log", "--source", "."], 1, "lines with kernels' keys"),
    ],
)
def test_mistakes_of_the_user(
    options: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.log").write_text(event(name="gone"))
    assert cli.run(options) == code
    assert message in capsys.readouterr().err


def test_no_name_of_a_log_steers_the_terminal_or_the_manifest(
    record: Record, tmp_path: Path
) -> None:
    evil = "a\nEVIL = 1\r\x1b[31m\u202e"
    fields = {"signature": {"x": "*fp16"}, "constant_keys": [], "constant_vals": []}
    hooks = [
        {"name": evil, **fields},
        {"name": "add", "module": evil, **fields},
        {"name": "add", "signature": {evil: "*fp16", "x": evil, "y": evil}},
    ]
    types = f"{TYPES.format('D')}, ('constexpr', None), ('constexpr', {evil!r})"
    lines = [event(), EVENT.format("add", types, "{}"), *map(json.dumps, hooks)]
    code, err = record("\n".join(lines))
    assert code == 0
    assert all(line.isprintable() and not line.startswith("EVIL") for line in err.splitlines())
    assert "EVIL" in err
    assert len(kernels(tmp_path / "record")) >= 1


@pytest.mark.parametrize("log", ["fifo", "/dev/zero", "absent"])
def test_a_log_that_never_ends_is_refused(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    os.mkfifo(tmp_path / "fifo")
    code = cli.run(["record", "--log", log, "--source", "pkg"], compile_empty)
    text = capsys.readouterr().err
    assert code == 1
    assert f"expected a log, cannot read {log}: " in text


def test_a_tensor_of_bools_is_one_of_i1(record: Record, tmp_path: Path) -> None:
    """Triton calls it `*u1`, and a bool `u1`."""
    text = event().replace("('*fp16', 'D'), ('i32', '')", "('*u1', 'D'), ('u1', '')")
    assert record(text)[0] == 0
    signature = kernels(tmp_path / "record")[0]["signature"]
    assert {"*i1:16", "i1"} <= {str(type_text) for type_text in signature.values()}
