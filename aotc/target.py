"""The target GPUs: limits, PTX version and features of each.

A target is a row of a table and nothing else decides a GPU's abilities. A pass asks
`Feature.STMATRIX in target.features` and never compares architecture numbers, so a new GPU is a new
row. The features here are those ptxas 13.5 accepts for each architecture; the test beside this file
assembles one instruction per feature and target and compares.

A target's PTX has the lowest version from 8.8 on that names it. LLVM does not refuse a lower version,
it ends the process, so the version is part of the target and never an option. LLVM generates the code
of some targets for a sibling with the same features; `.version` and `.target` are written afterwards.

Invariant: `TARGETS` is ordered by architecture, and a target is immutable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Flag, auto
from typing import Literal

from aotc.ir.diagnostics import Loc, ManifestError, did_you_mean

Variant = Literal["", "a", "f"]

# Limit of a kernel's parameters: more is for some GPUs and drivers alone.
MAX_PARAM_BYTES = 4096


class Feature(Flag):
    """Name a capability by its instruction."""

    TF32_MMA = auto()  # mma.sync m16n8k8 tf32
    BF16_MMA = auto()  # mma.sync m16n8k16 bf16
    FP64_MMA = auto()  # mma.sync m16n8k* f64; m8n8k4 is everywhere
    FP8_MMA = auto()  # mma.sync m16n8k32 e4m3 / e5m2
    FP8_CVT = auto()  # cvt to and from e4m3x2 / e5m2x2
    FP4_CVT = auto()  # cvt to and from e2m1x2
    BF16_ARITH = auto()  # add / mul / ex2 on bf16x2; fma.bf16x2 is everywhere
    CP_ASYNC = auto()  # cp.async
    LDMATRIX = auto()  # ldmatrix
    STMATRIX = auto()  # stmatrix
    MBARRIER_TX = auto()  # mbarrier.try_wait and transaction counts
    TMA = auto()  # cp.async.bulk.tensor, cp.reduce.async.bulk, tensormap.replace
    CLUSTERS = auto()  # barrier.cluster, mapa, st.async, multicast
    WGMMA = auto()  # wgmma.mma_async
    SETMAXNREG = auto()  # setmaxnreg
    TCGEN05 = auto()  # tcgen05.* and tensor memory
    BLOCK_SCALED_MMA = auto()  # mma.sync with block scales
    WIDE_GLOBAL = auto()  # 32-byte ld.global / st.global
    FP32X2 = auto()  # fma.rn.f32x2
    MAX3 = auto()  # max.f32 and min.f32 of three operands
    REDUX_FP32 = auto()  # redux.sync on fp32
    RED_VECTOR = auto()  # red.global.add.v4.f32
    BF16_ATOMICS = auto()  # red.global.add of bf16x2 in one instruction
    PDL = auto()  # griddepcontrol: programmatic dependent launch
    ELECT = auto()  # elect.sync


OPTIONAL_FEATURES: dict[str, Feature] = {
    "wgmma": Feature.WGMMA,
    "tma": Feature.TMA,
    "stmatrix": Feature.STMATRIX,
    "fp8_mma": Feature.FP8_MMA,
}
"""Optional features of a build, by the user's name: each has a substitute."""


CUDA_12_TOOLCHAIN, DEFAULT_TOOLCHAIN = "12.9", "13.5"
TOOLCHAINS: dict[str, tuple[int, int]] = {CUDA_12_TOOLCHAIN: (8, 8), DEFAULT_TOOLCHAIN: (9, 5)}
"""CUDA releases of ptxas, with the newest version of PTX each reads."""
PTXAS_VERSIONS = {CUDA_12_TOOLCHAIN: "12.9.86"}
"""The ptxas of releases before the default: one version each, which the release identifies."""


FACTS: dict[str, type] = {
    "num_sms": int,
    "device_name": str,
    "device_count": int,
    "max_shared_bytes": int,
    "shared_bytes_per_sm": int,
    "registers_per_sm": int,
    "max_threads_per_sm": int,
}
"""Facts about a GPU for a kernel's file to query, by name, and the type of each."""


_PARTITIONS = 4  # of an SM
_WARP_REGISTERS_UNIT = 256  # registers of a warp are allocated in units of so many
_REGISTER_UNIT = _WARP_REGISTERS_UNIT // 32


