"""The compile of `aotc dump`, from a name and settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.ir.diagnostics import ManifestError
from aotc.package.inspect.dump import find_request, parse_constant
from aotc.target import TARGETS

_SOURCE = """\
def kernel(x_ptr, n, bias=None, BLOCK: tl.constexpr = 8, CAUSAL: tl.constexpr = False):
    pass
"""
_MANIFEST = """\
[package]
name = "p"
version = "0.1.0"
targets = ["sm_80", "sm_90a"]
[[kernel]]
source = "k.py:kernel"
[kernel.signature]
x_ptr = "*T:16"
n = "i32:16?"
[kernel.types]
T = ["fp16", "bf16"]
[kernel.choices]
CAUSAL = [true, false]
[kernel.configs]
BLOCK = [64, 128]
num_warps = [4, 8]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k.py").write_text(_SOURCE)
    Path("kernels.toml").write_text(_MANIFEST)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("12", 12),
        ("-3", -3),
        ("0x10", 16),
        ("1.5", 1.5),
        ("1e-5", 1e-5),
        ("fp16", "fp16"),
        ("", ""),
    ],
)
def test_constants(text: str, value: object) -> None:
    parsed = parse_constant(text)
    assert (type(parsed), parsed) == (type(value), value)


def test_a_source_is_described_by_settings() -> None:
    settings = {"n": "i32:16?", "x_ptr": "*bf16:16", "num_warps": "8", "BLOCK": "32"}
    request = find_request("k.py:kernel", None, settings)
    assert request.signature == (("x_ptr", "*bf16:16"), ("n", "i32:16"))
    assert request.constants == (("BLOCK", 32),)
    assert (request.target, request.config.num_warps, request.config.num_stages) == ("sm_90a", 8, 3)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False)])
@pytest.mark.parametrize("subject", ["k.py:kernel", "kernels.toml:kernel"])
def test_who_fetches_is_a_setting(subject: str, text: str, value: bool) -> None:
    settings = {"n": "i32", "x_ptr": "*fp32", "BLOCK": "32"}
    assert find_request(subject, None, settings).config.warp_specialize is None
    settings["warp_specialize"] = text
    assert find_request(subject, None, settings).config.warp_specialize is value


def test_a_descriptors_block_is_substituted() -> None:
    settings = {"x_ptr": "tensordesc<fp16[BLOCK,64]>", "n": "i32", "BLOCK": "32"}
    request = find_request("k.py:kernel", TARGETS["sm_100a"], settings)
    assert request.signature[0] == ("x_ptr", "tensordesc<fp16[32,64]>")
    assert request.target == "sm_100a"


def test_a_manifest_gives_its_first_variant() -> None:
    request = find_request("kernels.toml:kernel", None, {})
    assert request.signature == (("x_ptr", "*fp16:16"), ("n", "i32:16"))
    assert dict(request.constants) == {"BLOCK": 64, "CAUSAL": True}
    assert (request.target, request.config.num_warps) == ("sm_80", 4)


def test_settings_pick_a_variant() -> None:
    settings = {"T": "bf16", "CAUSAL": "false", "BLOCK": "128", "num_warps": "8"}
    request = find_request("kernels.toml:kernel", TARGETS["sm_90a"], settings)
    assert request.signature[0] == ("x_ptr", "*bf16:16")
    assert dict(request.constants) == {"BLOCK": 128, "CAUSAL": False}
    assert (request.target, request.config.num_warps) == ("sm_90a", 8)


def test_settings_replace_what_no_variant_has() -> None:
    settings = {"BLOCK": "4096", "num_stages": "1", "n": "i64", "x_ptr": "*fp32"}
    request = find_request("kernels.toml:kernel", None, settings)
    assert request.signature == (("x_ptr", "*fp32"), ("n", "i64"))
    assert dict(request.constants) == {"BLOCK": 4096, "CAUSAL": True}
    assert (request.config.num_warps, request.config.num_stages) == (4, 1)


@pytest.mark.parametrize(
    ("subject", "settings", "message"),
    [
        ("k.py", {}, "expected SOURCE.py:KERNEL or MANIFEST:KERNEL, got 'k.py'"),
        ("x.py:kernel", {}, "cannot read x.py"),
        ("k.py:kernle", {}, "did you mean 'kernel'?"),
        ("kernels.toml:kernle", {}, "did you mean 'kernel'?"),
        ("k.py:kernel", {"n": "i32"}, "expected a type for argument 'x_ptr'"),
        ("k.py:kernel", {"x_ptr": "*f32"}, "expected a dtype, got 'f32'"),
        ("k.py:kernel", {"BLOKC": "1"}, "did you mean 'BLOCK'?"),
        ("k.py:kernel", {"num_warps": "3"}, "a power of two from 1 to 32 for num_warps, got 3"),
        ("k.py:kernel", {"warp_specialize": "1"}, "a boolean for warp_specialize, got 1"),
        ("kernels.toml:kernel", {"T": "fp64"}, "expected T to be one of fp16, bf16, got 'fp64'"),
    ],
)
def test_mistakes(subject: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        find_request(subject, None, settings)
    assert message in str(caught.value)


@pytest.mark.parametrize("subject", ["k.py:kernel", "kernels.toml:kernel"])
def test_features_to_do_without(subject: str) -> None:
    settings = {"n": "i32", "x_ptr": "*fp32", "BLOCK": "32"}
    request = find_request(subject, TARGETS["sm_90a"], settings, ["wgmma", "stmatrix"])
    assert (request.target, request.without) == ("sm_90a", ("stmatrix", "wgmma"))
    with pytest.raises(ManifestError, match="did you mean 'stmatrix'"):
        find_request(subject, None, settings, ["stmatrx"])
