"""Cluster addresses, register pools, and hints.

An address of `shared::cluster` space holds the CTA's rank plus one in bits 24 and up, and so does a
variable's address in a cluster; 0 means the CTA itself. A GPU has the plain rank there, which is 0
for a single CTA.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.verify.emulator.engine.context import Context, Machine
from aotc.verify.emulator.engine.registry import Execute, executes
from aotc.verify.emulator.errors import Misuse, Unsupported
from aotc.verify.emulator.memory.global_memory import SHARED_WINDOW
from aotc.verify.emulator.memory.shared_memory import RANK_SHIFT
from aotc.verify.emulator.syntax import Immediate, Instruction

Ints: TypeAlias = npt.NDArray[np.int64]

_OFFSET_MASK = (1 << RANK_SHIFT) - 1
WARP_LANES = 32
WARPGROUP_WARPS = 4
_REGISTER_FILE = 65536
_MAX_REGISTERS = 255
_MIN_SET, _MAX_SET, _SET_GRAIN = 24, 256, 8


def own_rank(ctx: Context) -> Ints:
    """Return the rank of each active lane's CTA in its cluster: (count,)."""
    return ctx.cta_indices() % ctx.machine.cluster_size


def map_to_rank(address: Ints, rank: Ints) -> Ints:
    """Return the addresses of the same bytes in the CTAs `rank` of the cluster."""
    window = np.where(address >= SHARED_WINDOW, SHARED_WINDOW, 0)
    return window + (address - window & _OFFSET_MASK) + (rank + 1 << RANK_SHIFT)


def _bits_of(instruction: Instruction) -> int:
    modifiers = instruction.modifiers
    rest = tuple(word for word in modifiers if word not in ("u32", "u64"))
    if rest not in ((), ("shared::cluster",)) or len(rest) + 1 != len(modifiers):
        raise Unsupported("modifiers other than .shared::cluster and .u32 or .u64")
    return 32 if "u32" in modifiers else 64


@executes("mapa")
def mapa(instruction: Instruction) -> Execute:
    """Return the address of a byte of shared memory in another CTA of the cluster.

    Source: PTX ISA, "mapa".
    """
    bits = _bits_of(instruction)

    def execute(ctx: Context) -> None:
        destination, source, target = ctx.instruction.operands
        rank = ctx.read(target, 32).astype(np.int64)
        outside = np.flatnonzero(rank >= ctx.machine.cluster_size)
        if outside.size:
            lane = int(ctx.lane_indices()[outside[0]])
            raise Misuse(
                "cluster",
                f"maps to CTA {rank[outside[0]]} of a cluster of {ctx.machine.cluster_size}",
                lane=lane,
            )
        address = map_to_rank(ctx.read(source, bits).astype(np.int64), rank)
        ctx.write(destination, address.astype(f"u{bits // 8}"))

    return execute


@executes("getctarank")
def getctarank(instruction: Instruction) -> Execute:
    """Return the rank of the CTA to which an address of shared memory belongs.

    Source: PTX ISA, "getctarank".
    """
    bits = _bits_of(instruction)

    def execute(ctx: Context) -> None:
        destination, source = ctx.instruction.operands
        address = ctx.read(source, bits).astype(np.int64)
        address = np.where(address >= SHARED_WINDOW, address - SHARED_WINDOW, address)
        rank = (address >> RANK_SHIFT) - 1
        ctx.write(destination, np.where(rank < 0, own_rank(ctx), rank).astype(np.uint32))

    return execute


# ---- register pools -------------------------------------------------------------------------------


class RegisterPools:
    """Track the registers per thread of each warp; 0 until the warp sets them.

    A CTA's pool is the most that ptxas could give each thread with one CTA per SM.
    """

    def __init__(self, machine: Machine) -> None:
        self._warps_per_cta, self._launched_warps = machine.warps_per_cta, machine.launched_warps
        threads = machine.launched_warps * WARP_LANES
        grain = threads * _SET_GRAIN
        self.launched = min(_MAX_REGISTERS, _REGISTER_FILE // grain * _SET_GRAIN)
        self._chosen = np.zeros(machine.num_ctas * machine.warps_per_cta, np.int64)

    def choose(self, warps: Ints, registers: int, *, increase: bool) -> None:
        """Set the registers per thread of warps.

        Raises: Misuse for a change in the wrong direction, and for a CTA over its pool; hardware
        would wait forever.
        """
        current = self._chosen[warps]
        # ptxas may launch with fewer registers than the pool allows. So from the launch state, any
        # increase counts as one, and any value up to the pool's counts as a decrease.
        if increase:
            wrong = current > registers
        else:
            wrong = np.where(current == 0, self.launched, current) < registers
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            verb = "increases" if increase else "decreases"
            has = int(current[row]) or self.launched
            raise Misuse(
                "setmaxnreg",
                f"{verb} the registers of a thread to {registers}, it has {has}",
                lane=int(warps[row]) * WARP_LANES,
            )
        self._chosen[warps] = registers
        pool = self.launched * self._launched_warps
        for cta in np.unique(warps // self._warps_per_cta).tolist():
            chosen = self._chosen[cta * self._warps_per_cta :][: self._launched_warps]
            least = int(np.where(chosen == 0, _MIN_SET, chosen).sum())
            if least > pool:
                raise Misuse(
                    "setmaxnreg",
                    f"the warps of a CTA ask for {least * WARP_LANES} registers, "
                    f"it was launched with {pool * WARP_LANES}: this would wait for ever",
                    lane=int(warps[0]) * WARP_LANES,
                )


@executes("setmaxnreg")
def setmaxnreg(instruction: Instruction) -> Execute:
    """Set the registers per thread of a warpgroup.

    Source: PTX ISA, "setmaxnreg".
    """
    direction = instruction.modifiers[0]
    (count,) = instruction.operands
    if direction not in ("inc", "dec") or instruction.modifiers[1:] != ("sync", "aligned", "u32"):
        raise Unsupported("modifiers other than .inc or .dec, .sync.aligned.u32")
    if not isinstance(count, Immediate):
        raise Unsupported("a count that is not a constant")
    if not _MIN_SET <= count.value <= _MAX_SET or count.value % _SET_GRAIN:
        raise Unsupported(f"{count.value} registers: not a multiple of 8 from 24 to 256")
    registers = count.value

    def execute(ctx: Context) -> None:
        ctx.require_whole_warps()
        pools = ctx.machine.part(RegisterPools)
        pools.choose(ctx.warps(), registers, increase=direction == "inc")

    return execute


# ---- hints ----------------------------------------------------------------------------------------


@executes("griddepcontrol")
def griddepcontrol(instruction: Instruction) -> Execute:
    """Do nothing: no other kernel runs before or after.

    Source: PTX ISA, "griddepcontrol".
    """
    if instruction.modifiers not in (("wait",), ("launch_dependents",)):
        raise Unsupported("modifiers other than .wait and .launch_dependents")
    return _nothing


@executes("multimem")
def multimem(instruction: Instruction) -> Execute:
    """Refuse: the emulator has one GPU.

    Source: PTX ISA, "multimem.ld_reduce", "multimem.st", "multimem.red".
    """
    raise Unsupported(f"memory of several GPUs ({instruction.mnemonic})")


def _nothing(ctx: Context) -> None:
    del ctx
