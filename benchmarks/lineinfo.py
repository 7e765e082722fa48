"""Cost of line tables: size of cubins, raw and compressed, and changes of code.

    python -m benchmarks.lineinfo kernels.toml kernels/matrix.toml …

The first variant of each kernel for sm_90a is assembled with and without. No GPU is needed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import zstandard

from aotc.compiler import compile_kernel
from aotc.ir.diagnostics import DiagnosticError
from aotc.package.inspect.dump import find_request
from aotc.package.manifest.read import load
from aotc.target import parse

_TARGET = parse("sm_90a")


def _instructions(sass: str) -> list[str]:
    """The instructions of a listing alone."""
    return [line.strip() for line in sass.splitlines() if line.strip().startswith("/*")]


def _compressed(data: bytes) -> int:
    return len(zstandard.ZstdCompressor(level=19).compress(data))


def main() -> None:
    """Print a row for each kernel, and the sums."""
    sums = [0, 0, 0, 0]
    differing = count = 0
    print(f"{'kernel':32} {'raw':>8} {'with':>8} {'zstd':>8} {'with':>8}  code")
    for path in map(Path, sys.argv[1:]):
        for kernel in load(str(path)).kernels:
            try:
                request = find_request(f"{path}:{kernel.name}", _TARGET, {}, ())
                plain = compile_kernel(request)
                lined = compile_kernel(replace(request, line_root=path.parent.as_posix()))
            except DiagnosticError as error:
                print(f"{kernel.name:32} {error.message}")
                continue
            cubins = plain.cubin, lined.cubin
            row = [*map(len, cubins), *map(_compressed, cubins)]
            is_same = _instructions(plain.asm["sass"]) == _instructions(lined.asm["sass"])
            sums = [total + value for total, value in zip(sums, row, strict=True)]
            differing += not is_same
            count += 1
            sizes = " ".join(f"{value:8}" for value in row)
            print(f"{kernel.name:32} {sizes}  {'same' if is_same else 'other'}")
    raw, raw_with, packed, packed_with = sums
    print(f"{'all':32} {' '.join(f'{value:8}' for value in sums)}")
    print(
        f"raw {raw_with / raw - 1:+.1%}, compressed {packed_with / packed - 1:+.1%};"
        f" other code in {differing} of {count}"
    )


if __name__ == "__main__":
    main()
