"""Addresses overflowing 32 bits are reported at the op that wraps."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.package.manifest.read import load
from aotc.package.verify.subjects import subjects_of_manifest
from aotc.package.verify.variants import VariantResult, verify_variant

pytestmark = pytest.mark.usefixtures("one_worker")

_HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
_MANIFEST = """
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "kernels.py:rows"
grid = ["n_rows"]
constants = {{ D = 32 }}
signature = {{ x = "*fp32", out = "*fp32", n_rows = "i32", stride = "i32" }}
[kernel.verify]
n_rows = [3]
stride = [{stride}]
"""


def _result(tmp_path: Path, body: str, stride: int) -> VariantResult:
    head = f"{_HEAD}def rows(x, out, n_rows, stride, D: tl.constexpr):\n"
    lines = ["r = tl.program_id(0)", "d = tl.arange(0, D)", *body.splitlines()]
    (tmp_path / "kernels.py").write_text(head + "".join(f"    {line}\n" for line in lines))
    (tmp_path / "kernels.toml").write_text(_MANIFEST.format(stride=stride))
    (subject,) = subjects_of_manifest(load(str(tmp_path / "kernels.toml")))
    return verify_variant(subject)


_BIG = 1 << 30
_LOADED = "tl.store(out + r * D + d, tl.load(x + p, mask=d < D - 1, other=0))"
_PLAIN = "tl.store(out + r * D + d, tl.load(x + r * stride + d))"


@pytest.mark.parametrize(
    ("body", "word", "text"),
    [
        (_PLAIN, "product", "r * stride"),
        ("tl.store(out + r * D + d, tl.load(x + (r * stride + d)))", "product", "r * stride"),
        ("tl.store(out + (r << 30) + d, tl.load(x + r * D + d))", "shift", "r << 30"),
        (
            "k = stride\nfor _ in range(r):\n    k += stride\ntl.store(out + k + d, d * 1.0)",
            "sum",
            "k += stride",
        ),
        (
            "p = tl.reshape((r * stride + d)[None, :], (D,)).to(tl.int64)\n" + _LOADED,
            "product",
            "r * stride",
        ),
    ],
)
def test_a_wrapping_address_is_reported_at_its_line(
    tmp_path: Path, body: str, word: str, text: str
) -> None:
    result = _result(tmp_path, body, _BIG)
    assert result.status == "wrong"
    detail = result.findings[-1].detail
    assert f"error: this int32 {word} of an address overflows" in detail
    source = (tmp_path / "kernels.py").read_text().splitlines()
    line = next(number for number, shown in enumerate(source, 1) if text in shown)
    assert f"kernels.py:{line}:" in detail
    assert "`.to(tl.int64)`" in detail


@pytest.mark.parametrize(
    ("body", "stride"),
    [
        (_PLAIN, _BIG - 16),  # the last element is just below 2**31
        (_PLAIN.replace("r * stride", "r.to(tl.int64) * stride"), _BIG),
        ("m = (d >= 0) & (r < 2)\n" + _PLAIN.replace("+ d))", "+ d, mask=m, other=0))"), _BIG),
        ("h = (r * stride + d * 7) & 1023\ntl.store(out + r * D + d, tl.load(x + h))", _BIG),
        ("tl.store(out + r * D + d, (r * stride + d).to(tl.float32))", _BIG),
    ],
)
def test_wrapping_values_other_than_addresses_are_right(
    tmp_path: Path, body: str, stride: int
) -> None:
    result = _result(tmp_path, body, stride)
    assert result.status == "verified", [finding.detail for finding in result.findings]
