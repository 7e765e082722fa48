"""The manifest as read, and the location of each mistake."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.compiler import autotune_configs
from aotc.ir.diagnostics import CompileError, DiagnosticError, ManifestError
from aotc.limits import CompileLimits
from aotc.package.manifest.read import load, parse
from aotc.package.manifest.spec import AutotuneConfigs, CartesianConfigs, ListedConfigs, Manifest
from aotc.package.manifest.variant_grid import expand

_SOURCE = """\
import triton
import triton.language as tl

@triton.jit
def rmsnorm_kernel(x_ptr, out_ptr, stride, n_rows, eps, BLOCK: tl.constexpr, CAUSAL: tl.constexpr):
    pass

@triton.jit
def plain(x_ptr, n, bias=None, MODE: tl.constexpr = 0):
    pass

@triton.jit
def gemm(desc, n, BM: tl.constexpr, BK: tl.constexpr):
    pass
"""

_FULL = """\
[package]
name = "llm"
version = "0.1.0"
targets = ["sm_90a", "sm_80"]

[[kernel]]
name = "rmsnorm"
source = "norm.py:rmsnorm_kernel"
grid = ["cdiv(n_rows, 4)", "BLOCK // num_warps"]
where = "BLOCK * num_warps <= 32768"
[kernel.signature]
x_ptr = "*T:16"
out_ptr = "*T:16"
stride = "i32:16?"
n_rows = "i32"
eps = "fp32"
[kernel.types]
T = ["fp16", "bf16"]
[kernel.constants]
BLOCK = 4096
[kernel.choices]
CAUSAL = [true, false]
[kernel.configs]
num_warps = [4, 8]
"""

_SECOND = """
[[kernel]]
source = "norm.py:plain"
[kernel.signature]
x_ptr = "*fp32"
n = "i32=1"
"""

_GEMM = """
[[kernel]]
source = "norm.py:gemm"
grid = ["cdiv(desc.shape[1], BM)"]
[kernel.signature]
desc = "tensordesc<bf16[BM,BK]>"
n = "i64"
[[kernel.config]]
BM = 128
BK = 64
num_stages = 3
[[kernel.config]]
BM = 64
BK = 64
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "norm.py").write_text(_SOURCE)
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    return tmp_path


def _parse(folder: Path, text: str) -> Manifest:
    path = folder / "kernels.toml"
    path.write_text(text)
    return load(str(path))


def test_reads_everything(folder: Path) -> None:
    manifest = _parse(folder, _FULL + _SECOND + _GEMM)
    assert (manifest.name, manifest.version) == ("llm", "0.1.0")
    assert [target.name for target in manifest.targets] == ["sm_90a", "sm_80"]
    assert [kernel.name for kernel in manifest.kernels] == ["rmsnorm", "plain", "gemm"]
    rmsnorm, plain, gemm = manifest.kernels
    assert list(rmsnorm.signature) == ["x_ptr", "out_ptr", "stride", "n_rows", "eps"]
    assert rmsnorm.signature["stride"].is_optional
    assert rmsnorm.types == {"T": ("fp16", "bf16")}
    assert rmsnorm.constants == {"BLOCK": 4096}
    assert rmsnorm.choices == {"CAUSAL": (True, False)}
    assert rmsnorm.configs == CartesianConfigs((("num_warps", (4, 8)),))
    assert rmsnorm.where is not None
    assert [str(dimension.loc) for dimension in rmsnorm.grid or ()] == [
        f"{folder / 'kernels.toml'}:9:9",
        f"{folder / 'kernels.toml'}:9:28",
    ]
    assert plain.signature["n"].value == 1
    assert list(plain.signature) == ["x_ptr", "n"]
    assert (plain.grid, plain.configs) == (None, CartesianConfigs())
    assert isinstance(gemm.configs, ListedConfigs)
    assert gemm.configs.configs[1] == (("BM", 64), ("BK", 64))


def test_signature_takes_the_functions_order(folder: Path) -> None:
    swapped = _SECOND.replace('x_ptr = "*fp32"\nn = "i32=1"', 'n = "i32"\nx_ptr = "*fp32"')
    manifest = _parse(folder, _FULL + swapped)
    assert list(manifest.kernels[1].signature) == ["x_ptr", "n"]


def test_source_is_relative_to_the_manifest(folder: Path) -> None:
    kernel = _parse(folder, _FULL).kernels[0]
    assert kernel.source == (folder / "norm.py").as_posix()


