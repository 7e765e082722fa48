"""Queries of a kernel about its target GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.frontend import autotune_configs, translate
from aotc.ir.diagnostics import CompileError
from aotc.ir.text import print_kernel
from tests.frontend.conftest import Sources

SOURCE = """
import triton
import triton.language as tl
from triton.language import target_info
from triton.language.target_info import *

HAS_TMA = tl.constexpr(target_info.cuda_capability_geq(9))


@triton.constexpr_function
def is_at_least(major, minor):
    return target_info.cuda_capability_geq(major, minor)


@triton.jit
def k(out):
    tl.static_assert(tl.target_info.is_cuda() and not is_hip())
    tl.store(out, tl.target_info.current_target().arch)
    tl.static_print(HAS_TMA, is_at_least(8, 6), cuda_capability_geq(10, 0))
    tl.static_print(tl.target_info.current_target().warp_size)
"""


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("sm_80", "False False False"),
        ("sm_86", "False True False"),
        ("sm_90a", "True True False"),
        ("sm_100a", "True True True"),
    ],
)
def test_answers_are_of_the_target(tmp_path: Path, target: str, expected: str) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(SOURCE)
    translation = translate(str(path), "k", {"out": "*i32"}, {}, target=target)
    assert list(translation.prints) == [expected, "32"]
    arch = "".join(filter(str.isdigit, target))
    assert f"value = {arch}," in print_kernel(translation.kernel)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("is_cudaa()", "unknown name tl.target_info.is_cudaa"),
        ('cuda_capability_geq("9")', "takes two numbers"),
        ("cuda_capability_geq()", "does not take these arguments"),
    ],
)
def test_mistakes(tmp_path: Path, call: str, expected: str) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(SOURCE.replace("tl.target_info.is_cuda()", f"tl.target_info.{call}"))
    with pytest.raises(CompileError, match=expected):
        translate(str(path), "k", {"out": "*i32"}, {}, target="sm_90a")


_FACTS = """
import torch
from triton.runtime import driver

IS_HOPPER = "H100" in torch.cuda.get_device_name(0) or torch.cuda.get_device_capability()[0] == 9
NUM_SMS = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count

def shared():
    found = [
        driver.active.utils.get_device_properties(i)["max_shared_mem"]
        for i in range(torch.cuda.device_count())
    ]
    return max(found)

@triton.autotune(
    [triton.Config({"BLOCK": 64 if shared() < 200000 else 128}, num_warps=8 if IS_HOPPER else 4)]
    + [triton.Config({"BLOCK": NUM_SMS}, num_warps=torch.cuda.get_device_properties(0).major)],
    key=[],
)
@triton.jit
def k(x, BLOCK: tl.constexpr):
    pass
"""


@pytest.mark.parametrize(
    ("target", "facts", "expected"),
    [
        ("sm_90a", {}, [(128, 8), (132, 9)]),
        ("sm_86", {}, [(64, 4), (72, 8)]),
        ("sm_90a", {"num_sms": 114, "max_shared_bytes": 99}, [(64, 8), (114, 9)]),
        ("sm_80", {"torch.cuda.get_device_name()": "an H100"}, [(64, 8), (108, 8)]),
    ],
)
def test_configs_may_ask_about_the_gpu(
    sources: Sources, target: str, facts: dict[str, object], expected: list[tuple[int, int]]
) -> None:
    configs = autotune_configs(sources.write(_FACTS), "k", target=target, facts=facts)
    assert [(config["BLOCK"], config["num_warps"]) for config in configs] == expected


def test_without_a_target_nothing_is_known_of_it(sources: Sources) -> None:
    with pytest.raises(CompileError, match="is not known without running the file"):
        autotune_configs(sources.write(_FACTS), "k")
