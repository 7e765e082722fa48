"""One mistake of a manifest is told once, with a remedy that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.ir.diagnostics import ManifestError
from aotc.package.manifest.read import kernels_of_source, load

SOURCE = """\
import triton
import triton.language as tl
@triton.jit
def norm(x_ptr, n, BLOCK: tl.constexpr): pass
@triton.jit
def helper(x): return x
def host(x): pass
class Ops:
    @triton.jit
    def scale(x_ptr): pass
"""
MANIFEST = """\
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "norm.py:norm"
grid = ["n"]
[kernel.signature]
x_ptr = "*fp32"
n = "i32"
[kernel.constants]
BLOCK = 64
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "norm.py").write_text(SOURCE)
    return tmp_path


def mistakes_of(folder: Path, right: str, wrong: str) -> list[tuple[str, str]]:
    """Return message and remedy of each mistake with a word of the manifest replaced."""
    assert right in MANIFEST
    (folder / "k.toml").write_text(MANIFEST.replace(right, wrong))
    with pytest.raises(ManifestError) as caught:
        load("k.toml")
    return [(one.message, one.remedy) for one in (caught.value, *caught.value.others)]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("[kernel.signature]", "[kernel.signatur]"),
        ("[package]", "[pakage]"),
        ("source =", "sorce ="),
        ("version =", "vresion ="),
        ("[kernel.constants]", "[kernel.constant]"),
    ],
)
def test_a_misspelt_key_is_one_mistake(folder: Path, right: str, wrong: str) -> None:
    ((message, remedy),) = mistakes_of(folder, right, wrong)
    word = wrong.strip("[] =").rpartition(".")[2]
    assert message.endswith(f"got the unknown key {word!r}")
    assert remedy.startswith("did you mean ")


def test_what_a_misspelt_table_holds_is_checked_in_its_place(folder: Path) -> None:
    text = MANIFEST.replace("signature", "signatur").replace('"*fp32"', '"*fp23"')
    (folder / "k.toml").write_text(text)
    with pytest.raises(ManifestError) as caught:
        load("k.toml")
    (other,) = caught.value.others
    assert other.render().startswith("k.toml:9:9: error: expected a dtype, got 'fp23'")


def test_a_key_like_no_other_is_not_read_as_one(folder: Path) -> None:
    mistakes = mistakes_of(folder, "[kernel.signature]", "[kernel.xyzzy]")
    assert [message for message, _ in mistakes][1:] == [
        "expected a type for argument 'x_ptr' of norm",
        "expected a type for argument 'n' of norm",
    ]


def test_a_source_in_place_of_a_manifest(folder: Path) -> None:
    with pytest.raises(ManifestError) as caught:
        load("norm.py")
    assert caught.value.message == "expected a manifest, got 'norm.py'"
    assert caught.value.remedy == "write one for its kernels: `aotc init norm.py`"
    with pytest.raises(ManifestError, match="manifest that it was built of"):
        load("dist/norm.aotc")


def test_a_source_without_a_function_lists_its_kernels(folder: Path) -> None:
    assert kernels_of_source("norm.py") == ["norm", "Ops.scale"]
    ((message, remedy),) = mistakes_of(folder, "norm.py:norm", "norm.py")
    assert message == "expected 'FILE.py:FUNCTION', got 'norm.py'"
    assert remedy == "its kernels: norm.py:norm, norm.py:Ops.scale"
    (folder / "norm.py").write_text(
        "".join(f"@triton.jit\ndef k{number}(x_ptr): pass\n" for number in range(14))
    )
    ((_, remedy),) = mistakes_of(folder, "norm.py:norm", "norm.py")
    assert remedy.endswith("norm.py:k11, and 2 more")
    ((_, remedy),) = mistakes_of(folder, "norm.py:norm", "none.py")
    assert remedy == "such as 'norm.py:rmsnorm', in ASCII"