def test_autotune_leaves_constexprs_to_the_source(folder: Path) -> None:
    text = _FULL.replace("[kernel.configs]\nnum_warps = [4, 8]\n", "")
    text = text.replace("[kernel.constants]\nBLOCK = 4096\n", "")
    text = text.replace("[kernel.signature]", 'configs = "autotune"\n[kernel.signature]', 1)
    assert _parse(folder, text).kernels[0].configs == AutotuneConfigs()


def test_the_package_picks_a_toolchain(folder: Path) -> None:
    text = _FULL.replace('"sm_80"]', '"sm_80"]\ntoolchain = "12.9"')
    manifest = _parse(folder, text)
    assert manifest.toolchain == "12.9"
    assert [target.toolchain for target in manifest.targets_for(("sm_80",), ())] == ["12.9"]
    with pytest.raises(ManifestError, match="CUDA 12.9 knows, got 'sm_110a'") as error:
        _parse(folder, text.replace('"sm_80"]', '"sm_110a"]'))
    assert error.value.loc is not None
    assert error.value.loc.line == 5


def test_targets_do_without_what_the_package_and_the_caller_say(folder: Path) -> None:
    manifest = _parse(folder, _FULL.replace('"sm_80"]', '"sm_80"]\nwithout = ["wgmma"]'))
    assert [target.without for target in manifest.targets] == [("wgmma",)] * 2
    (chosen,) = manifest.targets_for(["sm_90a"], ["stmatrix"])
    assert (chosen.name, chosen.without) == ("sm_90a", ("stmatrix", "wgmma"))
    request = expand(manifest.kernels[0], [chosen], autotune_configs).variants[0].request
    assert request.without == ("stmatrix", "wgmma")


def test_a_mistaken_feature_is_shown_where_it_is(folder: Path) -> None:
    text = _FULL.replace('"sm_80"]', '"sm_80"]\nwithout = ["tma", "wgma"]')
    with pytest.raises(ManifestError, match=r"(?s):5:19: error: expected a feature .*mean 'wgmma'"):
        _parse(folder, text)


def test_kernel_by_name(folder: Path) -> None:
    manifest = _parse(folder, _FULL + _SECOND)
    assert manifest.kernel("plain") is manifest.kernels[1]
    with pytest.raises(ManifestError) as caught:
        manifest.kernel("rmsnrom")
    assert caught.value.remedy == "did you mean 'rmsnorm'?"


def test_facts_of_the_gpu(folder: Path) -> None:
    facts = """
[package.facts]
num_sms = 114
"torch.cuda.get_device_name()" = "NVIDIA H100 PCIe"
[package.facts.sm_80]
num_sms = 98
"""
    manifest = _parse(folder, _FULL.replace("[[kernel]]", f"{facts}[[kernel]]", 1))
    name = ("torch.cuda.get_device_name()", "NVIDIA H100 PCIe")
    expected = {"sm_90a": (("num_sms", 114), name), "sm_80": (("num_sms", 98), name)}
    assert {target.name: target.facts for target in manifest.targets} == expected
    assert [t.facts for t in manifest.targets_for(["sm_80"], ["tma"])] == [expected["sm_80"]]
    request = expand(manifest.kernels[0], manifest.targets, autotune_configs).variants[0].request
    assert request.facts == expected["sm_90a"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("num_smss = 3", "got 'num_smss' | did you mean 'num_sms'?"),
        ('num_sms = "132"', "expected an integer for 'num_sms', got the string '132'"),
        ("device_name = 3", "expected a string for 'device_name', got the integer 3"),
        ("sm_81 = { num_sms = 3 }", "expected a target, got 'sm_81' | did you mean"),
    ],
)
def test_mistakes_in_facts(folder: Path, line: str, message: str) -> None:
    text = _FULL.replace("[[kernel]]", f"[package.facts]\n{line}\n[[kernel]]", 1)
    with pytest.raises(ManifestError) as caught:
        _parse(folder, text)
    for part in message.split(" | "):
        assert part in caught.value.render()


