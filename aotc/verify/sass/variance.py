"""Find the registers with different values in the lanes of a warp.

Blocks are rows of whole warps: lanes of a warp differ in the five low bits of the thread's
index. So a per-lane register is described by the number of differing low bits, 0 for one
value in all lanes, and by whether all lanes are distinct. A predicate is described by whether
it may differ, and whether at most one lane has it true, or false: a branch on it leaves one
lane alone.

Invariant: a register absent from a state is the same in all lanes.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from aotc.verify.sass.instructions import extra_results, results, sources
from aotc.verify.sass.text import Instruction

Values: TypeAlias = dict[str, int]
"""Of a register the differing low bits, with `DISTINCT`; of a predicate its flags."""

DIFFERS: Final = 32
DISTINCT: Final = 64
ONE_TRUE: Final = 128
ONE_FALSE: Final = 256
_BITS: Final = 63

_LANE_BITS: Final = 5
_LANES: Final = {"SR_TID.X": _LANE_BITS | DISTINCT, "SR_LANEID": _LANE_BITS | DISTINCT}
_SHARED: Final = ("SR_CTAID", "SR_NCTAID", "SR_CgaCtaId", "SR_CgaSize", "SR_VIRTCFG", "SR_SMEMSZ")
# A word of the stack, and a stand-in for all of them at computed addresses.
_STACK: Final = re.compile(r"\[R1(?:\+(0x[0-9a-f]+))?\]$")
_ANYWHERE: Final = "[]"
# Each lane gets another value for any operands. Loads from one address give all lanes one value.
_OWN: Final = frozenset({"ATOM", "ATOMG", "ATOMS", "LDSM", "MATCH"})
# Comparisons that ignore differing low bits, if the bound has none of them …
_COMPARED: Final = frozenset({"GE", "LT"})
# … or the next greater number has none.
_COMPARED_NEXT: Final = frozenset({"GT", "LE"})


def join(left: Values, right: Values) -> Values:
    """Join the descriptions of registers from either side."""
    joined = dict(left)
    for name, value in right.items():
        joined[name] = join_value(joined.get(name, 0), value)
    for name, value in left.items():
        if name not in right:
            joined[name] = join_value(value, 0)
    return joined


def join_value(left: int, right: int) -> int:
    """Return the description of both values."""
    if left == right:
        return left
    bits = max(left & _BITS, right & _BITS)
    return bits | (left & right & ~_BITS)


def transfer(values: Values, instruction: Instruction) -> None:
    """Update `values` by the effect of an instruction."""
    if instruction.name in ("STL", "LDL"):
        _use_stack(values, instruction)
        return
    names = results(instruction)
    if not names:
        return
    value = _result(values, instruction)
    guard = instruction.guard
    differs = guard_differs(values, instruction)
    for index, name in enumerate(names):
        # Only the differing bits hold for other results, which may be the first one's complement.
        shared = value & _BITS if index else value
        _write(values, name, shared, differs, weak=guard is not None)
    for name in extra_results(instruction):
        _write(values, name, value & _BITS, differs, weak=True)


def written(instruction: Instruction) -> tuple[str, ...]:
    """Return the per-lane registers and stack words an instruction may write."""
    if instruction.name == "STL":
        return _slots(instruction, instruction.operands[0])
    return (*results(instruction), *extra_results(instruction))


def _use_stack(values: Values, instruction: Instruction) -> None:
    """Follow a spilled register: `STL [R1+0x10], R4` and `LDL R4, [R1+0x10]`."""
    is_store = instruction.name == "STL"
    register, address = instruction.operands[::-1][:2] if is_store else instruction.operands[:2]
    slots = _slots(instruction, address)
    differs = guard_differs(values, instruction)
    first = int(register[1:]) if register[1:].isdigit() else None
    for index, slot in enumerate(slots):
        name = None if first is None else f"R{first + index}"
        content = DIFFERS if slot == _ANYWHERE else values.get(slot, 0) | values.get(_ANYWHERE, 0)
        is_weak = instruction.guard is not None or slot == _ANYWHERE
        if is_store:
            value = values.get(name, 0) if name else 0
            _write(values, slot, value, differs, weak=is_weak)
        elif name is not None:
            _write(values, name, content, differs, weak=instruction.guard is not None)


def _slots(instruction: Instruction, address: str) -> tuple[str, ...]:
    """Return the stack words at an address, a stand-in for all if it is unknown."""
    width = next(
        (int(modifier) // 32 for modifier in instruction.modifiers if modifier in ("64", "128")), 1
    )
    match = _STACK.match(address)
    if match is None:
        return (_ANYWHERE,) * width
    start = int(match[1] or "0", 0)
    return tuple(f"[{start + 4 * index}]" for index in range(width))


def guard_differs(values: Values, instruction: Instruction) -> bool:
    """Return whether an instruction's guard may differ between lanes."""
    guard = instruction.guard
    return guard is not None and bool(values.get(guard.name, 0) & _BITS)


