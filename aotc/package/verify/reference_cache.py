"""Cache a process's interpreted launches, for the next variants with the same tile IR.

Variants of one kernel that differ in stages, warps or persistence have one tile IR. So most of
their launches, and the expected outputs, are the same. Manifests list such variants one after the
other.

Invariant: cached references equal newly interpreted ones; at most `max_bytes` of buffers are kept.
"""

from __future__ import annotations

import re
from collections import OrderedDict

from aotc.ir import expression
from aotc.package.verify.subjects import Subject, VerifyOptions
from aotc.verify.checks.check import References

DEFAULT_MAX_BYTES = 1 << 28
_WARPS = re.compile(r"\{num_warps = \d+\}")  # of the kernel: its meaning does not depend on threads


class ReferenceCache:
    """Cache references by their inputs; the least recently used are dropped first."""

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._known: OrderedDict[tuple[object, ...], References] = OrderedDict()

    def of(self, tile_ir: str, subject: Subject, options: VerifyOptions) -> References:
        """Return the references of a variant's tile IR, to look up and to extend."""
        references = self._known.pop(key_of(tile_ir, subject, options), None) or References()
        self._known[key_of(tile_ir, subject, options)] = references
        return references

    def trim(self) -> None:
        """Drop the least recently used references, until the rest is small enough."""
        sizes = {key: references.size_bytes for key, references in self._known.items()}
        while sum(sizes.values()) > self._max_bytes:
            key, _ = self._known.popitem(last=False)
            del sizes[key]


def key_of(tile_ir: str, subject: Subject, options: VerifyOptions) -> tuple[object, ...]:
    """Return everything besides the launch that determines its expected outputs."""
    spec, values = subject.spec, tuple(sorted(subject.values.items()))
    if not (spec.ranges or spec.pointees or spec.sizes):  # these may depend on values
        values = ()
    roots = tuple(map(expression.to_text, subject.grid))
    described = (repr(spec.ranges), repr(spec.pointees), repr(spec.sizes))
    kernel = _WARPS.sub("{}", tile_ir, count=1)
    rounding = subject.values.get("conditional_rescaling", 0)
    return (subject.kernel, kernel, roots, described, values, rounding, options.max_memory_bytes)