# Each row: a text of the manifest, its replacement, the location of the error and its message.
_MISTAKES: list[tuple[str, str, str, str]] = [
    # The document.
    ("[package]", "[package", "1:9", "expected TOML"),
    ('name = "llm"', 'name = "llm"\nname = "x"', "3:1", "expected each key of a table once"),
    ("[package]", "[packages]", "1:2", "unknown key 'packages' | did you mean 'package'?"),
    ("[[kernel]]", "[kernel]", "6:2", "expected one or more [[kernel]] tables"),
    # The package.
    ('version = "0.1.0"\n', "", "1:2", "expected a string at 'version', which is missing"),
    ('version = "0.1.0"', 'vresion = "0.1.0"', "3:1", "'vresion' | did you mean 'version'?"),
    ('version = "0.1.0"', "version = 1", "3:11", "expected a string for 'version', got the int"),
    ('version = "0.1.0"', 'version = "1"', "3:11", "expected a version such as '0.1.0', got '1'"),
    ('name = "llm"', 'name = "my-llm"', "2:8", "expected a package name of letters"),
    ('name = "llm"', 'name = ""', "2:8", "that is not empty for 'name', got the string ''"),
    ('"sm_80"]', '"sm_70"]', "4:22", "got 'sm_70' | no target is for that GPU"),
    ('"sm_80"]', "80]", "4:22", "expected a string in 'targets', got the integer 80"),
    ('["sm_90a", "sm_80"]', "[]", "4:11", "expected at least one value for 'targets'"),
    ('["sm_90a", "sm_80"]', '"sm_90a"', "4:11", "a list of strings | write targets = [...]"),
    ('"sm_80"]', '"sm_90a"]', "4:22", "expected each value once, got 'sm_90a' again"),
    # The source.
    ('source = "norm.py:rmsnorm_kernel"\n', "", "6:3", "'source', which is missing"),
    ("norm.py:rmsnorm_kernel", "norm.py", "8:10", "expected 'FILE.py:FUNCTION'"),
    ("norm.py:rmsnorm_kernel", "nrom.py:x", "8:10", "nrom.py: No such | did you mean 'norm.py'?"),
    ("norm.py:rmsnorm_kernel", "latin.py:x", "8:10", "in UTF-8"),
    ("norm.py:rmsnorm_kernel", "norm.py:rmsnorm", "8:10", "got 'rmsnorm' | 'rmsnorm_kernel'?"),
    ("norm.py:rmsnorm_kernel", "norm.py:zzz", "8:10", "it defines rmsnorm_kernel, plain, gemm"),
    ('name = "rmsnorm"', "name = 3", "7:8", "expected a string for 'name', got the integer 3"),
    ('name = "rmsnorm"', 'name = "a b"', "7:8", "expected a kernel name"),
    ('name = "rmsnorm"', 'nmae = "x"', "7:1", "unknown key 'nmae' | did you mean 'name'?"),
    # The signature.
    ('eps = "fp32"\n', "", "11:9", "expected a type for argument 'eps'"),
    ("eps =", "epps =", "16:1", "expected an argument of rmsnorm_kernel | did you mean 'eps'?"),
    ('eps = "fp32"', 'eps = "float32"', "16:7", "expected a dtype or a type variable"),
    ('eps = "fp32"', "eps = 1.0", "16:7", "expected a string for 'eps', got the number 1.0"),
    ('eps = "fp32"', 'eps = "fp32"\nBLOCK = "i32"', "17:1", "got the tl.constexpr parameter"),
    ('n_rows = "i32"', 'n_rows = "i32=x"', "15:10", "expected an integer for i32, got 'x'"),
    # Types.
    ('T = ["fp16", "bf16"]', 'T = ["fp16", "bf61"]', "18:14", "got 'bf61' | 'bf16'?"),
    ('T = ["fp16", "bf16"]', 'T = "fp16"', "18:5", "expected a list of strings"),
    ('T = ["fp16", "bf16"]', 'T = ["fp16"]\nU = ["i8"]', "19:1", "argument of type 'U', got none"),
    ('T = ["fp16", "bf16"]', 'V = ["fp16"]', "12:9", "expected a dtype or a type variable"),
    ('T = ["fp16", "bf16"]', 'T = ["fp16"]\ni8 = ["i8"]', "19:1", "got the dtype 'i8'"),
    # Constants and choices.
    ("BLOCK = 4096", "BLOKC = 4096", "20:1", "constexpr parameter | did you mean 'BLOCK'?"),
    ("BLOCK = 4096", "n_rows = 1", "20:1", 'n_rows = "i32=1"'),
    ("BLOCK = 4096", "num_warps = 1", "20:1", "write it in [kernel.configs]"),
    ("BLOCK = 4096", "BLOCK = [1]", "20:9", "expected a boolean, a number or a string"),
    ("BLOCK = 4096", "BLOCK = nan", "20:9", "expected a number, not nan, for 'BLOCK'"),
    ("BLOCK = 4096", "BLOCK = 1979-05-27", "20:9", "got a date or time"),
    ("BLOCK = 4096", "", "7:8", "expected a value for the tl.constexpr parameter 'BLOCK'"),
    ("CAUSAL = [true, false]", "CAUSAL = true", "22:10", "a list of values | CAUSAL = [...]"),
    ("CAUSAL = [true, false]", "CAUSAL = []", "22:10", "at least one value"),
    ("CAUSAL = [true, false]", "CAUSAL = [1, 1]", "22:14", "each value once, got 1 again"),
    # Configs.
    ("num_warps = [4, 8]", "num_wraps = [4]", "24:1", "'num_wraps' | did you mean 'num_warps'?"),
    ("num_warps = [4, 8]", "num_warps = [4, 3]", "24:17", "a power of two from 1 to 32"),
    ("num_warps = [4, 8]", "num_warps = [true]", "24:14", "got True"),
    ("num_warps = [4, 8]", "num_warps = 4", "24:13", "write num_warps = [...]"),
    ("num_warps = [4, 8]", "num_warps = [4]\nBLOCK = [1]", "20:1", "in constants and configs"),
    ("[kernel.configs]", "[kernel.config]", "23:9", "expected one or more [[kernel.config]]"),
    ("[kernel.configs]\nnum_warps = [4, 8]", "[[kernel.config]]\nnum_warps = 5", "24:13", "power"),
    ("[kernel.configs]\nnum_warps = [4, 8]", "[[kernel.config]]\nBM = 5", "24:1", "config key"),
    # Targets.
    ("where =", "targets = []\nwhere =", "10:11", "expected at least one value for 'targets'"),
    ("where =", 'targets = ["sm_8"]\nwhere =', "10:12", "'sm_8' | did you mean"),
    ("where =", 'targets = ["sm_90a", "sm_89"]\nwhere =', "10:22", "(sm_90a, sm_80), got 'sm_89'"),
    # Limits.
    (
        "[kernel.configs]",
        "[kernel.limits]\nspil_bytes = 1\n[kernel.configs]",
        "24:1",
        "expected a limit, got 'spil_bytes' | did you mean 'spill_bytes'?",
    ),
    (
        "[kernel.configs]",
        "[kernel.limits]\nspill_bytes = -1\n[kernel.configs]",
        "24:15",
        "expected an integer from 0 on for spill_bytes, got -1",
    ),
    (
        "[kernel.configs]",
        "[kernel.limits]\nptxas_seconds = 0.5\n[kernel.configs]",
        "24:17",
        "expected an integer from 1 on for ptxas_seconds, got 0.5",
    ),
    # Expressions.
    ('"cdiv(n_rows, 4)"', '"cdiv(n_row, 4)"', "9:15", "is unknown | did you mean 'n_rows'?"),
    ('"cdiv(n_rows, 4)"', '"n_rows / 4"', "9:17", "use `//`"),
    ('"cdiv(n_rows, 4)"', '"eps"', "9:10", "expected an integer argument, `eps` is not one"),
    ('"cdiv(n_rows, 4)"', '"x_ptr"', "9:10", "expected an integer argument, `x_ptr` is not one"),
    ('"cdiv(n_rows, 4)"', '"x_ptr.shape[0]"', "9:10", "`x_ptr` is no tensor descriptor"),
    ('"cdiv(n_rows, 4)", "BL', '"1", "1", "1", "BL', "9:8", "expected 1 to 3 grid expressions"),
    ('grid = ["cdiv(n_rows, 4)", "BLOCK // num_warps"]', 'grid = "1"', "9:8", "grid = [...]"),
    (
        'where = "',
        'guards = "some"\nwhere = "',
        "10:10",
        'expected "each" or "together", got "some"',
    ),
    ("BLOCK * num_warps", "BLOCK * n_rowz", "10:18", "`n_rowz` is unknown"),
    ("<= 32768", "<=", "10:30", "got the end"),
]


