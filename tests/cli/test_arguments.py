"""What a shell completes: files, targets, kernels, variants; in bash, words with a colon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from aotc.cli.process import commands
from aotc.target import TARGET_SETS, TARGETS
from tests.support.command_line import ROOT

pytestmark = pytest.mark.usefixtures("one_worker")

PYTHON = """\
import triton
@triton.jit
def add(x_ptr): pass
@triton.jit
def helper(x): return x
@triton.jit
def scale(x_ptr): pass
"""


def complete(folder: Path, *words: str) -> list[str]:
    """Return what bash gets for the last of the words of a command line."""
    process = subprocess.run(
        [sys.executable, "-m", "aotc"],
        env={
            **os.environ,
            "COMP_WORDS": " ".join(("aotc", *words)),
            "COMP_CWORD": str(len(words)),
            "_AOTC_COMPLETE": "bash_complete",
            "PYTHONPATH": str(ROOT),
        },
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert process.stderr == ""
    return process.stdout.split("\n")[:-1] if process.stdout.strip() else []


def bash(folder: Path, line: str) -> list[str]:
    """Return the words by which bash would replace the last one of a line."""
    path = folder / "bin" / "aotc"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m aotc "$@"\n')
    path.chmod(0o755)
    script = (
        'eval "$(aotc completion bash)"\n'
        f"COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()\n"
        '_aotc_completion aotc; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    env = {**os.environ, "PATH": f"{path.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        ["bash", "-c", script], env=env, cwd=folder, capture_output=True, text=True, check=True
    )
    return ran.stdout.splitlines()


def test_bash_completes_kernels_after_a_colon(folder: Path) -> None:
    (folder / "triton.py").write_text(PYTHON)
    assert bash(folder, "aotc explain triton.py : s") == ["scale"]
    assert bash(folder, "aotc build --target sm_100") == ["sm_100a", "sm_100f"]


def parameters() -> list[Any]:
    """Return all parameters of all commands."""
    groups = [commands]
    found: list[Any] = []
    while groups:
        for command in groups.pop().commands.values():
            groups += [command] if isinstance(command, click.Group) else []
            found += [
                pytest.param(param, id=f"{command.name} {param.name}") for param in command.params
            ]
    return found


@pytest.mark.parametrize("param", parameters())
def test_every_file_and_folder_is_completed(param: click.Parameter) -> None:
    words = ("FILE", "DIR", "ARCHIVE", "MANIFEST", "PATH", "TABLE", "Folder", "SOURCE")
    text = f"{param.make_metavar(click.Context(commands))} {getattr(param, 'help', '') or ''}"
    if any(word in text for word in words) and not getattr(param, "is_flag", False):
        assert type(param.type) is not type(click.STRING), text


@pytest.mark.parametrize(
    ("words", "items"),
    [
        (("build", "k"), ["file,k"]),
        (("build", "-o", "d"), ["dir,d"]),
        (("inspect", "d"), ["file,d"]),
        (("build", "--target", "sm_9"), ["plain,sm_90a"]),
        (("build", "--target", "data"), ["plain,datacenter"]),
        (("dump", "--target", "data"), []),
        (("build", "--without", "w"), ["plain,wgmma"]),
        (("build", "--kernel", ""), ["plain,add"]),
        (("build", "kernels.toml", "--kernel", "a"), ["plain,add"]),
        (("build", "none.toml", "--kernel", "a"), []),
        (("dump", "triton.py", ":", ""), ["plain,add", "plain,scale"]),
        (("dump", "triton.py", ":", "s"), ["plain,scale"]),
        (("explain", "kernels.toml", ":", ""), ["plain,add"]),
        (("explain", "none.toml", ":", ""), []),
        (("dump", "tri"), ["file,tri"]),
    ],
)
def test_words(folder: Path, words: tuple[str, ...], items: list[str]) -> None:
    (folder / "triton.py").write_text(PYTHON)
    assert complete(folder, *words) == items


def test_every_target_and_set(folder: Path) -> None:
    items = complete(folder, "build", "--target", "''")
    assert items == [f"plain,{name}" for name in (*TARGETS, *TARGET_SETS)]


def test_variants_and_kernels_of_an_archive(folder: Path, run: Any) -> None:
    assert run("build", "--no-cache")[0] == 0
    items = complete(folder, "dump", "dist/demo.aotc", "--variant", "add")
    labels = [
        variant["label"]
        for kernel in json.loads(run("inspect", "dist/demo.aotc", "--json")[1])["kernels"]
        for variant in kernel["variants"]
    ]
    assert items == ["plain," + label.replace(" ", "\\\\ ") for label in labels]
    assert complete(folder, "verify", "dist/demo.aotc", "--kernel", "''") == ["plain,add"]
    assert bash(folder, "aotc dump dist/demo.aotc --variant add") == [
        label.replace(" ", "\\ ") for label in labels
    ]