def _write(values: Values, name: str, value: int, differs: bool, *, weak: bool) -> None:  # noqa: FBT001
    if weak:
        value = DIFFERS if differs else join_value(values.get(name, 0), value)
    if value:
        values[name] = value
    else:
        values.pop(name, None)


def _result(values: Values, instruction: Instruction) -> int:
    name = instruction.name
    if name in ("S2R", "CS2R"):
        return _special(instruction.operands[-1])
    if name == "ELECT":
        return DIFFERS | ONE_TRUE
    if name in ("VOTE", "VOTEU", "R2UR"):
        return 0
    read = sources(instruction)
    differing = [register for register in read if values.get(register, 0) & _BITS]
    if name == "SHFL":
        is_same = "IDX" in instruction.modifiers and not _differs(values, instruction.operands[3])
        return 0 if is_same or not differing else DIFFERS
    if name in _OWN:
        return DIFFERS
    if not differing:
        return 0
    refined = _refine(values, instruction, differing)
    return DIFFERS if refined is None else refined


def _special(register: str) -> int:
    if register == "SRZ" or register.startswith(_SHARED):
        return 0
    return _LANES.get(register, DIFFERS)


def _differs(values: Values, operand: str) -> bool:
    return bool(values.get(operand.removesuffix(".reuse"), 0) & _BITS)


def _refine(values: Values, instruction: Instruction, differing: list[str]) -> int | None:
    """Describe a result with differing operands, or return None if nothing is known."""
    if instruction.name == "PLOP3":
        return _logic(values, instruction)
    if instruction.name == "P2R" and len(differing) == 1:
        return DIFFERS | values[differing[0]] & (ONE_TRUE | ONE_FALSE)
    registers = [name for name in differing if name[0] == "R"]
    if len(registers) != 1:
        return None
    operands = [name.removesuffix(".reuse") for name in instruction.operands]
    is_replaced = registers[0] in results(instruction)
    if operands.count(registers[0]) > 1 + is_replaced:
        return None
    value = values[registers[0]]
    if instruction.name == "ISETP":
        return _compare(values, instruction, operands, value)
    if len(differing) > 1:
        return None
    rule = _RULES.get(instruction.name)
    return None if rule is None else rule(instruction, operands, value)


def constant(operand: str) -> int | None:
    """Return the value of a constant operand, RZ included."""
    if operand in ("RZ", "URZ", "SRZ"):
        return 0
    try:
        return int(operand, 0)
    except ValueError:
        return None


def _shifted_right(instruction: Instruction, operands: list[str], value: int) -> int | None:
    # SHF.R.U32.HI R0, RZ, count, R1
    count = constant(operands[2])
    if "R" not in instruction.modifiers or "HI" not in instruction.modifiers or count is None:
        return _shifted_left(instruction, operands, value)
    if constant(operands[1]) != 0:
        return None
    return max(0, (value & _BITS) - count)


def _shifted_left(instruction: Instruction, operands: list[str], value: int) -> int | None:
    # SHF.L.U32 R0, R1, count, RZ
    count = constant(operands[2])
    if "L" not in instruction.modifiers or "HI" in instruction.modifiers or count is None:
        return None
    return _widened(value, count)


def _widened(value: int, count: int) -> int | None:
    bits = (value & _BITS) + count
    return None if bits >= DIFFERS else bits | value & DISTINCT


def _masked(_: Instruction, operands: list[str], value: int) -> int | None:
    # LOP3.LUT [P0,] R0, R1, mask, RZ, 0xc0, !PT, and lut 0xc0 is `and`
    if operands[-2:-1] != ["0xc0"] or len(operands) < 6:
        return None
    masks = [number for number in map(constant, operands[-5:-3]) if number is not None]
    bits = value & _BITS
    low = (1 << bits) - 1
    if not masks:
        return None
    mask_bits = masks[0] & low
    if not mask_bits:
        return 0
    is_distinct = bool(value & DISTINCT) and mask_bits & 31 == low & 31 and bits == _LANE_BITS
    to_predicate = operands[0] != "PT" and operands[0].startswith("P")
    if to_predicate:
        return DIFFERS | ((value & (ONE_TRUE | ONE_FALSE)) or (ONE_FALSE if is_distinct else 0))
    return mask_bits.bit_length() | (DISTINCT if is_distinct else 0)


