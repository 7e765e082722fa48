"""`[[tuned]]` tables: an autotuner's chosen config, by function, key and dtypes."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.ir.diagnostics import ManifestError
from aotc.package.manifest.read import parse
from aotc.package.manifest.tuned import TunedConfig

MANIFEST = """\
[package]
name = "ops"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "ops.py:copy"
signature = { x = "*fp32", n = "i32" }
config = [{ BLOCK = 64 }]
[[tuned]]
source = "ops.py:copy"
key = { n = 1000 }
dtypes = { x = "fp32" }
config = { BLOCK = 64, num_warps = 4 }
"""
SOURCE = """
import triton
import triton.language as tl

@triton.jit
def copy(x, n, BLOCK: tl.constexpr):
    pass
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "ops.py").write_text(SOURCE)
    return tmp_path / "kernels.toml"


def test_a_table_is_read(path: Path) -> None:
    source = (path.parent / "ops.py").as_posix()
    config = {"BLOCK": 64, "num_warps": 4}
    expected = TunedConfig(source, "copy", {"n": 1000}, {"x": "fp32"}, config)
    assert parse(MANIFEST, str(path)).tuned == (expected,)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("key = { n = 1000 }", "key = { m = 1000 }", "11:9: error: expected a parameter, got 'm'"),
        ('dtypes = { x = "fp32" }', "dtypes = { y = 1 }", "12:12: error: expected a parameter"),
        ("num_warps = 4 }", "num_wraps = 4 }", "expected a config key or a parameter, got 'num_wr"),
        ("num_warps = 4 }", "num_warps = [4] }", "expected a boolean, a number or a string"),
        ("[[tuned]]\nsource", "[[tuned]]\nsorce", "unknown key 'sorce'"),
        ('"ops.py:copy"\nkey', '"ops.py:cpy"\nkey', "did you mean 'copy'"),
    ],
)
def test_a_mistake_is_shown_where_it_is(old: str, new: str, message: str, path: Path) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(MANIFEST.replace(old, new), str(path))
    assert message in caught.value.render()
