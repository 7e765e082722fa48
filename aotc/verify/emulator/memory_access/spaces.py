"""Modifiers of memory instructions, and access to every state space.

Invariant: a modifier is known to be irrelevant, or handled, or refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import listed, reduce_or, reshape, view
from aotc.verify.emulator.engine.context import Context
from aotc.verify.emulator.errors import Misuse, Unsupported
from aotc.verify.emulator.memory.global_memory import (
    CONST_WINDOW,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_WINDOW,
    Bytes,
    cell_dtype,
)
from aotc.verify.emulator.memory.vector_clocks import CLUSTER, CTA, GPU, WEAK, Ints, Lanes
from aotc.verify.emulator.memory_access.release_acquire import SHARED_LOCATION
from aotc.verify.emulator.syntax import Address, Instruction, Symbol

SPACES = {
    "global": "global",
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "shared",
    "local": "local",
    "param": "param",
    "param::entry": "param",
    "const": "const",
}
SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU, "sys": GPU}
_STRENGTHS = frozenset(("weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"))
_CACHE_OPERATORS = frozenset(("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"))
_ATOMICS = frozenset(("atom", "red"))
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_TYPE = re.compile(r"(b|u|s|f|bf)(8|16|32|64|128)(x2)?")


@dataclass(frozen=True, slots=True)
class Form:
    """Describe a memory access: `count` elements of `bits` in a space.

    `kind` is the type's letters: b, u, s, f or bf; `rest` holds the modifiers left to the rule.
    `scope` is that of a strong access, such as a volatile or atomic one; else WEAK.
    """

    space: str
    kind: str
    bits: int
    count: int
    strength: str
    scope: int
    cache_hint: bool
    rest: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Size of the whole access."""
        return self.bits * self.count // 8

    @property
    def releases(self) -> bool:
        """Whether it releases earlier accesses."""
        return self.strength in ("release", "acq_rel")

    @property
    def acquires(self) -> bool:
        """Whether it acquires earlier accesses of others."""
        return self.strength in ("acquire", "acq_rel")


def form_of(instruction: Instruction, allowed: frozenset[str] = frozenset()) -> Form:
    """Parse the modifiers of an instruction; those in `allowed` are left in `rest`.

    Raises: Unsupported for an unknown modifier.
    """
    space, strength, kind, bits, count, hint = "generic", "weak", "", 0, 1, False
    scope = GPU  # default of volatile and atomic accesses
    rest: list[str] = []
    for modifier in instruction.modifiers:
        type_match = _TYPE.fullmatch(modifier)
        if modifier in allowed:
            rest.append(modifier)
        elif modifier in SPACES:
            space = SPACES[modifier]
        elif modifier in _STRENGTHS:
            strength = modifier
        elif modifier in _VECTORS:
            count = _VECTORS[modifier]
        elif modifier == "L2::cache_hint":
            hint = True
        elif type_match is not None:
            kind, bits = type_match[1], int(type_match[2]) * (2 if type_match[3] else 1)
            rest += ["x2"] if type_match[3] else []
        elif modifier in SCOPES:
            scope = SCOPES[modifier]
        elif modifier not in _CACHE_OPERATORS and modifier[:4] not in ("L1::", "L2::"):
            raise Unsupported(f"modifier .{modifier}")
    if bits == 128:
        raise Unsupported("registers of 128 bits")
    if strength == "weak" and instruction.opcode not in _ATOMICS:
        scope = WEAK
    return Form(
        space,
        kind,
        bits,
        count,
        strength,
        scope,
        cache_hint=hint,
        rest=tuple(rest),
    )


def read_bytes(ctx: Context, space: str, address: Ints, size: int, scope: int) -> Bytes:
    """Return the bytes at the active lanes' addresses (n,): (n, size)."""
    return _READERS[space](ctx, ctx.lanes, address, size, scope)


def write_bytes(ctx: Context, space: str, address: Ints, data: Bytes, scope: int) -> None:
    """Write bytes (n, size) at the active lanes' addresses (n,)."""
    _WRITERS[space](ctx, ctx.lanes, address, data, scope)


def locations_of(space: str, address: Ints) -> Ints:
    """Return the `MemoryOrder` locations of strong accesses to addresses (n,)."""
    if space == "global":
        return address
    if space == "generic":
        return np.where(address >= SHARED_WINDOW, SHARED_LOCATION, address)
    return np.full(len(address), SHARED_LOCATION)


def is_uniform(instruction: Instruction, position: int) -> bool:
    """Return whether an address operand is syntactically equal for all lanes."""
    operand = instruction.operands[position]
    return isinstance(operand, Address) and isinstance(operand.base, Symbol)


# The windows of generic addresses, ascending.
WINDOWS = {
    "global": 0,
    "param": PARAM_WINDOW,
    "const": CONST_WINDOW,
    "local": LOCAL_WINDOW,
    "shared": SHARED_WINDOW,
}
_SPACE_NAMES = tuple(WINDOWS)
_STARTS = np.array(tuple(WINDOWS.values())[1:], np.int64)


def spaces_of(address: Ints) -> Ints:
    """Return the space of each generic address (n,), as an index into WINDOWS."""
    return np.searchsorted(_STARTS, address, side="right")


