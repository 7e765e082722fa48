"""A host's description of a cubin: parameters, tensor maps, resources, guards.

The compiler writes it, the cache keeps it, and the archive's records are made of it. It is separate
from the compiler, so a build with nothing to do reads it without importing one.

Invariant: plain frozen data. Whatever depends on a launch's arguments is an expression over them,
as text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from aotc.module_search import Search
from aotc.work import Work

Access: TypeAlias = Literal["unknown", "read", "write", "both"]


@dataclass(frozen=True)
class TensorMapSpec:
    """Describe the encoding of a tensor map; `box` is in elements, outermost first.

    `swizzle_bytes` is 0 for none, 32, 64 or 128. Reads beyond the tensor's ends give NaN with
    `fill_nan`, else zero. `address`, `shape` and `strides` are expressions over the arguments of
    the launch, the latter two in elements, outermost first; the innermost axis is dense and has no
    stride. A miss of a load fetches `fetched_bytes` into the L2 cache, 128 or 256.
    """

    element: str
    box: tuple[int, ...]
    swizzle_bytes: int
    fill_nan: bool
    address: str
    shape: tuple[str, ...]
    strides: tuple[str, ...]
    fetched_bytes: int = 128


@dataclass(frozen=True)
class ParamSlot:
    """Place an argument, or a part of it, in the kernel's parameter buffer.

    `access` is the kernel's use of the memory behind a pointer, "unknown" for a scalar. `argument`
    is the launch argument it comes from, by default the one of its name. `source` is the launcher's
    expression unless it passes the argument itself: "x.shape[0]", or "x" for a tensor's address.
    "grid[0]" to "grid[2]", argument and source in one, are the numbers of program instances of the
    launch along each axis, "scratch[0]" is the address of its scratch memory. A tensor map is
    encoded by `tensor_map`.
    """

    name: str
    type: str
    offset: int
    size_bytes: int
    access: Access = "unknown"
    argument: str = ""
    source: str = ""
    tensor_map: TensorMapSpec | None = None

    def __post_init__(self) -> None:
        if not self.argument:
            object.__setattr__(self, "argument", self.name)


@dataclass(frozen=True)
class Metadata:
    """Describe a cubin to the host that launches it, and to a user who judges it.

    `source_files` are all files the frontend read, with their SHA-256. `searches` are its look-ups
    of imported modules, with the file of each or None. With `waits_pdl` every path waits for the
    grids before it, so a launch may overlap with them.

    `guards` are expressions over the arguments. The cubin is right for launches with no guard 0 and
    with tensor maps in `params` that the driver can encode. The grid of one that `is_persistent`
    has one axis and as many CTAs as are resident at a time, at most one (with `num_ctas`: one
    cluster) for each program instance. The CTAs of one that is `cooperative` wait for each other,
    so all of a launch must run at once. A launch gives each program instance `scratch_bytes` of
    global memory, in one piece at a multiple of 128.

    `spill_note` names the tiles with the most registers if those do not suffice, and possible
    remedies. The code takes the last extent of each of `whole_rows`, tensor arguments, to be a
    multiple of 16 bytes. `wgmma_hazard` names the register because of which each `wgmma` is waited
    for at once: the schedule would have touched it too early. `ptxas_crash` describes ptxas's
    failure at its usual optimisation level, and names the lower one used. `work` is for the cost
    model.

    Each of `overflows` is a place and a condition over the arguments and `num_programs(0)`. If it
    is true, an address accessed there overflows 32 bits.
    """

    name: str
    symbol: str
    target: str
    num_threads: int
    num_ctas: int
    shared_bytes: int
    static_shared_bytes: int
    registers: int
    spill_bytes: int
    stack_bytes: int
    params: tuple[ParamSlot, ...]
    remarks: tuple[str, ...]
    ptxas_warnings: tuple[str, ...]
    source_files: tuple[tuple[str, str], ...]
    searches: tuple[tuple[Search, str | None], ...] = ()
    without: tuple[str, ...] = ()
    waits_pdl: bool = False
    guards: tuple[str, ...] = ()
    is_persistent: bool = False
    cooperative: bool = False
    scratch_bytes: int = 0
    spill_note: str = ""
    whole_rows: tuple[str, ...] = ()
    wgmma_hazard: str = ""
    ptxas_crash: str = ""
    work: Work = field(default_factory=Work)
    overflows: tuple[str, ...] = ()

    @property
    def local_bytes(self) -> int:
        """Bytes per thread compared with the limit of spilled registers."""
        return max(self.spill_bytes, self.stack_bytes)

    @property
    def spill_text(self) -> str:
        """Bytes a thread spills to local memory, and the reason."""
        text = f"{self.spill_bytes} bytes of registers spilled, {self.stack_bytes} of stack"
        return f"{text}: {self.spill_note}" if self.spill_note else text

    def spill_problem(self, limit_bytes: int) -> str:
        """Return why the kernel spills more than `limit_bytes` of a thread, "" if it does not."""
        is_within = self.local_bytes <= limit_bytes
        return "" if is_within else f"{self.spill_text}; the limit spill_bytes is {limit_bytes}"
