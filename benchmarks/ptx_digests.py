"""Write the digest of every variant's PTX, or compare two such files: does a change alter code?

    python benchmarks/ptx_digests.py before.txt [--every 20] [-j 2] [MANIFEST …]
    python benchmarks/ptx_digests.py after.txt [--every 20] --compare before.txt

Line tables are left out, so moved lines do not count. Of every manifest, each Nth variant is
compiled.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from aotc.compiler import CompileRequest, compile_ptx
from aotc.ir.diagnostics import DiagnosticError
from aotc.package.manifest.read import load
from aotc.package.verify.subjects import subjects_of_manifest

ROOT = Path(__file__).parents[1]
_LINES = re.compile(r"(?m)^\s*(?:\.loc|\.file)\b.*\n|^\s*\.section\s+\.debug[^{]*\{[^}]*\}\n")


def digest(job: tuple[str, CompileRequest]) -> tuple[str, str]:
    """Return the label of a variant and the digest of its PTX, or the class of its error."""
    label, request = job
    try:
        ptx = _LINES.sub("", compile_ptx(request).ptx)
    except DiagnosticError as error:
        return label, type(error).__name__
    return label, hashlib.sha256(ptx.encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("manifests", type=Path, nargs="*")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("-j", type=int, default=2)
    options = parser.parse_args()
    manifests = options.manifests or [
        ROOT / "kernels.toml",
        *sorted((ROOT / "kernels").glob("*.toml")),
    ]
    jobs: list[tuple[str, CompileRequest]] = []
    for path in manifests:
        subjects = subjects_of_manifest(load(str(path)))[:: options.every]
        jobs += [(f"{path.name} {s.label}", s.request) for s in subjects]
    with ProcessPoolExecutor(options.j) as pool:
        digests = dict(pool.map(digest, jobs, chunksize=4))
    options.output.write_text("".join(f"{value} {label}\n" for label, value in digests.items()))
    print(f"{len(digests)} variants")
    if options.compare:
        rows = (line.split(" ", 1) for line in options.compare.read_text().splitlines())
        before = {label: value for value, label in rows}
        changed = [k for k in before if digests.get(k) != before[k]]
        print(f"{len(changed)} of {len(before)} changed", *changed[:20], sep="\n  ")
        sys.exit(bool(changed))


if __name__ == "__main__":
    main()
