"""Check the Python lines shown by tools: compute-sanitizer at a bad store, ncu at every line.

    python benchmarks/profiler_lines.py [--no-ncu]

Builds a kernel with an out-of-bounds store in a helper, with line tables and without
(`--no-lineinfo`). It runs under compute-sanitizer, and a correct kernel under ncu. The lines
named by each are printed. Needs both tools, torch and an NVIDIA GPU; ncu also needs permission
to read the GPU's counters.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def put(x, at, value, mask):
    tl.store(x + at, value, mask=mask)


@triton.jit
def fill(x, n, STEP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.exp(at.to(tl.float32) / n)
    put(x, at * STEP, value, at < n)
"""
MANIFEST = """\
[package]
name = "{name}"
version = "1.0.0"
targets = ["sm_90a"]
[[kernel]]
source = "lines.py:fill"
grid = ["cdiv(n, BLOCK)"]
constants = {{ BLOCK = 128 }}
signature = {{ x = "*fp32:16", n = "i32" }}
choices = {{ STEP = [1, 65536] }}
"""
PROGRAM = """\
import sys, aotc, torch
x = torch.zeros(128, device="cuda")
aotc.load(sys.argv[1])["fill"](x, 128, STEP=int(sys.argv[2]))
torch.cuda.synchronize()
"""
LINES = {
    number: line.strip() for number, line in enumerate(SOURCE.splitlines(), 1) if "tl." in line
}
STORE = next(number for number, line in LINES.items() if "tl.store" in line)
CALL = next(n for n, line in enumerate(SOURCE.splitlines(), 1) if line.strip().startswith("put("))


def run(folder: Path, *command: str, seconds: float = 60) -> str:
    """Run a command in a folder; return its output, with its exit status on failure."""
    try:
        process = subprocess.run(
            command, cwd=folder, text=True, timeout=seconds, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except FileNotFoundError:
        return f"there is no {command[0]}"
    except subprocess.TimeoutExpired:
        return f"{command[0]} took more than {seconds:g} s"
    return process.stdout


def sanitize(folder: Path, name: str) -> str:
    """Return memcheck's report of the bad store, with its lines."""
    tool = ("compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no")
    program = (sys.executable, "run.py", f"dist/{name}.aotc", "65536")
    return run(folder, *tool, "--print-limit", "1", *program)


def profile(folder: Path, name: str) -> str:
    """Return ncu's page of the source of a launch."""
    ncu = ("ncu", "--section", "SourceCounters", "--import-source", "yes")
    ncu += ("--clock-control", "none", "-f", "-o", name)
    program = (sys.executable, "run.py", f"dist/{name}.aotc", "1")
    output = run(folder, *ncu, "-k", "regex:fill", "-c", "1", *program)
    if not (folder / f"{name}.ncu-rep").exists():
        return output
    page = ("--page", "source", "--print-source", "cuda,sass", "--csv")
    return run(folder, "ncu", "--import", f"{name}.ncu-rep", *page)


def main() -> int:
    """Print the lines named by each tool; return 1 if one named none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--no-ncu", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="print what the tools print")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "lines.py").write_text(SOURCE)
        (folder / "run.py").write_text(PROGRAM)
        for name, words in (("with_lines", ()), ("without", ("--no-lineinfo",))):
            (folder / f"{name}.toml").write_text(MANIFEST.format(name=name))
            command = ("build", f"{name}.toml", "--no-cache", *words)
            built = run(folder, sys.executable, "-m", "aotc", *command)
            if not (folder / "dist" / f"{name}.aotc").exists():
                print(built)
                return 1
            outputs = {"compute-sanitizer": sanitize(folder, name)}
            if not options.no_ncu:
                outputs["ncu"] = profile(folder, name)
            for tool, text in outputs.items():
                named = sorted(
                    {int(line_number) for line_number in re.findall(r"lines\.py:(\d+)", text)}
                )
                shown = [number for number, line in LINES.items() if line in text]
                print(f"{name:10} {tool:18} names lines {named}, shows the text of {shown}")
                is_told = STORE in {*named, *shown}
                failed |= is_told != (name == "with_lines")
                if options.verbose or is_told != (name == "with_lines"):
                    print("\n".join(f"    {line[:200]}" for line in text.splitlines()[:40]))
    print(f"the store stands in line {STORE}, inlined at line {CALL}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
