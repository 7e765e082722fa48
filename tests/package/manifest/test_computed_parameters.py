"""Heuristics of a launch's integers: both values are built, and a launch gets the right one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.compiler import autotune_configs
from aotc.ir import expression
from aotc.ir.diagnostics import ManifestError
from aotc.package.manifest.computed_parameters import crossed
from aotc.package.manifest.read import load
from aotc.package.manifest.variant_grid import Expansion, expand
from aotc.target import TARGETS

_SOURCE = """
import triton
import triton.language as tl
@triton.autotune([triton.Config({"BLOCK": b}, num_warps=4) for b in (64, 128)], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0, "WIDE": lambda a: a["n"] > a["m"]})
@triton.jit
def kernel(x, n, m, BLOCK: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr):
    tl.store(x, EVEN)

@triton.jit
def later(x, n, m, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    tl.store(x, EVEN)

later = triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})(later)
"""
_MANIFEST = """
[package]
name = "p"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "k.py:{name}"
signature = {{ x = "*i32:16", n = "i32", m = "i32" }}
{rest}
"""


def _expand(folder: Path, rest: str, name: str = "kernel") -> Expansion:
    (folder / "k.py").write_text(_SOURCE)
    (folder / "kernels.toml").write_text(_MANIFEST.format(name=name, rest=rest))
    (spec,) = load(str(folder / "kernels.toml")).kernels
    return expand(spec, [TARGETS["sm_90a"]], autotune_configs)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Expansion:
    return _expand(tmp_path_factory.mktemp("tuned"), 'configs = "autotune"\nwhere = "n > 0"')


@given(n=st.integers(-300, 300), m=st.integers(-300, 300))
def test_the_config_whose_guard_holds_is_the_heuristics(tuned: Expansion, n: int, m: int) -> None:
    assert len(tuned.configs) == 8
    chosen: list[tuple[int, bool, bool]] = []
    for variant in tuned.variants:
        guards = [tuned.guards[index] for index in variant.guards]
        conditions = [guard.expression for guard in guards if not guard.is_promise]
        if all(expression.evaluate(guard, {"n": n, "m": m}) for guard in conditions):
            config = dict(variant.config)
            chosen.append((int(config["BLOCK"]), bool(config["EVEN"]), bool(config["WIDE"])))
    assert chosen == ([(b, n % b == 0, n > m) for b in (64, 128)] if n > 0 else [])


@pytest.mark.parametrize(
    "rest",
    [
        "constants = { BLOCK = 64 }",
        "[kernel.configs]\nBLOCK = [64]",
        "[[kernel.config]]\nBLOCK = 64",
    ],
)
def test_each_way_to_give_configs(tmp_path: Path, rest: str) -> None:
    expansion = _expand(tmp_path, rest, "later")
    assert [dict(item)["EVEN"] for item in expansion.configs] == [True, False]
    guards = [expansion.guards[index] for item in expansion.variants for index in item.guards]
    assert [item.text for item in guards if not item.is_promise] == [
        "1 == (n % 64 == 0)",
        "0 == (n % 64 == 0)",
    ]


def test_what_the_manifest_gives_is_not_computed(tmp_path: Path) -> None:
    expansion = _expand(tmp_path, "constants = { BLOCK = 64, EVEN = true }", "later")
    assert expansion.configs == ((),)
    assert all(guard.is_promise for guard in expansion.guards)


def test_configs_are_crossed_with_what_they_do_not_have() -> None:
    axes = (("A", (True, False)), ("B", (1,)))
    configs = list(crossed([(("A", True),), (("C", 3),)], axes))
    assert configs == [
        (("A", True), ("B", 1)),
        (("C", 3), ("A", True), ("B", 1)),
        (("C", 3), ("A", False), ("B", 1)),
    ]


@pytest.mark.parametrize(("where", "most"), [("", 6), ('where = "E0 == E1"', 10)])
def test_many_computed_parameters_are_refused_before_they_are_combined(
    tmp_path: Path, where: str, most: int
) -> None:
    count = 24
    functions = ", ".join(f'"E{i}": lambda a: a["n"] > {i}' for i in range(count))
    parameters = ", ".join(f"E{i}: tl.constexpr" for i in range(count))
    (tmp_path / "k.py").write_text(
        "import triton\nimport triton.language as tl\n"
        f"@triton.heuristics({{{functions}}})\n@triton.jit\n"
        f"def many(x, n, m, {parameters}):\n    tl.store(x, E0)\n"
    )
    rest = f"{where}\n[[kernel.config]]\nnum_warps = 4\n"
    (tmp_path / "kernels.toml").write_text(_MANIFEST.format(name="many", rest=rest))
    (spec,) = load(str(tmp_path / "kernels.toml")).kernels
    with pytest.raises(ManifestError, match=f"at most {most} parameters .* got 24: E0, ") as caught:
        expand(spec, [TARGETS["sm_90a"]], autotune_configs)
    assert "constants = { E23 = true }" in caught.value.remedy
