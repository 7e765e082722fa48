"""Expansion of a kernel into variants: the list, its order, and the limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir import expression
from aotc.ir.diagnostics import ManifestError
from aotc.package.manifest.read import load
from aotc.package.manifest.toml_table import Constant
from aotc.package.manifest.variant_grid import MAX_VARIANTS, Expansion, expand
from aotc.target import TARGETS, Target

_SOURCE = """\
@triton.jit
def kernel(x_ptr, n, m, eps, BLOCK: tl.constexpr, CAUSAL: tl.constexpr = False):
    pass
"""

_HEAD = """\
[package]
name = "p"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "k.py:kernel"
"""

_SIGNATURE = """\
[kernel.signature]
x_ptr = "*T:16"
n = "i32:16?"
m = "i32=1"
eps = "fp32"
[kernel.types]
T = ["fp16", "bf16"]
"""

_BLOCK = "[kernel.constants]\nBLOCK = 128\n"


def _no_autotune(
    source: str, function: str, constants: Mapping[str, object], target: Target
) -> Sequence[Mapping[str, Constant]]:
    raise AssertionError(f"asked for the configs of {source}:{function}")


def _expand(
    folder: Path,
    body: str,
    targets: Sequence[str] = ("sm_90a",),
    autotune: Sequence[Mapping[str, Constant]] | None = None,
) -> Expansion:
    (folder / "k.py").write_text(_SOURCE)
    (folder / "kernels.toml").write_text(_HEAD + body)
    spec = load(str(folder / "kernels.toml")).kernels[0]
    reader = _no_autotune if autotune is None else lambda *_: autotune
    return expand(spec, [TARGETS[name] for name in targets], reader)


def test_every_axis_in_its_order(tmp_path: Path) -> None:
    body = _SIGNATURE + _BLOCK + "[kernel.choices]\nCAUSAL = [true, false]\n"
    body += "[kernel.configs]\nnum_warps = [4, 8]\n"
    expansion = _expand(tmp_path, body, ["sm_90a", "sm_80"])
    labels = [variant.label for variant in expansion.variants]
    assert len(labels) == 2 * 2 * 2 * 2 * 2
    assert len(set(labels)) == len(labels)
    assert labels[:5] == [
        "kernel sm_90a T=fp16 CAUSAL=true n:16 num_warps=4",
        "kernel sm_90a T=fp16 CAUSAL=true n:16 num_warps=8",
        "kernel sm_90a T=fp16 CAUSAL=true num_warps=4",
        "kernel sm_90a T=fp16 CAUSAL=true num_warps=8",
        "kernel sm_90a T=fp16 CAUSAL=false n:16 num_warps=4",
    ]
    assert labels[-1] == "kernel sm_80 T=bf16 CAUSAL=false num_warps=8"
    assert expansion.dropped == ()


def test_who_fetches_is_open_unless_a_config_says_so(tmp_path: Path) -> None:
    body = _SIGNATURE + _BLOCK + "[kernel.configs]\nwarp_specialize = [true, false]\n"
    expansion = _expand(tmp_path, body)
    assert list(expansion.configs) == [
        (("warp_specialize", True),),
        (("warp_specialize", False),),
    ]
    assert [variant.request.config.warp_specialize for variant in expansion.variants[:2]] == [
        True,
        False,
    ]
    assert expansion.variants[1].label.endswith("warp_specialize=false")
    (plain, *_) = _expand(tmp_path, _SIGNATURE + _BLOCK).variants
    assert plain.request.config.warp_specialize is None


def test_one_group_of_warps_computes_unless_a_config_says_so(tmp_path: Path) -> None:
    body = _SIGNATURE + _BLOCK + "[kernel.configs]\nnum_consumer_groups = [2, 1]\n"
    expansion = _expand(tmp_path, body)
    assert [variant.request.config.num_consumer_groups for variant in expansion.variants[:2]] == [
        2,
        1,
    ]
    (plain, *_) = _expand(tmp_path, _SIGNATURE + _BLOCK).variants
    assert plain.request.config.num_consumer_groups == 1


def test_requests_are_complete(tmp_path: Path) -> None:
    body = _SIGNATURE + _BLOCK + "[kernel.configs]\nnum_warps = [8]\nmaxnreg = [128]\n"
    aligned, plain = _expand(tmp_path, body).variants[2:]
    assert aligned.request.source == (tmp_path / "k.py").as_posix()
    assert aligned.request.kernel == "kernel"
    assert aligned.request.signature == (
        ("x_ptr", "*bf16:16"),
        ("n", "i32:16"),
        ("m", "i32=1"),
        ("eps", "fp32"),
    )
    assert dict(plain.request.signature)["n"] == "i32"
    # CAUSAL is left to its default in the source.
    assert aligned.request.constants == (("BLOCK", 128),)
    options = (
        aligned.request.config.num_warps,
        aligned.request.config.num_stages,
        aligned.request.config.maxnreg,
    )
    assert options == (8, 3, 128)
    assert aligned.request.target == "sm_90a"


def test_guards_hold_promises_and_alternatives(tmp_path: Path) -> None:
    expansion = _expand(tmp_path, _SIGNATURE + _BLOCK)
    assert [(guard.text, guard.is_promise) for guard in expansion.guards] == [
        ("x_ptr is 16-byte aligned", True),
        ("n is a multiple of 16", False),
    ]
    assert [variant.guards for variant in expansion.variants] == [(0, 1), (0,)] * 2


def test_a_guard_compares_the_addresses_of_what_is_alone(tmp_path: Path) -> None:
    signature = """[kernel.signature]
