"""`triton.language.target_info`: a kernel's or file's queries about the GPU.

The answers are constants of the compilation's target.
"""

from __future__ import annotations

from aotc.frontend.emitter import mistake
from aotc.frontend.values import Operand, Record, RecordType, StaticCall
from aotc.ir.diagnostics import did_you_mean

TARGET_INFO = "triton.language.target_info"
NAMES = (
    "current_target",
    "cuda_capability_geq",
    "is_cuda",
    "is_hip",
    "is_hip_cdna2",
    "is_hip_cdna3",
    "is_hip_cdna4",
    "is_hip_gfx1250",
)
"""Functions of the module, in releases with it."""

_TARGET = RecordType("GPUTarget", ("backend", "arch", "warp_size"))


def arch_of(target: str) -> int:
    """Return the compute capability of a target as in Triton: 90 for sm_90a, 0 for no target."""
    digits = "".join(char for char in target if char.isdigit())
    return int(digits) if digits else 0


def target_info_member(name: str, target: str) -> StaticCall:
    """Return a function of the module, for a target. Raises: CompileError if there is none."""
    arch = arch_of(target)

    def current_target() -> Operand:
        return Record.of(_TARGET, ("cuda", arch, 32))

    def cuda_capability_geq(major: Operand, minor: Operand = 0) -> Operand:
        if not isinstance(major, int) or not isinstance(minor, int):
            raise mistake("cuda_capability_geq takes two numbers, such as 9 and 0")
        return arch >= 10 * major + minor

    def is_cuda() -> Operand:
        return True

    def is_other_vendor() -> Operand:
        return False

    functions = {
        "current_target": current_target,
        "cuda_capability_geq": cuda_capability_geq,
        "is_cuda": is_cuda,
    }
    if name not in NAMES:
        full = f"tl.target_info.{name}"
        raise mistake(f"unknown name {full}", remedy=did_you_mean(name, NAMES), feature=full)
    return StaticCall(f"tl.target_info.{name}", functions.get(name, is_other_vendor))
