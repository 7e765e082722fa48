"""What the text of a kernel says of the shadows of its memory: how fine they are, and what they order.

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
    """Say whether threads of different clusters may be ordered by what the kernel does to memory."""
    for instruction in kernel.instructions:
        words = frozenset(instruction.modifiers)
        if instruction.opcode == "membar" and not words.isdisjoint(("gl", "sys")):
            return True
        orders = not words.isdisjoint(("acquire", "release", "acq_rel", "sc"))
        if orders and not words.isdisjoint(("gpu", "sys")):
            return True
    return False


def scopes_of(kernel: Kernel) -> tuple[int, ...]:
    """Return the scopes among which the kernel's accesses and fences are strong, ascending."""
    found: set[int] = set()
    for instruction in kernel.instructions:
        named = [SCOPES[word] for word in instruction.modifiers if word in SCOPES]
        if instruction.opcode == "membar" and "cta" in instruction.modifiers:
            found.add(CTA)
        elif instruction.opcode in ("atom", "red", "membar", "fence"):
            found.update(named or [GPU])
        elif instruction.opcode in ("ld", "st"):
            found.update(named or [GPU] * ("volatile" in instruction.modifiers))
    return tuple(sorted(found))


def _sizes(instruction: Instruction) -> Iterator[int]:
    """Yield the bytes of an access to memory, if it is one of global or shared memory."""
    words = instruction.modifiers
    if not _NEITHER.isdisjoint(words):
        return
    # An atomic operation on a vector is one on each of its elements.
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