@pytest.mark.parametrize(("old", "new", "location", "message"), _MISTAKES)
def test_mistakes(folder: Path, old: str, new: str, location: str, message: str) -> None:
    assert _FULL.count(old) >= 1
    with pytest.raises(ManifestError) as caught:
        _parse(folder, _FULL.replace(old, new, 1))
    report = str(caught.value)
    assert report.startswith(f"{folder / 'kernels.toml'}:{location}: error: "), report
    for part in message.split(" | "):
        assert part in report


def test_of_many_mistakes_the_first_are_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = "".join(f"key{number} = 1\n" for number in range(1000))
    rendered: list[DiagnosticError] = []
    monkeypatch.setattr(DiagnosticError, "render", lambda error: rendered.append(error) or "")
    with pytest.raises(ManifestError) as caught:
        _parse(folder, keys + _FULL)
    assert rendered == []  # each costs a look at the file
    error = caught.value
    assert "'key0'" in error.message
    assert "'key99'" in error.others[-2].message
    assert error.others[-1].message == "900 more mistakes"
    assert len(error.others) == 100


def test_all_mistakes_are_reported_at_once(folder: Path) -> None:
    text = _FULL + _SECOND.replace('x_ptr = "*fp32"', 'x_ptr = "*fp23"')
    for old, new in [
        ('version = "0.1.0"', 'vresion = "0.1.0"'),
        ('"sm_80"]', '"sm_70"]'),
        ('eps = "fp32"', 'epps = "fp32"'),
        ("BLOCK = 4096", "BLOKC = 4096"),
        ("num_warps = [4, 8]", "num_warps = [3]"),
    ]:
        assert old in text
        text = text.replace(old, new, 1)
    with pytest.raises(ManifestError) as caught:
        _parse(folder, text)
    error = caught.value
    reports = [mistake.describe() for mistake in (error, *error.others)]
    assert [(mistake["line"], mistake["got"]) for mistake in reports] == [
        (3, "the unknown key 'vresion'"),
        (4, "'sm_70'"),
        (16, "'epps'"),
        (20, "'BLOKC'"),
        (24, "3"),
        (29, "'fp23'"),
    ]
    assert reports[2] == {
        "file": str(folder / "kernels.toml"),
        "line": 16,
        "column": 1,
        "message": "expected an argument of rmsnorm_kernel, got 'epps'",
        "expected": "an argument of rmsnorm_kernel",
        "got": "'epps'",
        "remedy": "did you mean 'eps'?",
    }
    assert error.render().count(": error: ") == len(reports)


