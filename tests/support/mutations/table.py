"""The list of planted bugs, the known misses of `verify`, and the table of findings.

`python -m tests.support.mutations.table` prints the table of docs/internals/planted-bugs.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.support.mutations import (
    ahead,
    arithmetic,
    attention,
    bulk_copies,
    clusters,
    columns,
    control,
    far,
    fences,
    groups,
    hopper,
    launcher,
    matrix,
    memory,
    pointers,
    programs,
    record,
    roles,
    shared,
    stored_maps,
    tensor_stores,
)
from tests.support.mutations.hopper import PtxMutation
from tests.support.mutations.plant import Mutation

AREAS: dict[str, Sequence[Mutation | PtxMutation]] = {
    "accesses to global memory, atomics": memory.MUTATIONS,
    "shared memory, layouts, reductions, scans": shared.MUTATIONS,
    "arithmetic, conversions": arithmetic.MUTATIONS,
    "loops, branches, pipelines": control.MUTATIONS,
    "dots": matrix.MUTATIONS,
    "TMA stores": tensor_stores.MUTATIONS,
    "tensor maps of pointers": pointers.MUTATIONS,
    "persistent kernels": programs.MUTATIONS,
    "producer warps": roles.MUTATIONS,
    "consumer groups": groups.MUTATIONS,
    "two dots in flight": ahead.MUTATIONS,
    "attention": attention.MUTATIONS,
    "clusters": clusters.MUTATIONS,
    "dead columns": columns.MUTATIONS,
    "far rows": far.MUTATIONS,
    "fences": fences.MUTATIONS,
    "bulk copies": bulk_copies.MUTATIONS,
    "launcher": launcher.MUTATIONS,
    "record of a variant": record.MUTATIONS,
    "stored tensor maps": stored_maps.MUTATIONS,
    "TMA, mbarriers, wgmma (PTX)": hopper.MUTATIONS,
}

MUTATIONS = [mutation for mutations in AREAS.values() for mutation in mutations]

KNOWN_MISSES = {
    "exponential to a base a few ulp off": "smaller than what rounding may do to the result",
}


def rows() -> list[str]:
    """Return the lines of a table: findings by area and kind."""
    lines = ["|area|planted|found|as|", "|-|-|-|-|"]
    for area, mutations in AREAS.items():
        kinds: dict[str, int] = {}
        for mutation in mutations:
            kind = mutation.observe().kind
            if kind:
                kinds[kind] = kinds.get(kind, 0) + 1
        by_count = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
        shown = ", ".join(f"{kind} {count}" for kind, count in by_count)
        lines.append(f"|{area}|{len(mutations)}|{sum(kinds.values())}|{shown}|")
    return lines


if __name__ == "__main__":
    sys.stdout.write("\n".join(rows()) + "\n")
