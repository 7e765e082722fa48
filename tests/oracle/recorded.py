"""The recorded outcomes of Triton's interpreter: one line of JSON a case, compressed.

`xzcat tests/oracle/recorded.jsonl.xz` shows it. A line has the case's name, a digest of the source and
the inputs, and the results: type, shape and bytes in hexadecimal, or the compile error.

Invariant: an outcome belongs to exactly the source and inputs of its digest.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from tests.oracle.cases import Case, Outcome, Refused, Result, source
from tests.oracle.values import NUMPY

FILE = Path(__file__).with_name("recorded.jsonl.xz")


def digest(case: Case) -> str:
    """Return a short digest of a case's source and inputs."""
    hasher = hashlib.sha256(source(case, []).encode())
    for operand in case.inputs:
        hasher.update(f"{operand.dtype}{operand.shape}".encode())
        hasher.update(np.ascontiguousarray(operand.values).tobytes())
    return hasher.hexdigest()[:12]


@cache
def read() -> dict[str, tuple[str, Outcome]]:
    """Return the digest and the outcome of every recorded case, by name."""
    with lzma.open(FILE, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return {row["case"]: (row["asked"], _outcome(row)) for row in rows}


def write(answers: Mapping[Case, Outcome] | Iterable[tuple[Case, Outcome]]) -> None:
    """Write outcomes in the order of names."""
    pairs = answers.items() if isinstance(answers, Mapping) else answers
    rows = sorted((_row(case, outcome) for case, outcome in pairs), key=lambda row: row["case"])
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    FILE.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def _row(case: Case, outcome: Outcome) -> dict[str, object]:
    row: dict[str, object] = {"case": case.name, "asked": digest(case)}
    if isinstance(outcome, Refused):
        return {**row, "refused": outcome.message}
    return {
        **row,
        "results": [
            [part.dtype, list(part.shape), np.ascontiguousarray(part.values).tobytes().hex()]
            for part in outcome
        ],
    }


def _outcome(row: dict[str, object]) -> Outcome:
    if "refused" in row:
        return Refused(str(row["refused"]))
    return tuple(
        Result(dtype, tuple(shape), np.frombuffer(bytes.fromhex(text), NUMPY[dtype]))
        for dtype, shape, text in row["results"]  # type: ignore[attr-defined]
    )