@dataclass(frozen=True, slots=True)
class Target:
    """One GPU architecture as the compiler sees it.

    `max_shared_bytes` is the limit of a CTA, static and dynamic, once the launcher opts in. The
    CTAs of an SM share `shared_bytes_per_sm`, less 1024 bytes of the system's for each. All GPUs
    with clusters run 8 CTAs; a larger `max_ctas_per_cluster` needs an attribute of the function,
    and that many working SMs in one GPC. `without` names the features switched off by the user.
    `lowered_as` names the sibling that LLVM generates code for, which shares its PTX. `num_sms` and
    `device_name` are of the GPU representing the architecture, and change no code but that of
    kernels asking for them. `facts` are the user's own answers (`FACTS`, or whole expressions).
    `cuda` is the first CUDA release whose driver runs the GPU, from 12.0 on. The ptxas of release
    `toolchain` assembles the code.
    """

    name: str
    major: int
    minor: int
    variant: Variant
    max_shared_bytes: int
    shared_bytes_per_sm: int
    max_threads_per_sm: int
    features: Feature
    max_threads_per_cta: int = 1024
    max_ctas_per_sm: int = 32
    max_ctas_per_cluster: int = 8
    registers_per_sm: int = 65536
    max_registers_per_thread: int = 255
    ptx_version: tuple[int, int] = (8, 8)
    lowered_as: str = ""
    without: tuple[str, ...] = ()
    num_sms: int = 0
    device_name: str = ""
    facts: tuple[tuple[str, bool | int | float | str], ...] = ()
    cuda: tuple[int, int] = (12, 0)
    toolchain: str = DEFAULT_TOOLCHAIN

    def __str__(self) -> str:
        return self.name

    @property
    def arch(self) -> int:
        """Architecture number as in `sm_90a`: 90."""
        return 10 * self.major + self.minor

    @property
    def llvm_features(self) -> str:
        """Feature string for LLVM's NVPTX target machine, such as "+ptx88"."""
        return f"+ptx{self.ptx_version[0]}{self.ptx_version[1]}"

    @property
    def known_facts(self) -> dict[str, int | str]:
        """Answers to each of `FACTS` for the architecture, or for its representative GPU."""
        facts = {name: getattr(self, name) for name in FACTS if name != "device_count"}
        return {**facts, "device_count": 1}

    @property
    def max_warps_per_block(self) -> int:
        return self.max_threads_per_cta // 32

    def ctas_by_registers(self, num_warps: int, registers: int) -> int:
        """Return how many CTAs of so many warps, and registers of a thread, the registers of an SM hold.

        Each partition of an SM has its share of them, and takes whole warps.

        Source: CUDA occupancy calculator, warp and register allocation granularity.
        """
        unit = _WARP_REGISTERS_UNIT
        warp_registers = -(-max(1, registers) * 32 // unit) * unit
        return self.registers_per_sm // _PARTITIONS // warp_registers * _PARTITIONS // num_warps

    def max_registers_of(self, num_warps: int) -> int:
        """Return how many registers a thread may have for an SM to hold a CTA of so many warps."""
        share = self.registers_per_sm // _PARTITIONS // (32 * -(-num_warps // _PARTITIONS))
        return min(self.max_registers_per_thread, share // _REGISTER_UNIT * _REGISTER_UNIT)

    @property
    def max_global_access_bytes(self) -> int:
        """Widest load or store of one thread to global memory."""
        return 32 if Feature.WIDE_GLOBAL in self.features else 16

    def threads_problem(self, num_warps: int, num_groups: int) -> str:
        """Return why no CTA has so many consumer groups of so many warps, or an empty string."""
        threads = 32 * num_warps * num_groups
        if threads <= self.max_threads_per_cta:
            return ""
        groups = f" in {num_groups} groups" if num_groups > 1 else ""
        limit = f"{threads} threads, the limit is {self.max_threads_per_cta}"
        return f"num_warps = {num_warps}{groups} takes {limit}"

    def excluding(self, names: Iterable[str], loc: Loc | None = None) -> Target:
        """Return the same GPU without the named features; a missing one is no mistake.

        Raises:
            ManifestError: no feature has this name, or it is not optional.
        """
        off = dict.fromkeys(self.without)
        features = self.features
        for name in names:
            if name not in OPTIONAL_FEATURES:
                listed = ", ".join(OPTIONAL_FEATURES)
                remedy = did_you_mean(name, OPTIONAL_FEATURES)
                message = f"expected a feature to do without ({listed}), got {name!r}"
                raise ManifestError(message, loc, remedy=remedy)
            off[name] = None
            features &= ~OPTIONAL_FEATURES[name]
        return replace(self, features=features, without=tuple(sorted(off)))

    def assembled_by(self, toolchain: str, loc: Loc | None = None) -> Target:
        """Return the same GPU with another release of ptxas.

        Raises:
            ManifestError: there is no such release here, or it does not know the GPU.
        """
        if toolchain not in TOOLCHAINS:
            message = f"expected a toolchain ({', '.join(TOOLCHAINS)}), got {toolchain!r}"
            raise ManifestError(message, loc, remedy=did_you_mean(toolchain, TOOLCHAINS))
        if self.ptx_version > TOOLCHAINS[toolchain]:
            newer = [name for name, newest in TOOLCHAINS.items() if self.ptx_version <= newest]
            message = (
                f"expected targets that the ptxas of CUDA {toolchain} knows, got {self.name!r}"
            )
            raise ManifestError(message, loc, remedy=f"toolchain = {newer[0]!r}, or leave it out")
        return replace(self, toolchain=toolchain)

    def runs_on(self, major: int, minor: int) -> bool:
        """Return whether a cubin for this target loads on a GPU of compute capability major.minor.

        An `a` cubin runs on exactly one capability, an `f` one on its family from its own minor
        up, a plain one on its major from its own minor up. Cubins of a system on chip run on it
        alone, and it runs no others.

        Source: CUDA Programming Guide, "Feature set compiler targets", "Binary compatibility".
        """
        own = self.major, self.minor
        if self.variant == "a" or own in ON_CHIP or (major, minor) in ON_CHIP:
            return (major, minor) == own
        return major == self.major and minor >= self.minor


ON_CHIP = ((8, 7), (8, 8))  # Tegra with plain targets: binary compatibility is for desktops alone


_SM_80 = (
    Feature.TF32_MMA
    | Feature.BF16_MMA
    | Feature.CP_ASYNC
    | Feature.LDMATRIX
)  # fmt: skip
_SM_89 = _SM_80 | Feature.FP8_MMA | Feature.FP8_CVT
_SM_90 = (
    _SM_89
    | Feature.FP64_MMA
    | Feature.BF16_ARITH
    | Feature.STMATRIX
    | Feature.MBARRIER_TX
    | Feature.TMA
    | Feature.CLUSTERS
    | Feature.SETMAXNREG
    | Feature.RED_VECTOR
    | Feature.BF16_ATOMICS
    | Feature.PDL
    | Feature.ELECT
)
_BLACKWELL = _SM_90 | Feature.FP4_CVT | Feature.WIDE_GLOBAL | Feature.FP32X2 | Feature.MAX3
_SM_110 = _BLACKWELL | Feature.TCGEN05
_SM_100 = _SM_110 | Feature.REDUX_FP32
_SM_120 = _BLACKWELL | Feature.BLOCK_SCALED_MMA

_KIB = 1024

# One GPU stands for each architecture: A100 SXM, A10, Jetson AGX Orin, T239, L40S, H100 and H200 SXM, B200, B300,
# Rubin, Jetson AGX Thor, GeForce RTX 5090, GB10. A family has the limits that all its members share.
TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            "sm_80", 8, 0, "", 163 * _KIB, 164 * _KIB, 2048, _SM_80,
            num_sms=108, device_name="NVIDIA A100-SXM4-80GB",
        ),
        Target(
            "sm_86", 8, 6, "", 99 * _KIB, 100 * _KIB, 1536, _SM_80, max_ctas_per_sm=16,
            num_sms=72, device_name="NVIDIA A10",
        ),
        Target(
            "sm_87", 8, 7, "", 163 * _KIB, 164 * _KIB, 1536, _SM_80, max_ctas_per_sm=16,
            num_sms=16, device_name="Orin",
        ),
        Target(
            "sm_88", 8, 8, "", 99 * _KIB, 100 * _KIB, 1536, _SM_80, max_ctas_per_sm=16,
            ptx_version=(9, 0), cuda=(13, 0), num_sms=12, device_name="T239",
        ),
        Target(
            "sm_89", 8, 9, "", 99 * _KIB, 100 * _KIB, 1536, _SM_89, max_ctas_per_sm=24,
            num_sms=142, device_name="NVIDIA L40S",
        ),
        Target(
            "sm_90a", 9, 0, "a", 227 * _KIB, 228 * _KIB, 2048, _SM_90 | Feature.WGMMA,
            max_ctas_per_cluster=16, num_sms=132, device_name="NVIDIA H100 80GB HBM3",
        ),
        Target(
            "sm_100a", 10, 0, "a", 227 * _KIB, 228 * _KIB, 2048, _SM_100,
            cuda=(12, 8), num_sms=148, device_name="NVIDIA B200",
        ),
        Target(
            "sm_100f", 10, 0, "f", 227 * _KIB, 228 * _KIB, 2048, _SM_100, lowered_as="sm_100a",
            cuda=(12, 9), num_sms=148, device_name="NVIDIA B200",
        ),
        Target(
            "sm_103a", 10, 3, "a", 227 * _KIB, 228 * _KIB, 2048, _SM_100,
            cuda=(12, 9), num_sms=148, device_name="NVIDIA B300 SXM6 AC",
        ),
        Target(
            "sm_107a", 10, 7, "a", 227 * _KIB, 228 * _KIB, 2048, _SM_100, lowered_as="sm_100a",
            ptx_version=(9, 4), cuda=(13, 4), num_sms=224, device_name="NVIDIA Rubin",
        ),
        Target(
            "sm_110a", 11, 0, "a", 227 * _KIB, 228 * _KIB, 1536, _SM_110, max_ctas_per_sm=24,
            ptx_version=(9, 0), cuda=(13, 0), num_sms=20, device_name="NVIDIA Thor",
        ),
        Target(
            "sm_110f", 11, 0, "f", 227 * _KIB, 228 * _KIB, 1536, _SM_110, max_ctas_per_sm=24,
            lowered_as="sm_110a", ptx_version=(9, 0), cuda=(13, 0), num_sms=20, device_name="NVIDIA Thor",
        ),
        Target(
            "sm_120a", 12, 0, "a", 99 * _KIB, 100 * _KIB, 1536, _SM_120, max_ctas_per_sm=24,
            cuda=(12, 8), num_sms=170, device_name="NVIDIA GeForce RTX 5090",
        ),
        Target(
            "sm_120f", 12, 0, "f", 99 * _KIB, 100 * _KIB, 1536, _SM_120, max_ctas_per_sm=24,
            lowered_as="sm_120a", cuda=(12, 9), num_sms=170, device_name="NVIDIA GeForce RTX 5090",
        ),
        Target(
            "sm_121a", 12, 1, "a", 99 * _KIB, 100 * _KIB, 1536, _SM_120, max_ctas_per_sm=24,
            lowered_as="sm_120a", cuda=(12, 9), num_sms=48, device_name="NVIDIA GB10",
        ),
    )
}  # fmt: skip