def split_generic(address: Ints) -> list[tuple[str, npt.NDArray[np.bool_] | None, int]]:
    """Split generic addresses by space: name, mask (None: all), window base."""
    lowest, highest = (int(i) for i in spaces_of(np.array((address.min(), address.max()))))
    if lowest == highest:
        name = _SPACE_NAMES[lowest]
        return [(name, None, WINDOWS[name])]
    index = spaces_of(address)
    names = [(number, _SPACE_NAMES[number]) for number in listed(np.unique(index))]
    return [(name, index == number, WINDOWS[name]) for number, name in names]


def _read_global(ctx: Context, lanes: Lanes, address: Ints, size: int, scope: int) -> Bytes:
    data = ctx.machine.global_memory.read(address, size, lanes)
    noncoherent = "nc" in ctx.instruction.modifiers
    ctx.machine.global_shadow.load(
        lanes, address, size, ctx.instruction, scope, noncoherent=noncoherent
    )
    ctx.machine.global_shadow.blur(lanes, ctx.instruction, data)
    return data


def _read_shared(ctx: Context, lanes: Lanes, address: Ints, size: int, scope: int) -> Bytes:
    return ctx.machine.shared.load(lanes, address, size, ctx.instruction, strong=scope != WEAK)


def _read_local(ctx: Context, lanes: Lanes, address: Ints, size: int, scope: int) -> Bytes:
    del scope
    return ctx.machine.local.read(lanes, address, size)


def _read_params(ctx: Context, lanes: Lanes, address: Ints, size: int, scope: int) -> Bytes:
    del scope
    params = ctx.machine.params
    launch = ctx.machine.launch_of_lane[lanes] if len(params) > 1 else 0
    return _read_constant(params, "the parameters", address, size, launch)


def _read_const(ctx: Context, lanes: Lanes, address: Ints, size: int, scope: int) -> Bytes:
    del lanes, scope
    return _read_constant(ctx.machine.constants[None], "constant memory", address, size)


def _read_generic(ctx: Context, lanes: Lanes, address: Ints, size: int, scope: int) -> Bytes:
    parts = split_generic(address)
    if parts[0][1] is None:
        space, _, base = parts[0]
        return _READERS[space](ctx, lanes, address - base if base else address, size, scope)
    out = np.empty((len(address), size), np.uint8)
    numbers = ctx.lane_indices()
    for space, mask, base in parts:
        out[mask] = _READERS[space](ctx, numbers[mask], address[mask] - base, size, scope)
    return out


def _write_global(ctx: Context, lanes: Lanes, address: Ints, data: Bytes, scope: int) -> None:
    memory = ctx.machine.global_memory
    memory.check(address, data.shape[1], lanes, write=True)
    ctx.machine.global_shadow.store(lanes, address, data, ctx.instruction, scope)
    memory.write(address, data, lanes)
    if scope == WEAK:
        memory.check_stored(address, data, lanes)


def _write_shared(ctx: Context, lanes: Lanes, address: Ints, data: Bytes, scope: int) -> None:
    ctx.machine.shared.store(lanes, address, data, ctx.instruction, strong=scope != WEAK)


def _write_local(ctx: Context, lanes: Lanes, address: Ints, data: Bytes, scope: int) -> None:
    del scope
    ctx.machine.local.write(lanes, address, data)


def _write_generic(ctx: Context, lanes: Lanes, address: Ints, data: Bytes, scope: int) -> None:
    parts = split_generic(address)
    fixed = next((space for space, _, _ in parts if space not in _WRITERS), None)
    if fixed is not None:
        raise ctx.fault(f"writes to {fixed} memory, which is read-only")
    if parts[0][1] is None:
        space, _, base = parts[0]
        _WRITERS[space](ctx, lanes, address - base if base else address, data, scope)
        return
    numbers = ctx.lane_indices()
    for space, mask, base in parts:
        _WRITERS[space](ctx, numbers[mask], address[mask] - base, data[mask], scope)


def _read_constant(
    memory: Bytes, name: str, address: Ints, size: int, row: Ints | int = 0
) -> Bytes:
    """Return bytes (n, size) from rows (n,) of memory (rows, bytes)."""
    lowest, highest = int(address.min()), int(address.max())
    if lowest < 0 or highest + size > memory.shape[1]:
        offset = highest if lowest >= 0 else lowest
        raise Misuse(
            "bounds",
            f"reads {size} bytes at byte {offset} of {name} ({memory.shape[1]} bytes), out of bounds",
        )
    if int(reduce_or(address)) & (size - 1):
        raise Misuse("misaligned", f"reads {name} at no multiple of {size} bytes")
    cells = view(memory[:, : memory.shape[1] // size * size], cell_dtype(size))
    return reshape(view(cells[row, address // size], np.uint8), len(address), size)


class _Reader(Protocol):
    def __call__(
        self, ctx: Context, lanes: Lanes, address: Ints, size: int, scope: int
    ) -> Bytes: ...


class _Writer(Protocol):
    def __call__(
        self, ctx: Context, lanes: Lanes, address: Ints, data: Bytes, scope: int
    ) -> None: ...


_READERS: dict[str, _Reader] = {
    "global": _read_global,
    "shared": _read_shared,
    "local": _read_local,
    "param": _read_params,
    "const": _read_const,
    "generic": _read_generic,
}
_WRITERS: dict[str, _Writer] = {
    "global": _write_global,
    "shared": _write_shared,
    "local": _write_local,
    "generic": _write_generic,
}
