"""What a kernel may ask about the GPU that it is compiled for."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.frontend import translate
from aotc.ir.diagnostics import CompileError
from aotc.ir.text import print_kernel

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
    made = translate(str(path), "k", {"out": "*i32"}, {}, target=target)
    assert list(made.prints) == [expected, "32"]
    arch = "".join(filter(str.isdigit, target))
    assert f"value = {arch}," in print_kernel(made.kernel)


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
