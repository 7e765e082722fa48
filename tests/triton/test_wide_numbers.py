"""Kernels built for numbers of 32 and of 64 bits: each launch takes the one that Triton would."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from aotc import cli
from tests.support.fake_gpu import build

SOURCE = """
import triton
import triton.language as tl

@triton.jit
def fill(x, seed, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, (seed + at).to(tl.float32), mask=at < n)
"""
ROWS = (("i32:16", "i32"), ("i32", "i32"), ("i64:16", "i32"), ("i64", "i64"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    (folder / "wide.py").write_text(SOURCE)
    tables = [
        f'[[kernel]]\nname = "fill_{number}"\nsource = "wide.py:fill"\n'
        f'[kernel.signature]\nx = "*fp32"\nseed = "{seed}"\nn = "{n}"\n'
        f"[kernel.constants]\nBLOCK = 64\n"
        for number, (seed, n) in enumerate(ROWS)
    ]
    head = '[package]\nname = "ops"\nversion = "0.1.0"\ntargets = ["sm_90a"]\n'
    (folder / "kernels.toml").write_text(head + "\n".join(tables))
    arguments = ["build", str(folder / "kernels.toml"), "-o", str(folder / "dist"), "-j", "1"]
    assert cli.run([*arguments, "--no-cache"]) == 0
    build(folder)
    return folder


def test_numbers_of_either_width_take_turns(launches: Any, folder: Path) -> None:
    """In any order, also once a wide number has been seen, and in chains of decorators."""
    values = [32, 5, 1 << 40, (1 << 40) + 1, -(1 << 33), 1 << 31, 7, -1]
    order = 2 * values + values[::-1]
    launched = launches(
        f"""
install(stand_in=True)
import wide, triton
tuned = triton.autotune([triton.Config({{}})], key=["n"])(wide.fill)
for kernel in (wide.fill, tuned):
    for seed in {order}:
        kernel[(1,)](x, seed, 64, BLOCK=64)
        seen.append(gpu.last().params[8:24].hex())
launched(lambda: wide.fill[(1,)](x, 1 << 70, 64, BLOCK=64))
launched(lambda: wide.fill[(1,)](x, 5, 64, BLOCK=64))
""",
        folder=folder,
        path=(str(folder),),
    )
    *passed, too_large, after = launched
    for text, seed in zip(passed, 2 * order, strict=True):
        is_wide = not -(1 << 31) <= seed < 1 << 31
        assert struct.unpack_from("<qi" if is_wide else "<ii", bytes.fromhex(text)) == (seed, 64)
    assert too_large[0] == "NotInArchiveError"
    assert after == [[1, 1, 1], 128]