def _moved(instruction: Instruction, operands: list[str], value: int) -> int | None:
    if instruction.name == "IMAD" and "MOV" in instruction.modifiers and "-" not in operands[-1]:
        return value
    if instruction.name == "IMAD" and "SHL" in instruction.modifiers:
        factor = constant(operands[2])
        return _widened(value, factor.bit_length() - 1) if factor else None
    return value if instruction.name == "MOV" else None


def _compare(
    values: Values, instruction: Instruction, operands: list[str], value: int
) -> int | None:
    """Describe the result of `ISETP.op.logic P0, PT, a, b, P1`."""
    lhs, rhs = operands[2], operands[3]
    if "EX" in instruction.modifiers or _differs(values, rhs):
        return None
    kind = instruction.modifiers[0]
    bound = constant(rhs)
    bits = value & _BITS
    other = instruction.operands[4]
    is_free = other == "PT" and "AND" in instruction.modifiers
    if bound is not None and lhs[0] == "R" and bits < DIFFERS:
        step = (1 << bits) - 1
        is_same = (kind in _COMPARED and not bound & step) or (
            kind in _COMPARED_NEXT and not (bound + 1) & step
        )
        if is_same:
            return 0 if is_free else values.get(other.lstrip("!"), 0) & _BITS
    # Masked or packed values compare with zero according to their flags.
    flags = 0
    is_below = "U32" in instruction.modifiers and (kind, bound) in (("GE", 1), ("LT", 1), ("GT", 0))
    if value & DISTINCT and (kind in ("EQ", "NE") or is_below):
        flags = ONE_TRUE if kind in ("EQ", "LT") else ONE_FALSE
    elif bound == 0 and kind in ("EQ", "NE"):
        flags = value & (ONE_TRUE | ONE_FALSE)
        flags = _swapped(flags) if kind == "EQ" else flags
    if not is_free:
        flags &= ONE_TRUE if "AND" in instruction.modifiers else ONE_FALSE
        if "XOR" in instruction.modifiers:
            flags = 0
    return DIFFERS | flags


def _swapped(flags: int) -> int:
    return (ONE_FALSE if flags & ONE_TRUE else 0) | (ONE_TRUE if flags & ONE_FALSE else 0)


def _logic(values: Values, instruction: Instruction) -> int:
    """Describe the first result of `PLOP3.LUT P0, PT, a, b, c, lut, lut2`."""
    flags = DIFFERS
    inputs = instruction.operands[2:5]
    for outcome, flag in ((True, ONE_TRUE), (False, ONE_FALSE)):
        rows = [row for row in lut_rows(instruction) if row[3] == outcome]
        for position, operand in enumerate(inputs):
            flags_in = values.get(operand.lstrip("!"), 0)
            if operand.startswith("!"):
                flags_in = flags_in & ~(ONE_TRUE | ONE_FALSE) | _swapped(flags_in)
            if (flags_in & ONE_TRUE and all(row[position] for row in rows)) or (
                flags_in & ONE_FALSE and not any(row[position] for row in rows)
            ):
                flags |= flag
    return flags


def lut_rows(instruction: Instruction) -> list[tuple[bool, bool, bool, bool]]:
    """Return the rows of a PLOP3's first table for its constant inputs: inputs and outcome.

    Negated inputs are given after negation.
    """
    table = int(instruction.operands[5], 0)
    inputs = instruction.operands[2:5]
    rows: list[tuple[bool, bool, bool, bool]] = []
    for bits in range(8):
        row = bool(bits & 4), bool(bits & 2), bool(bits & 1)
        fixed = {"PT": True, "!PT": False, "UPT": True, "!UPT": False}
        if all(fixed.get(operand, bit) == bit for operand, bit in zip(inputs, row, strict=True)):
            rows.append((*row, bool(table >> bits & 1)))
    return rows


_RULES: Final = {
    "SHF": _shifted_right,
    "USHF": _shifted_right,
    "LOP3": _masked,
    "MOV": _moved,
    "IMAD": _moved,
}
