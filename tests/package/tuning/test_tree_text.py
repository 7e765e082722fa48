"""Selections as text and as data."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

from aotc.ir.expression import parse
from aotc.package.archive.index import Archive
from aotc.package.archive.selection import ANY_GPU, Branch, Selection
from aotc.package.tuning.tree_text import describe, text

_TREE = Branch(
    parse("n_rows"), 64, Branch(parse("stride"), -1, (0,), (1, 0)), Branch(parse("n_rows"), 99, (0,), (1,))
)  # fmt: skip


def test_a_tree_is_conditions_and_configs(samples: SimpleNamespace) -> None:
    selections = (
        Selection("sm_90a", ANY_GPU, 3, (1,)),
        Selection("sm_90a", "NVIDIA H200", 0, _TREE),
    )
    kernel = replace(samples.norm, selections=selections)
    shown = text(Archive("n", "1", (kernel, samples.copy)))
    assert (
        shown
        == """\
norm for sm_90a, any GPU, T=bf16, CAUSAL=false:
  num_warps=8 stages=x

norm for sm_90a, NVIDIA H200, T=fp16, CAUSAL=true:
  if n_rows <= 64:
    if stride <= -1:
      num_warps=4 stages=None
    else:
      num_warps=8 stages=x, then num_warps=4 stages=None
  elif n_rows <= 99:
    num_warps=4 stages=None
  else:
    num_warps=8 stages=x

copy: the first config, in the manifest's order, whose guards hold"""
    )


def test_a_tree_is_json_ready(samples: SimpleNamespace) -> None:
    kernel = replace(samples.norm, selections=(Selection("sm_90a", ANY_GPU, 3, _TREE),))
    (data,) = json.loads(json.dumps(describe(kernel)))
    assert (data["target"], data["gpu"]) == ("sm_90a", None)
    assert (data["types"], data["choices"]) == ({"T": "bf16"}, {"CAUSAL": False})
    low = data["tree"]["low"]
    assert (low["feature"], low["threshold"]) == ("stride", -1)
    assert low["high"] == [{"num_warps": 8, "stages": "x"}, {"num_warps": 4, "stages": None}]