def test_a_wrong_dtype_of_a_variable_hides_no_mistake_of_the_signature(folder: Path) -> None:
    text = _FULL
    for old, new in [
        ('T = ["fp16", "bf16"]', 'T = ["fp16", "bf17"]'),
        ('x_ptr = "*T:16"', 'x_ptr = "*T:15"'),
        ('eps = "fp32"', 'another = "fp32"'),
        ('stride = "i32:16?"', 'strid = "i32:16?"'),
    ]:
        assert old in text
        text = text.replace(old, new, 1)
    with pytest.raises(ManifestError) as caught:
        _parse(folder, text)
    error = caught.value
    reports = [mistake.describe() for mistake in (error, *error.others)]
    assert [mistake["got"] or mistake["message"] for mistake in reports] == [
        "'bf17'",
        "'strid'",
        "'another'",
        "'*T:15'",
        "expected a type for argument 'eps' of rmsnorm_kernel",  # not `stride`: it is misspelt
    ]


def test_limits_reach_the_compiles(folder: Path) -> None:
    limits = "[kernel.limits]\nspill_bytes = 0\nptxas_seconds = 7\noperations = 9\n"
    manifest = _parse(folder, _FULL.replace("[kernel.configs]", f"{limits}[kernel.configs]"))
    (kernel,) = manifest.kernels
    assert kernel.spill_bytes == 0
    (first, *_) = expand(kernel, manifest.targets, autotune_configs).variants
    expected = CompileLimits(ptxas_seconds=7, operations=9)
    assert kernel.limits == first.request.limits == expected
    (kernel,) = _parse(folder, _FULL).kernels
    assert (kernel.limits, kernel.spill_bytes) == (CompileLimits(), 256)


def test_a_mistake_shows_its_line_and_caret(folder: Path) -> None:
    with pytest.raises(ManifestError) as caught:
        _parse(folder, _FULL.replace('n_rows = "i32"', 'n_rows = "int32"'))
    lines = str(caught.value).splitlines()
    assert lines[1:3] == ['  n_rows = "int32"', "           ^^^^^^^".replace("  ", "  ", 1)]


def test_duplicate_kernels_name_both_places(folder: Path) -> None:
    with pytest.raises(ManifestError) as caught:
        _parse(folder, _FULL + _SECOND + _SECOND)
    report = str(caught.value)
    assert "kernels.toml:33:10: error: expected a unique name, got 'plain'" in report
    assert "kernels.toml:27:10" in report


