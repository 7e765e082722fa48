"""Compute capabilities of GPUs by the names that their drivers give."""

from __future__ import annotations

import re

# The first pattern that a name has counts.
_CAPABILITIES: tuple[tuple[str, tuple[int, int]], ...] = (
    (r"G?H(20|100|200|800)\b", (9, 0)),
    (r"GB10\b|DGX Spark", (12, 1)),
    (r"G?B[12]00\b", (10, 0)),
    (r"G?B300\b", (10, 3)),
    (r"RTX 50\d\d|RTX PRO \d+ Blackwell", (12, 0)),
    (r"L4\b|L20\b|L40S?\b|RTX 40\d\d|RTX \d+ Ada", (8, 9)),
    (r"A(30|100|800)\b", (8, 0)),
    (r"A(10G?|16|40)\b|RTX 30\d\d|RTX A\d+", (8, 6)),
    (r"Orin", (8, 7)),
    (r"Thor", (11, 0)),
)


def capability_of(gpu: str) -> tuple[int, int] | None:
    """Return major and minor number of a GPU of NVIDIA, None for an unknown one."""
    for pattern, capability in _CAPABILITIES:
        if re.search(rf"\b(?:{pattern})", gpu):
            return capability
    return None
