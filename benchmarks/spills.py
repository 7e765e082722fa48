"""Variants of the manifests exceeding a thread's registers, found without a GPU.

    python benchmarks/spills.py [MANIFEST]… [--target T]… [--kernel K]… [--jobs N] [--json FILE]

Every variant of every kernel is compiled for every target, not only for the manifest's, and for
sm_90a also without wgmma. Spills, stack use and warnings of ptxas are listed; the exit code is
then 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from aotc.compiler import CompileRequest, autotune_configs, compile_kernel
from aotc.ir.diagnostics import ResourceError
from aotc.package.manifest import read as manifest
from aotc.package.manifest.variant_grid import expand
from aotc.target import TARGETS

ROOT = Path(__file__).parents[1]
MANIFESTS = ("kernels.toml", "kernels/matrix.toml")
DEFAULT_TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_90a-wgmma", "sm_120a")
"""A feature behind a minus is compiled without."""


@dataclass(frozen=True)
class Use:
    """Resources of a variant: registers of a thread, bytes spilled and of stack, shared bytes."""

    kernel: str
    target: str
    variant: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    warnings: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Return whether registers suffice and ptxas has no warnings."""
        return not (self.spill_bytes or self.stack_bytes or self.warnings)


def requests(
    path: Path, targets: Sequence[str], kernels: Sequence[str]
) -> Iterator[tuple[str, str, CompileRequest]]:
    """Yield every variant of a manifest with the kernel's name and the target's."""
    for spec in manifest.load(str(path)).kernels:
        if kernels and spec.name not in kernels:
            continue
        for text in targets:
            target, *without = text.split("-")
            for variant in expand(spec, [TARGETS[target]], autotune_configs).variants:
                yield spec.name, text, replace(variant.request, without=tuple(without))


def measured(item: tuple[str, str, CompileRequest]) -> Use | None:
    """Compile a variant and return its resources, None if the target has no room for it."""
    name, target, request = item
    try:
        metadata = compile_kernel(request).metadata
    except ResourceError:
        return None
    types = [text for _, text in request.signature]
    constants = [f"{name}={value}" for name, value in request.constants]
    return Use(
        name,
        target,
        f"{' '.join([*types, *constants])} num_warps={request.config.num_warps}",
        metadata.registers,
        metadata.spill_bytes,
        metadata.stack_bytes,
        metadata.shared_bytes,
        metadata.ptxas_warnings,
    )


def main() -> int:
    """Print spills and a summary; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("manifests", nargs="*", type=Path)
    parser.add_argument("--target", action="append", metavar="T[-FEATURE]")
    parser.add_argument("--kernel", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    paths = arguments.manifests or [ROOT / name for name in MANIFESTS]
    targets = arguments.target or DEFAULT_TARGETS
    items = [item for path in paths for item in requests(path, targets, arguments.kernel)]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        uses: list[Use] = []
        for use in filter(None, pool.map(measured, items)):
            uses.append(use)
            if not use.is_clean:
                spill_text = f"{use.spill_bytes} bytes spilled, {use.stack_bytes} of stack"
                print(
                    f"{use.kernel} {use.target}: {spill_text}: {use.variant}",
                    *use.warnings,
                    flush=True,
                )
    bad = sum(not use.is_clean for use in uses)
    print(f"{len(uses)} variants, {bad} of them short of registers")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(use) for use in uses], indent=1))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
