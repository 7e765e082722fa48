"""Tables of opcodes of sm_80 and sm_90, as far as divergence depends on them.

Per-lane registers are `R0` … `R254` and the predicates `P0` … `P6`. The warp's registers, `UR0`
… and `UP0` …, hold one value for all lanes and are written by the uniform datapath, for any
active lanes. An opcode in no table writes its first operands and computes them from the others,
as most do.
"""

from __future__ import annotations

import re
from typing import Final

from aotc.verify.sass.text import Instruction

BRANCHES: Final = frozenset({"BRA", "BRX", "JMP", "JMX", "BRXU", "UBRA", "CALL", "RET"})
"""They go elsewhere: all lanes, or those whose guard holds."""

ENDS: Final = frozenset({"EXIT", "KILL"})

ISSUED_ONCE: Final = frozenset(
    {
        *("UTMALDG", "UTMASTG", "UTMAREDG", "UTMAPF", "UTMACMDFLUSH", "UTMACCTL"),
        *("UBLKCP", "UBLKRED", "UBLKPF"),
    }
)
"""Asynchronous instructions of the uniform datapath: once for each group of lanes there."""

MATRIX: Final = frozenset({"HGMMA", "QGMMA", "IGMMA", "BGMMA"})
"""Matrix instructions of a warpgroup."""

WARPGROUP: Final = frozenset({*MATRIX, "WARPGROUP", "USETMAXREG"})
"""Instructions of four warps, each of which must be there whole."""

