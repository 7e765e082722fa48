"""Record the outcomes of Triton's interpreter: `python -m tests.oracle.record`.

`--check` compares with the recording instead, and fails if it is stale, with `--every N` for each
Nth case; `--programs N` runs random programs through both interpreters. Needs `pip install -e '.[oracle]'`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.oracle import recorded
from tests.oracle.agree import cases, disagreement
from tests.oracle.interpreted import VERSION, answer


def main() -> int:
    """Record, or check; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--programs", type=int, default=0)
    options = parser.parse_args()
    started = time.monotonic()
    if options.programs:
        from tests.oracle.programs import compare_seeds

        return compare_seeds(range(options.programs))
    with TemporaryDirectory() as folder:
        answers = [(case, answer(case, Path(folder))) for case in cases()[:: options.every]]
    took = f"{len(answers)} cases, Triton {VERSION}, {time.monotonic() - started:.0f} s"
    if not options.check:
        recorded.write(answers)
        print(f"{took}, {recorded.FILE.stat().st_size} bytes")
        return 0
    recording = recorded.read()
    stale = [
        case.name
        for case, outcome in answers
        if recording.get(case.name, ("", outcome))[0] != recorded.digest(case)
        or disagreement(case, recording[case.name][1], outcome) is not None
    ]
    stale += sorted(recording.keys() - {case.name for case in cases()})
    print(took, *(f"stale: {name}" for name in stale), sep="\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
