"""Reports of racecheck set aside: only reads of a stage before a copy fills it again."""

from __future__ import annotations

import pytest

from benchmarks.soak.races import Race, count_unjudged, find_races

_SASS = """
	.section	.text.ring,"ax",@progbits
        /*0430*/              @!P2 LDS.128 R4, [R12] ;
        /*0440*/                   STS.128 [R12], R4 ;
        /*0c70*/                   UBLKCP.S.G [UR20], [UR6], UR9 ;
"""


def _output(first: str, second: str) -> str:
    return (
        "========= COMPUTE-SANITIZER\nlaunches a.toml: other sm_90a\nlaunches a.toml: ring sm_90a BLOCK=64\n"
        f"========= Error: Race reported between {first}\n=========     and {second} [9936 hazards]\n"
        "========= \nlaunched 2 variants, 0 launches are wrong\n"
    )


_RING = _output("Read access at ring+0x430", "Write access at ring+0xc70")


def test_a_race_is_of_the_case_that_was_launched_before_it() -> None:
    case = "a.toml: ring sm_90a BLOCK=64"
    assert list(find_races(_RING)) == [Race(case, "ring", ("Read", "Write"), (0x430, 0xC70))]


@pytest.mark.parametrize(
    ("output", "count"),
    [
        (_RING, 1),
        (_RING + _RING, 2),
        # By threads: a barrier of theirs is missing.
        (_output("Read access at ring+0x430", "Write access at ring+0x440"), 0),
        # Read before it has arrived.
        (_output("Write access at ring+0xc70", "Read access at ring+0x430"), 0),
        (_RING.replace("Error", "Warning"), 0),
        (_RING.replace("a.toml: ring", "b.toml: ring"), 0),
        ("", 0),
    ],
)
def test_only_stages_that_are_filled_again_are_set_aside(output: str, count: int) -> None:
    assert count_unjudged(output, {"a.toml: ring sm_90a BLOCK=64": lambda: _SASS}) == count