COLLECTIVES: Final = frozenset(
    {"LDSM", "STSM", "MOVM", "HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "OMMA"}
)
"""Instructions that need every lane's part; they have no mask of lanes."""

EXCHANGES: Final = frozenset({"SHFL", "VOTE", "MATCH", "REDUX", "ELECT"})
"""Instructions that exchange values among the active lanes."""

_LANE_REGISTER: Final = re.compile(r"(?<![A-Za-z0-9_])(?:R\d+|P\d)(?![A-Za-z0-9_])")
_REGISTER: Final = re.compile(r"U?R(?:\d+|Z)$")
_PREDICATE: Final = re.compile(r"U?P[0-9T]$")

_NO_RESULT: Final = frozenset(
    {
        *(*ISSUED_ONCE, *ENDS, *BRANCHES, "WARPGROUP", "WARPSYNC", "ENDCOLLECTIVE"),
        *("ST", "STG", "STS", "STL", "STSM", "STAS", "RED", "REDS", "REDG", "REDAS", "LDGSTS"),
        *("LDGDEPBAR", "DEPBAR", "ARRIVES", "BAR", "BSSY", "BSYNC", "BREAK", "YIELD", "NANOSLEEP"),
        *("NOP", "MEMBAR", "FENCE", "ERRBAR", "CGAERRBAR", "CCTL", "CCTLL", "CCTLT", "BPT"),
        *("UCGABAR_ARV", "UCGABAR_WAIT", "ACQBULK", "PREEXIT", "PMTRIG"),
    }
)

# Number of operands written, for exceptions to the rule of `num_results`.
_NUM_RESULTS: Final = {
    **dict.fromkeys(("ISETP", "FSETP", "DSETP", "HSETP2", "PLOP3", "UISETP", "UPLOP3"), 2),
    **dict.fromkeys(("P2R", "UP2UR", "FCHK", "ELECT", "VOTEU", "SYNCS", "REDUX", "R2UR"), 1),
}

# Number of registers written, for opcodes with several; the first matching pattern counts.
_LOADS: Final = r"(?:LDG|LD|LDS|LDL|LDC|LDSM|ATOMG|ATOM|ATOMS)\b.*"
_WIDTHS: Final = (
    (re.compile(_LOADS + r"\.(?:128|4)(?:\.|$)"), 4),
    (re.compile(_LOADS + r"\.(?:64|2)(?:\.|$)"), 2),
    (re.compile(r"[HIQ]MMA\b.*\.(?:F32|S32)|IMMA|DMMA"), 4),
    (re.compile(r"[HBQ]MMA\b"), 2),
    (re.compile(r"IMAD\.WIDE|CS2R(?!\.32)|D(?:ADD|MUL|FMA|MNMX|SETP)\b"), 2),
    (re.compile(r"(?:F2I|I2I)\.(?:FTZ\.)?[SU]64|(?:I2F|F2F)\.F64|SHF\.[LR]\.W"), 2),
)
_COLUMNS: Final = re.compile(r"\.64x(\d+)x\d+\.(F16)?")
_WHOLE: Final = frozenset({"LDC", "CS2R", "IMAD", "LDG", "LDS", "LD", "LDL", "LDSM"})


def results(instruction: Instruction) -> tuple[str, ...]:
    """Return the per-lane registers written by an instruction, without `extra_results`."""
    if instruction.name == "R2P":
        mask = int(instruction.operands[-1], 0)
        return tuple(f"P{bit}" for bit in range(7) if mask >> bit & 1)
    registers = [
        operand
        for operand in instruction.operands[: num_results(instruction)]
        if operand[0] in "RP" and operand[1:] not in ("Z", "T")
    ]
    if instruction.name in _WHOLE:
        registers += extra_results(instruction)
    return tuple(registers)


def extra_results(instruction: Instruction) -> tuple[str, ...]:
    """Return the further registers written, or perhaps written, by an instruction."""
    width = _width(instruction)
    if width == 1:
        return ()
    for operand in instruction.operands[: num_results(instruction)]:
        if operand[0] == "R" and operand != "RZ":
            first = int(operand[1:])
            return tuple(f"R{first + index}" for index in range(1, width))
    return ()


def sources(instruction: Instruction) -> frozenset[str]:
    """Return the per-lane registers read by an instruction, without the guard."""
    operands = instruction.operands
    registers = {
        name
        for operand in operands[num_results(instruction) :]
        for name in _LANE_REGISTER.findall(operand)
    }
    if instruction.name == "P2R":
        mask = int(operands[-1], 0)
        registers |= {f"P{bit}" for bit in range(7) if mask >> bit & 1}
    return frozenset(registers)


def num_results(instruction: Instruction) -> int:
    """Return the number of leading operands written by an instruction."""
    name, operands = instruction.name, instruction.operands
    if name in _NO_RESULT:
        return 0
    if name in _NUM_RESULTS:
        return _NUM_RESULTS[name]
    if name == "VOTE":
        return 1 if _PREDICATE.match(operands[0]) else 2
    # Predicates, a register, predicates: `SHFL P0, R1, R2` and `IADD3 R1, P0, R2`.
    count = _skip_predicates(operands, 0)
    if count < len(operands) and _REGISTER.match(operands[count]):
        count = _skip_predicates(operands, count + 1)
    return count


def _skip_predicates(operands: tuple[str, ...], start: int) -> int:
    while start < len(operands) and _PREDICATE.match(operands[start]):
        start += 1
    return start


def _width(instruction: Instruction) -> int:
    if instruction.name in MATRIX:
        columns = _COLUMNS.search(instruction.opcode)
        if columns is None:
            return 128
        return max(1, int(columns[1]) // (4 if columns[2] else 2))
    opcode = instruction.opcode
    return next((width for pattern, width in _WIDTHS if pattern.match(opcode)), 1)


def is_uniform_branch(instruction: Instruction) -> bool:
    """Return whether all active lanes take a branch the same way, whatever its guard."""
    if instruction.name in ("BRXU", "UBRA"):
        return True
    return "U" in instruction.modifiers or "CONV" in instruction.modifiers


def is_issued_once(instruction: Instruction) -> bool:
    """Return whether an instruction acts once for each group of lanes there."""
    if instruction.name in ISSUED_ONCE:
        return True
    if instruction.name != "SYNCS" or "PHASECHK" in instruction.modifiers:
        return False
    is_uniform = any(operand.startswith(("UR", "UP")) for operand in instruction.operands)
    return is_uniform or (instruction.guard is not None and instruction.guard.is_uniform)
