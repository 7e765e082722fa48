"""Operators of real archives: PyTorch parses their schemas, and eager calls reach the driver."""

from __future__ import annotations

from importlib import import_module, util
from typing import Any

import pytest

from aotc.runtime import Library
from aotc.torch import register, schema_of
from tests.support.fake_gpu import FakeGpu

needs_torch = pytest.mark.skipif(util.find_spec("torch") is None, reason="needs PyTorch")


def test_schemas_say_what_is_written(library: Library) -> None:
    add = schema_of(library["add"].info)
    assert add.startswith("add(Tensor")
    assert add.count("(a") == sum(
        p.access != "read" for p in library["add"].info.params if p.kind != "scalar"
    )
    info = library["choose"].info
    with pytest.raises(ValueError, match="choices of one type for 'MODE' of kernel 'choose'"):
        schema_of(info)
    choose = schema_of(info._replace(choices={**info.choices, "MODE": ("fast", None)}))
    assert "float a_bf16" in choose
    assert "SymInt a_u64" in choose
    assert "bool a_i1" in choose
    assert "bool CAUSAL" in choose
    assert "str? MODE" in choose


@needs_torch
def test_torch_parses_every_schema(library: Library) -> None:
    torch: Any = import_module("torch")
    for name in library.kernels:
        if name != "choose":
            torch._C.parse_schema(schema_of(library[name].info))


@needs_torch
def test_eager_calls_are_launches(library: Library, gpu: FakeGpu) -> None:
    ops = register(library, kernels=["add"], namespace="aotc_real")
    library["add"]((0x1000, "fp16"), 0x2000, 0x3000, 48)
    first = gpu.last()
    ops.add((0x1000, "fp16"), 0x2000, 0x3000, 48)
    assert gpu.last() == first