x_ptr = "*fp16"
n = "i32:16?"
m = "*fp16 noalias"
eps = "*fp32"
"""
    expansion = _expand(tmp_path, signature + _BLOCK)
    (guard,) = [candidate for candidate in expansion.guards if candidate.is_promise]
    assert guard.text == "m points at no memory of x_ptr, eps"
    where = expansion.guards.index(guard)
    assert [where in variant.guards for variant in expansion.variants] == [True, True]
    for addresses, holds in (
        ((16, 32, 48), True),
        ((16, 16, 48), False),
        ((16, 48, 48), False),
        ((16, 32, 16), True),
        ((0, 0, 16), True),  # tensors without elements
    ):
        values: dict[str, int] = dict(zip(("x_ptr", "m", "eps"), addresses, strict=True))
        assert bool(expression.evaluate(guard.expression, values)) == holds


def test_two_optional_promises_make_four_variants(tmp_path: Path) -> None:
    body = _SIGNATURE.replace('"i32=1"', '"i64:16?"') + _BLOCK
    expansion = _expand(tmp_path, body)
    assert [variant.waived for variant in expansion.variants[:4]] == [
        (),
        ("m",),
        ("n",),
        ("n", "m"),
    ]


def test_promises_together_make_two_variants(tmp_path: Path) -> None:
    body = 'guards = "together"\n' + _SIGNATURE.replace('"i32=1"', '"i64:16?"') + _BLOCK
    expansion = _expand(tmp_path, body)
    assert [variant.waived for variant in expansion.variants[:2]] == [(), ("n", "m")]
    assert len(expansion.variants) == 4


def test_where_filters_configs(tmp_path: Path) -> None:
    body = 'where = "BLOCK * num_warps <= 512"\n' + _SIGNATURE
    body += "[kernel.configs]\nBLOCK = [64, 128]\nnum_warps = [4, 8]\n"
    expansion = _expand(tmp_path, body)
    assert expansion.configs == (
        (("BLOCK", 64), ("num_warps", 4)),
        (("BLOCK", 64), ("num_warps", 8)),
        (("BLOCK", 128), ("num_warps", 4)),
    )


def test_where_knows_the_defaults(tmp_path: Path) -> None:
    body = 'where = "num_warps == 4 and BLOCK == 128"\n' + _SIGNATURE + _BLOCK
    assert _expand(tmp_path, body).configs == ((),)


def test_where_that_refuses_all(tmp_path: Path) -> None:
    body = 'where = "BLOCK < 0"\n' + _SIGNATURE + _BLOCK
    with pytest.raises(ManifestError, match="it rejects all") as caught:
        _expand(tmp_path, body)
    assert "kernels.toml:7:9" in str(caught.value)


@pytest.mark.parametrize(
    ("where", "message"),
    [("maxnreg < 3", "`maxnreg` has no value"), ("1 // (BLOCK - 128) > 0", "division by zero")],
)
def test_where_that_cannot_be_evaluated(tmp_path: Path, where: str, message: str) -> None:
    body = f'where = "{where}"\n' + _SIGNATURE + _BLOCK
    with pytest.raises(ManifestError) as caught:
        _expand(tmp_path, body)
    assert message in caught.value.message
    assert caught.value.context == ["in config no config"]


def test_listed_configs(tmp_path: Path) -> None:
    body = _SIGNATURE + "[[kernel.config]]\nBLOCK = 64\n[[kernel.config]]\nBLOCK = 32\n"
    body += "num_stages = 1\n"
    expansion = _expand(tmp_path, body)
    assert expansion.configs == ((("BLOCK", 64),), (("BLOCK", 32), ("num_stages", 1)))
    assert [variant.config_index for variant in expansion.variants[:3]] == [0, 1, 0]


def test_an_autotuner_is_told_what_is_fixed(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(_SOURCE)
    body = 'configs = "autotune"\n' + _SIGNATURE.replace('"fp32"', '"none"')
    (tmp_path / "kernels.toml").write_text(_HEAD + body + "[kernel.constants]\nCAUSAL = true\n")
    received: list[Mapping[str, object]] = []

    def reader(
        _source: str, _function: str, constants: Mapping[str, object], _target: Target
    ) -> Any:
        received.append(constants)
        return [{"BLOCK": 64}]

    expand(load(str(tmp_path / "kernels.toml")).kernels[0], [TARGETS["sm_90a"]], reader)
    assert received == [{"m": 1, "eps": None, "CAUSAL": True}]


def test_an_autotuner_answers_for_each_target(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(_SOURCE)
    (tmp_path / "kernels.toml").write_text(_HEAD + 'configs = "autotune"\n' + _SIGNATURE)

    def reader(_source: str, _function: str, _constants: object, target: Target) -> Any:
        return [{"BLOCK": 64}, {"BLOCK": target.num_sms}]

    spec = load(str(tmp_path / "kernels.toml")).kernels[0]
    expansion = expand(spec, [TARGETS["sm_90a"], TARGETS["sm_80"]], reader)
    assert [dict(config) for config in expansion.configs] == [{"BLOCK": n} for n in (64, 132, 108)]
    built = {(v.target.name, v.config_index, v.values["BLOCK"]) for v in expansion.variants}
    assert built == {("sm_90a", 0, 64), ("sm_90a", 1, 132), ("sm_80", 0, 64), ("sm_80", 2, 108)}


def test_autotune_configs_come_from_the_source(tmp_path: Path) -> None:
    body = 'configs = "autotune"\n' + _SIGNATURE
    tuned = [{"BLOCK": 64, "num_warps": 4}, {"BLOCK": 128, "num_warps": 8}] * 2
    expansion = _expand(tmp_path, body, autotune=tuned)
    assert expansion.configs == (
        (("BLOCK", 64), ("num_warps", 4)),
        (("BLOCK", 128), ("num_warps", 8)),
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"BLOCK": 64, "BLOKC": 1}, "got 'BLOKC'"),
        ({"BLOCK": 64, "num_warps": 5}, "a power of two from 1 to 32 for num_warps, got 5"),
        ({"num_warps": 4}, "expected a value for the tl.constexpr parameter 'BLOCK'"),
        ({"BLOCK": 64, "CAUSAL": True}, "'CAUSAL' is in the manifest and in the source's"),
    ],
)
def test_wrong_autotune_config(
    tmp_path: Path, config: Mapping[str, Constant], message: str
) -> None:
    body = 'configs = "autotune"\n' + _SIGNATURE + "[kernel.choices]\nCAUSAL = [true, false]\n"
    with pytest.raises(ManifestError) as caught:
        _expand(tmp_path, body, autotune=[config])
    assert message in caught.value.message
    assert "kernels.toml:7:11" in str(caught.value)


def test_source_without_autotune(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"expected @triton\.autotune on 'kernel'"):
        _expand(tmp_path, 'configs = "autotune"\n' + _SIGNATURE, autotune=[])


def test_config_beyond_the_threads_is_dropped(tmp_path: Path) -> None:
    body = (
        _SIGNATURE + _BLOCK + "[kernel.configs]\nnum_warps = [16, 32]\nnum_consumer_groups = [2]\n"
    )
    expansion = _expand(tmp_path, body)
    assert {variant.request.config.num_warps for variant in expansion.variants} == {16}
    assert expansion.dropped == (
        (
            "kernel sm_90a: num_warps = 32, num_consumer_groups = 2: num_warps = 32 in 2 groups takes "
            "2048 threads, the limit is 1024"
        ),
    )


def test_clusters_are_dropped_where_there_are_none(tmp_path: Path) -> None:
    body = _SIGNATURE + _BLOCK + "[kernel.configs]\nnum_ctas = [1, 2, 16]\n"
    expansion = _expand(tmp_path, body, ["sm_80", "sm_90a", "sm_100a"])
    ctas = [
        (variant.target.name, variant.request.config.num_ctas) for variant in expansion.variants
    ]
    assert sorted(set(ctas)) == [
        *[("sm_100a", ctas) for ctas in (1, 2)],
        ("sm_80", 1),
        *[("sm_90a", ctas) for ctas in (1, 2, 16)],
    ]
    takes = "takes clusters of 16 CTAs, the limit is 8"
    assert expansion.dropped == (
        "kernel sm_80: num_ctas = 2: num_ctas = 2 needs clusters",
        "kernel sm_80: num_ctas = 16: num_ctas = 16 needs clusters",
        f"kernel sm_100a: num_ctas = 16: num_ctas = 16 {takes}",
    )


def test_no_config_left_is_an_error(tmp_path: Path) -> None:
    body = _SIGNATURE + _BLOCK + "[kernel.configs]\nnum_warps = [32]\nnum_consumer_groups = [2]\n"
    with pytest.raises(ManifestError, match="that sm_90a can hold, got none") as caught:
        _expand(tmp_path, body)
    assert any("2048 threads" in line for line in caught.value.context)


def test_explosion_of_configs_names_the_count(tmp_path: Path) -> None:
    # A list of a million values each would fill the memory if the product were listed first.
    axis = ", ".join(map(str, range(1, 1025)))
    body = _SIGNATURE + f"[kernel.configs]\nBLOCK = [{axis}]\nCAUSAL = [{axis}]\n"
    with pytest.raises(ManifestError, match=r"got 1048576 \(1024 BLOCK x 1024 CAUSAL\)"):
        _expand(tmp_path, body)


def test_explosion_of_variants_names_the_factors(tmp_path: Path) -> None:
    axis = ", ".join(map(str, range(MAX_VARIANTS // 4 + 1)))
    body = _SIGNATURE + f"[kernel.configs]\nBLOCK = [{axis}]\n"
    with pytest.raises(ManifestError) as caught:
        _expand(tmp_path, body)
    assert "got 65540: 1 targets x 2 types x 1 choices x 2 guards x 16385" in caught.value.message


def test_explosion_of_choices_is_told_before_they_are_listed(tmp_path: Path) -> None:
    axis = ", ".join(map(str, range(1000)))
    body = _SIGNATURE + _BLOCK + f"[kernel.choices]\nCAUSAL = [{axis}]\n"
    path = tmp_path / "kernels.toml"
    path.write_text(_HEAD + body)
    (tmp_path / "k.py").write_text(_SOURCE)
    spec = load(str(path)).kernels[0]
    spec = replace(spec, choices=dict.fromkeys(("A", "B", "C"), spec.choices["CAUSAL"]))
    with pytest.raises(
        ManifestError, match="got at least 4000000000: .* 1000000000 choices"
    ) as caught:
        expand(spec, [TARGETS["sm_90a"]], _no_autotune)
    assert caught.value.remedy.startswith("list fewer `choices`")
    assert caught.value.remedy.endswith(" (A has 1000, B has 1000, C has 1000)")


def test_where_is_not_asked_of_too_many_configs_and_choices(tmp_path: Path) -> None:
    axis = ", ".join(map(str, range(1, 1001)))
    body = _SIGNATURE + f"[kernel.choices]\nCAUSAL = [{axis}]\n"
    body += f"[kernel.configs]\nBLOCK = [{axis}]\n"
    with pytest.raises(ManifestError, match=r"got 1000 \(1000 BLOCK\) for each of 1000 choices"):
        _expand(tmp_path, body)


def test_too_many_promises(tmp_path: Path) -> None:
    names = [f"a{index}" for index in range(65)]
    (tmp_path / "many.py").write_text(f"def many({', '.join(names)}): pass\n")
    body = _HEAD.replace("k.py:kernel", "many.py:many") + "[kernel.signature]\n"
    body += "\n".join(f'{name} = "*fp32:16"' for name in names)
    (tmp_path / "many.toml").write_text(body)
    spec = load(str(tmp_path / "many.toml")).kernels[0]
    with pytest.raises(ManifestError, match="at most 64 conditions on the arguments, got 65"):
        expand(spec, [TARGETS["sm_80"]], _no_autotune)


@given(
    num_targets=st.integers(1, 3),
    num_types=st.integers(1, 3),
    choices=st.integers(1, 2),
    warps=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, unique=True),
    blocks=st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
)
def test_the_count_is_the_product(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    num_targets: int,
    num_types: int,
    choices: int,
    warps: list[int],
    blocks: list[int],
) -> None:
    dtypes = ["fp16", "bf16", "fp32"][:num_types]
    body = _SIGNATURE.replace('["fp16", "bf16"]', str(dtypes).replace("'", '"'))
    body += f"[kernel.choices]\nCAUSAL = {[0, 1][:choices]}\n"
    body += f"[kernel.configs]\nnum_warps = {warps}\nBLOCK = {blocks}\n"
    targets = ["sm_80", "sm_90a", "sm_120a"][:num_targets]
    expansion = _expand(tmp_path_factory.mktemp("grid"), body, targets)
    sizes = (num_targets, num_types, choices, 2, len(warps), len(blocks))
    assert len(expansion.variants) == math.prod(sizes)
    assert len({variant.request for variant in expansion.variants}) == len(expansion.variants)


def test_where_on_an_argument_becomes_a_guard_of_its_config(tmp_path: Path) -> None:
    body = 'where = "BLOCK > 64 and n <= BLOCK or num_warps == 8"\n' + _SIGNATURE
    body += "[kernel.configs]\nBLOCK = [64, 128, 256]\nnum_warps = [4, 8]\n"
    expansion = _expand(tmp_path, body)
    assert [dict(config) for config in expansion.configs] == [
        {"BLOCK": 64, "num_warps": 8},
        {"BLOCK": 128, "num_warps": 4},
        {"BLOCK": 128, "num_warps": 8},
        {"BLOCK": 256, "num_warps": 4},
        {"BLOCK": 256, "num_warps": 8},
    ]
    conditions = [guard.text for guard in expansion.guards[2:]]
    assert conditions == ["n <= 128", "n <= 256"]
    assert not any(guard.is_promise for guard in expansion.guards[2:])
    by_config = {variant.config_index: variant.guards[-1] for variant in expansion.variants}
    assert [by_config[index] for index in (1, 3)] == [2, 3]
    assert all(by_config[index] < 2 for index in (0, 2, 4))


_CHOICES = "[kernel.choices]\nCAUSAL = [true, false]\n"


def test_where_filters_configs_by_choices(tmp_path: Path) -> None:
    body = 'where = "not CAUSAL and n < 9 or BLOCK == 128"\n' + _SIGNATURE + _CHOICES
    body += "[kernel.configs]\nBLOCK = [64, 128]\n"
    expansion = _expand(tmp_path, body)
    assert [dict(config) for config in expansion.configs] == [{"BLOCK": 64}, {"BLOCK": 128}]
    built = {(v.choices[0], v.values["BLOCK"]): v.guards[-1] for v in expansion.variants}
    assert built.keys() == {(True, 128), (False, 64), (False, 128)}
    assert expansion.guards[built[False, 64]].text == "n < 9"
    assert expansion.guards[built[False, 128]].text != "n < 9"


def test_where_leaves_a_config_for_every_choice(tmp_path: Path) -> None:
    body = 'where = "not CAUSAL"\n' + _SIGNATURE + _BLOCK + _CHOICES
    with pytest.raises(ManifestError, match="accept a config for CAUSAL = true on sm_90a") as error:
        _expand(tmp_path, body)
    assert error.value.loc is not None
    assert error.value.loc.line == 7


def test_where_knows_fixed_arguments(tmp_path: Path) -> None:
    body = 'where = "m == 1 and BLOCK > 64"\n' + _SIGNATURE
    body += "[kernel.configs]\nBLOCK = [64, 128]\n"
    expansion = _expand(tmp_path, body)
    assert [dict(config) for config in expansion.configs] == [{"BLOCK": 128}]


def test_where_names_what_is_no_integer(tmp_path: Path) -> None:
    body = 'where = "x_ptr < 3"\n' + _SIGNATURE + _BLOCK
    with pytest.raises(ManifestError, match="expected an integer argument"):
        _expand(tmp_path, body)


_NULLABLE = """\
[kernel.signature]
x_ptr = ["*fp16:16{optional}", "none"]
n = "i32:16?"
m = "none"
eps = "fp32"
"""


def test_pointers_that_may_be_none(tmp_path: Path) -> None:
    expansion = _expand(tmp_path, _NULLABLE.format(optional="") + _BLOCK)
    texts = [guard.text for guard in expansion.guards]
    assert texts == [
        "x_ptr is not None",
        "x_ptr is None",
        "x_ptr is 16-byte aligned",
        "n is a multiple of 16",
    ]
    assert [guard.is_promise for guard in expansion.guards] == [False, False, True, False]
    assert [(v.label, v.guards) for v in expansion.variants] == [
        ("kernel sm_90a n:16", (2, 0, 3)),
        ("kernel sm_90a", (2, 0)),
        ("kernel sm_90a x_ptr=none n:16", (2, 1, 3)),
        ("kernel sm_90a x_ptr=none", (2, 1)),
    ]
    present, absent = (
        expansion.variants[0].request.signature,
        expansion.variants[2].request.signature,
    )
    assert present == (("x_ptr", "*fp16:16"), ("n", "i32:16"), ("m", "none"), ("eps", "fp32"))
    assert absent == (("x_ptr", "none"), *present[1:])


@pytest.mark.parametrize(("guards", "count"), [("each", 6), ("together", 4)])
def test_a_pointer_that_is_none_has_no_promise(tmp_path: Path, guards: str, count: int) -> None:
    """A missing pointer has no promise, and so no two variants for one."""
    body = f'guards = "{guards}"\n' + _NULLABLE.format(optional="?") + _BLOCK
    expansion = _expand(tmp_path, body)
    labels = [variant.label for variant in expansion.variants]
    assert len(set(labels)) == len(labels) == count
    aligned = [guard.text for guard in expansion.guards].index("x_ptr is 16-byte aligned")
    assert not any(aligned in v.guards for v in expansion.variants if v.absent)


def test_a_count_that_none_makes_too_large(tmp_path: Path) -> None:
    pointers = [f"p{number}" for number in range(17)]
    (tmp_path / "k.py").write_text(f"@triton.jit\ndef kernel({', '.join(pointers)}): pass\n")
    lines = [f'{name} = ["*fp32", "none"]' for name in pointers]
    (tmp_path / "kernels.toml").write_text(_HEAD + "[kernel.signature]\n" + "\n".join(lines))
    spec = load(str(tmp_path / "kernels.toml")).kernels[0]
    with pytest.raises(
        ManifestError, match=f"got at least {1 << 17}: 1 targets .* {1 << 17} guards"
    ):
        expand(spec, [TARGETS["sm_90a"]], _no_autotune)
