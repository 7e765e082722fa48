"""Properties of a kernel's memory accesses: their granularity and their scopes.

Invariant: an access covers whole granules.
"""

from __future__ import annotations

from collections.abc import Iterator

from aotc.verify.emulator.memory.vector_clocks import CTA, GPU
from aotc.verify.emulator.memory_access.spaces import SCOPES
from aotc.verify.emulator.syntax import Immediate, Instruction
from aotc.verify.emulator.text.program import Kernel

_LARGEST_BYTES = 16
_NEITHER = frozenset(("param", "local", "const"))
_SHARED = frozenset(("shared", "shared::cta", "shared::cluster"))


def granule_bytes(kernel: Kernel) -> int:
    """Return the size of the smallest access to shared memory."""
    sizes = [_LARGEST_BYTES]
    for instruction in kernel.instructions:
        words = instruction.modifiers
        if instruction.opcode in ("ld", "st", "atom", "red", "mbarrier"):
            if "global" not in words:
                sizes += _sizes(instruction)
        elif "reduce" in words:  # in bulk, but element by element
            sizes += [int(m.lstrip("bfsu")) // 8 for m in words if _is_type(m)]
        else:
            sizes += _copied(instruction)
    return min(sizes)


def global_granule_bytes(kernel: Kernel) -> int:
    """Return the size of the smallest access to global memory."""
    sizes = [_LARGEST_BYTES]
    for instruction in kernel.instructions:
        if instruction.opcode in ("ld", "st", "atom", "red"):
            if _SHARED.isdisjoint(instruction.modifiers):
                sizes += _sizes(instruction)
        else:
            sizes += _copied(instruction)
    return min(sizes)


def orders_ctas(kernel: Kernel) -> bool:
    """Return whether memory accesses may order threads of different clusters."""
    for instruction in kernel.instructions:
        words = frozenset(instruction.modifiers)
        if instruction.opcode == "membar" and not words.isdisjoint(("gl", "sys")):
            return True
        orders = not words.isdisjoint(("acquire", "release", "acq_rel", "sc"))
        if orders and not words.isdisjoint(("gpu", "sys")):
            return True
    return False


def scopes_of(kernel: Kernel) -> tuple[int, ...]:
    """Return the scopes of the kernel's strong accesses and fences, ascending."""
    scopes: set[int] = set()
    for instruction in kernel.instructions:
        named = [SCOPES[word] for word in instruction.modifiers if word in SCOPES]
        if instruction.opcode == "membar" and "cta" in instruction.modifiers:
            scopes.add(CTA)
        elif instruction.opcode in ("atom", "red", "membar", "fence"):
            scopes.update(named or [GPU])
        elif instruction.opcode in ("ld", "st"):
            scopes.update(named or [GPU] * ("volatile" in instruction.modifiers))
    return tuple(sorted(scopes))


def _sizes(instruction: Instruction) -> Iterator[int]:
    """Yield the bytes of an access to global or shared memory."""
    words = instruction.modifiers
    if not _NEITHER.isdisjoint(words):
        return
    # An atomic operation on a vector is separate for each element.
    vector = instruction.opcode in ("ld", "st")
    count = next((int(m[1:]) for m in words if m in ("v2", "v4", "v8")), 1) if vector else 1
    for word in words:
        if _is_type(word):
            bits, _, packed = word.lstrip("bfsu").partition("x")
            yield min(_LARGEST_BYTES, int(bits) * int(packed or 1) * count // 8)


def _copied(instruction: Instruction) -> Iterator[int]:
    """Yield the bytes of a `cp.async`."""
    if instruction.opcode == "cp" and {"ca", "cg"} & set(instruction.modifiers):
        size = instruction.operands[2]
        yield size.value if isinstance(size, Immediate) else 4


def _is_type(modifier: str) -> bool:
    return modifier.lstrip("bfsu").split("x")[0].isdigit() and modifier[0] in "bfsu"
