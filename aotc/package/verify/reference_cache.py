"""What a process has interpreted for one variant, kept for the next ones that mean the same.

Variants of one kernel that differ in stages, warps or persistence have one tile IR, so most of their
launches, and what these must give, are the same. Manifests list such variants one after the other.

Invariant: what is kept is what would be interpreted anew; at most `max_bytes` of buffers are kept.
"""

from __future__ import annotations

import re
from collections import OrderedDict

from aotc.ir import expression
from aotc.package.verify.subjects import Subject, VerifyOptions
from aotc.verify.checks.check import References

DEFAULT_MAX_BYTES = 1 << 28
_WARPS = re.compile(r"\{num_warps = \d+\}")  # of the kernel: its meaning knows nothing of threads


class KeptReferences:
    """Keep references by what they depend on; those that were used last stay longest."""

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._known: OrderedDict[tuple[object, ...], References] = OrderedDict()

    def of(self, tile_ir: str, subject: Subject, options: VerifyOptions) -> References:
        """Return the references of a variant's tile IR, to look up launches in and to add to."""
        found = self._known.pop(key_of(tile_ir, subject, options), None) or References()
        self._known[key_of(tile_ir, subject, options)] = found
        return found

    def trim(self) -> None:
        """Drop what was used longest ago, until the rest is small enough."""
        sizes = {key: each.size_bytes for key, each in self._known.items()}
        while sum(sizes.values()) > self._max_bytes:
            key, _ = self._known.popitem(last=False)
            del sizes[key]


def key_of(tile_ir: str, subject: Subject, options: VerifyOptions) -> tuple[object, ...]:
    """Return all that what a launch must give depends on, besides the launch."""
    spec, values = subject.spec, tuple(sorted(subject.values.items()))
    if not (spec.ranges or spec.pointees or spec.sizes):  # which may name values
        values = ()
    roots = tuple(map(expression.to_text, subject.grid))
    described = (repr(spec.ranges), repr(spec.pointees), repr(spec.sizes))
    kernel = _WARPS.sub("{}", tile_ir, count=1)
    return (subject.kernel, kernel, roots, described, values, options.max_memory_bytes)
