"""The command line of the harness."""

from __future__ import annotations

import argparse
import datetime as dt
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import supervise
from benchmarks.harness.registry import FAMILIES, items_of, selected, tiny


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.harness")
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("items", nargs="*", help="of the family; all by default")
    parser.add_argument("--archive", type=Path, help="built from the family's manifest")
    parser.add_argument("--only", nargs="+", default=[], help="rows whose names begin so")
    parser.add_argument("--peers", nargs="*", help="that take part beside aotc; all by default")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tuning, for each peer")
    parser.add_argument("--host", action="store_true", help="charge peers for the host's time")
    parser.add_argument("--json", type=Path, help="results, read and written")
    parser.add_argument("--again", action="store_true", help="measure rows that --json has, too")
    parser.add_argument("--list", action="store_true", help="print the rows")
    parser.add_argument("--dry", action="store_true", help="interpret small ones on the host")
    folder = Path(tempfile.gettempdir()) / "aotc-harness-triton"
    parser.add_argument("--triton-cache", type=Path, default=folder)
    return parser.parse_args(arguments)


def main() -> None:
    """Measure workloads, list them, or run small ones without a GPU."""
    options = options_of()
    if options.list:
        for name, item in items_of(options.family).items():
            rows = [workload.name for workload in item.workloads]
            print(f"{name}: {item.title}", *rows, sep="\n    ")
        return
    if options.dry:
        from benchmarks.harness.dry import dry_run

        for workload in tiny(options.family):
            for label, error in dry_run(workload):
                print(f"{workload.name}: {label}: {error:.3g} of what is tolerated")
        return
    workloads = selected(options.family, options.items, options.only)
    if options.archive is None or not options.archive.exists():
        manifests = sorted({workload.manifest for workload in workloads})
        missing = f", got {options.archive}, which is not there" if options.archive else ""
        raise SystemExit(f"expected --archive, built from {', '.join(manifests)}{missing}")
    results = supervise.Results(options.archive, options.json, _run(options), again=options.again)
    task = {
        "family": options.family,
        "items": options.items,
        "only": options.only,
        "archive": str(options.archive),
        "seconds": options.seconds,
        "peers": options.peers,
        "host": options.host,
        "triton_cache": str(options.triton_cache),
    }
    supervise.exit_when_terminated()
    supervise.measure(task, results)
    ratios = [row["ratios"] for row in results.rows.values() if row.get("ratios")]
    for peer in dict.fromkeys(name for row in ratios for name in row):
        values = [row[peer] for row in ratios if peer in row]
        mean = math.exp(sum(map(math.log, values)) / len(values))
        print(f"over {peer}: geometric mean {mean:.3f}, least {min(values):.3f}")


def _run(options: argparse.Namespace) -> dict[str, object]:
    """Return the keys of a run, as `docs/results` has them."""
    items = [items_of(options.family)[name] for name in options.items or items_of(options.family)]
    manifest = items[0].workloads[0].manifest
    command = f"python -m benchmarks.harness {' '.join([options.family, *options.items])}"
    command += f" --archive {options.archive}" + (" --host" if options.host else "")
    command += f" --peers {' '.join(options.peers)}" if options.peers is not None else ""
    return {
        "area": items[0].area,
        "title": "; ".join(item.title for item in items),
        "card": "",
        "date": dt.datetime.now(tz=dt.timezone.utc).date().isoformat(),
        "command": [f"aotc build {manifest} -o dist", command],
        "unit": items[0].workloads[0].unit,
    }


if __name__ == "__main__":
    main()