def test_configs_given_twice(folder: Path) -> None:
    text = _GEMM.replace("grid =", 'configs = "autotune"\ngrid =')
    with pytest.raises(ManifestError, match="expected either 'configs' or"):
        _parse(folder, _FULL + text)


def test_config_table_without_a_constexpr(folder: Path) -> None:
    with pytest.raises(ManifestError) as caught:
        _parse(folder, _FULL + _GEMM.replace("BM = 64\nBK = 64", "BM = 64"))
    assert "kernels.toml:36:10" in str(caught.value)
    assert "parameter 'BK' in this config" in caught.value.message


def test_config_table_twice(folder: Path) -> None:
    with pytest.raises(ManifestError, match="expected each config once"):
        _parse(folder, _FULL + _GEMM + "[[kernel.config]]\nBM = 64\nBK = 64\n")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[BM,BK]", "[BM,BX]", "as block extent, got 'BX'"),
        ("desc.shape[1]", "desc.shape[2]", "`desc` has 2 dimensions"),
        ("desc.shape[1]", "desc", "expected an integer argument, `desc` is not one"),
    ],
)
def test_descriptor_mistakes(folder: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        _parse(folder, _FULL + _GEMM.replace(old, new))
    assert message in caught.value.message


def test_source_that_is_not_python(folder: Path) -> None:
    with pytest.raises(CompileError, match=r"broken\.py:1"):
        _parse(folder, _FULL.replace("norm.py:", "broken.py:"))


def test_missing_manifest(tmp_path: Path) -> None:
    (tmp_path / "kernels.toml").write_text("")
    with pytest.raises(ManifestError, match=r"did you mean 'kernels\.toml'") as caught:
        load(str(tmp_path / "kernel.toml"))
    assert caught.value.message.startswith("expected a manifest, cannot read")


def test_manifest_that_is_a_folder_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot read"):
        load(str(tmp_path))
    (tmp_path / "k.toml").write_bytes(b"\xff")
    with pytest.raises(ManifestError, match="in UTF-8"):
        load(str(tmp_path / "k.toml"))


def test_deep_nesting_is_a_manifest_error() -> None:
    with pytest.raises(ManifestError, match=r"expected TOML"):
        parse("x = " + "[" * 100_000 + "]" * 100_000, "kernels.toml")


@pytest.mark.parametrize("end", range(0, len(_FULL), 7))
def test_every_truncation_is_a_typed_error_or_fine(folder: Path, end: int) -> None:
    with contextlib.suppress(DiagnosticError):
        assert _parse(folder, _FULL[:end]).kernels


@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(_FULL)), st.integers(0, 4), st.text(max_size=3)),
        min_size=1,
        max_size=4,
    )
)
def test_any_edit_is_a_typed_error_or_fine(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int, str]]
) -> None:
    folder = tmp_path_factory.mktemp("edited")
    (folder / "norm.py").write_text(_SOURCE)
    text = _FULL
    for position, length, replacement in edits:
        text = text[:position] + replacement + text[position + length :]
    try:
        manifest = parse(text, str(folder / "kernels.toml"))
    except DiagnosticError as error:
        loc = error.loc
        assert loc is not None
        assert loc.line <= text.count("\n") + 2
    else:
        assert manifest.kernels


def test_names_of_grid_and_where_are_checked_although_a_type_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(
        "import triton\nimport triton.language as tl\n@triton.jit\n"
        "def k(x, d, n, BLOCK: tl.constexpr): tl.store(x, n)\n"
    )
    text = """
[package]
name = "p"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "k.py:k"
grid = ["cdiv(n, BLOCK) + z"]
where = "BLOKC > n"
[kernel.signature]
x = "*fp3"
d = "{descriptor}"
n = "*fp8e4b15"
[kernel.configs]
BLOCK = [64]
"""
    (tmp_path / "k.toml").write_text(text.replace("{descriptor}", "i32"))
    with pytest.raises(ManifestError) as caught:
        load(str(tmp_path / "k.toml"))
    report = str(caught.value)
    for excerpt in ("'fp3'", "'fp8e4b15'", "say *u8", "`z`", "`BLOKC`"):
        assert excerpt in report, report
    (tmp_path / "k.toml").write_text(
        text.replace("{descriptor}", "tensordesc<bf16[BLOCK, BLOCKS]>").replace(" + z", "")
    )
    with pytest.raises(ManifestError) as caught:
        load(str(tmp_path / "k.toml"))
    assert "'BLOCKS'" in str(caught.value)
    assert "'fp3'" in str(caught.value)