TARGET_SETS: dict[str, tuple[str, ...]] = {
    "all": tuple(name for name, target in TARGETS.items() if target.variant != "f"),
    "datacenter": ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_107a"),
    "consumer": ("sm_86", "sm_89", "sm_120a", "sm_121a"),
    "embedded": ("sm_87", "sm_88", "sm_110a"),
}
"""Names for several targets at once; "all" has no families, whose members it has."""


_GENERATIONS = {
    "ampere": ("sm_80", "sm_86"), "ada": ("sm_89",), "hopper": ("sm_90a",), "h200": ("sm_90a",),
    "blackwell": ("sm_100a", "sm_120a"), "rubin": ("sm_107a",), "orin": ("sm_87",), "thor": ("sm_110a",),
}  # fmt: skip


def parse(name: str, loc: Loc | None = None) -> Target:
    """Return the target called `name`.

    Raises:
        ManifestError: there is no such target; names the nearest one.
    """
    target = TARGETS.get(name)
    if target is not None:
        return target
    known = ", ".join(TARGETS)
    raise ManifestError(
        f"expected a target ({known}), got {name!r}", loc, remedy=_remedy(name, TARGETS)
    )


def parse_set(name: str, loc: Loc | None = None) -> tuple[Target, ...]:
    """Return the targets of a set, such as "datacenter", or the target called `name`.

    Raises:
        ManifestError: there is neither; names the nearest one.
    """
    if name in TARGET_SETS:
        return tuple(TARGETS[member] for member in TARGET_SETS[name])
    if name in TARGETS:
        return (TARGETS[name],)
    known = ", ".join((*TARGETS, *TARGET_SETS))
    remedy = _remedy(name, (*TARGETS, *TARGET_SETS))
    raise ManifestError(f"expected a target ({known}), got {name!r}", loc, remedy=remedy)


def best_for(major: int, minor: int) -> Target | None:
    """Return the target to build for a GPU of compute capability major.minor: the most specific one."""
    matching = [target for target in TARGETS.values() if target.runs_on(major, minor)]
    return max(matching, key=lambda target: ("fa".find(target.variant), target.minor), default=None)


def _remedy(name: str, candidates: Iterable[str]) -> str:
    gpu = re.compile(rf"\b{re.escape(name)}\b", re.IGNORECASE)  # such as H100
    named = tuple(target.name for target in TARGETS.values() if gpu.search(target.device_name))
    generation = _GENERATIONS.get(name.lower()) or named
    if generation:
        return f"write {' or '.join(map(repr, generation))}"
    number = re.fullmatch(r"(?:sm_?)?(\d{2,3})[af]?", name)
    if number is None:
        return did_you_mean(name, candidates)
    # A plain "sm_90" is the commonest slip: the GPU is right, the suffix is missing.
    same = [target.name for target in TARGETS.values() if target.arch == int(number[1])]
    return (
        f"did you mean {same[0]!r}?"
        if same
        else f"no target is for that GPU; the oldest is {next(iter(TARGETS))!r}"
    )
