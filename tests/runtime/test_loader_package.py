"""The two distributions with the loader: their lists of sources, and the lean one's contents."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tomli

ROOT = Path(__file__).resolve().parents[2]
LEAN = ROOT / "runtime_c" / "python"


def _extension(project: Path) -> dict[str, list[str]]:
    settings = tomli.loads((project / "pyproject.toml").read_text())
    (extension,) = settings["tool"]["setuptools"]["ext-modules"]
    assert extension["name"] == "aotc.runtime._native"
    return extension


def _files(*patterns: str) -> list[str]:
    return sorted(
        str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)
    )


@pytest.mark.parametrize("project", [ROOT, LEAN])
def test_the_extension_lists_all_its_files(project: Path) -> None:
    """A list, because setuptools takes no pattern there; a missing file fails here."""
    extension = _extension(project)
    assert sorted(extension["sources"]) == _files("aotc/runtime/*.c", "runtime_c/src/*.c")
    assert sorted(extension["depends"]) == _files(
        "aotc/runtime/*.h", "runtime_c/src/*.h", "runtime_c/include/aotc/aotc.h"
    )
    for path in (*extension["sources"], *extension["depends"]):
        assert (project / path).resolve() == ROOT / path


def test_both_build_the_extension_in_the_same_way() -> None:
    assert _extension(ROOT) == _extension(LEAN)


def _has_setuptools() -> bool:
    """Say whether the build needs no environment of its own, and so no network."""
    try:
        return int(importlib.metadata.version("setuptools").split(".")[0]) >= 77
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.mark.slow
def test_the_lean_wheel_holds_the_loader_alone(tmp_path: Path) -> None:
    """Built as a user builds it, from a copy of the sources in place."""
    copy = tmp_path / "repository"
    for folder in (
        "aotc/runtime",
        "aotc/triton",
        "runtime_c/src",
        "runtime_c/include",
        "runtime_c/python",
    ):
        skipped = shutil.ignore_patterns("*.so", "__pycache__", "build", "*.egg-info")
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=skipped)
    for file in ("aotc/__init__.py", "aotc/py.typed", "aotc/torch.py", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / file, copy / file)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    if _has_setuptools():
        command.insert(4, "--no-build-isolation")
    result = subprocess.run(
        [*command, str(tmp_path), str(copy / "runtime_c" / "python")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "CFLAGS": "-O0 -g0"},  # compiled in a third of the time
    )
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("aotc_runtime-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        licenses = {Path(name).name for name in archive.namelist() if "/licenses/" in name}
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    compiled = [name for name in names if name.endswith(".so")]
    assert len(compiled) == 1
    assert sorted(set(names) - set(compiled)) == [
        "aotc/__init__.py",
        "aotc/py.typed",
        "aotc/runtime/__init__.py",
        "aotc/runtime/_native.pyi",
        "aotc/runtime/errors.py",
        "aotc/runtime/info.py",
        "aotc/runtime/library.py",
        "aotc/torch.py",
        *_files("aotc/triton/**/*.py"),
    ]
    needs = [line for line in lines if line.startswith("Requires-Dist:")]
    assert needs == ["Requires-Dist: zstandard>=0.22"]
    assert "License-Expression: Apache-2.0" in lines
    assert licenses == {"LICENSE", "NOTICE"}


def test_every_package_names_one_license() -> None:
    for path in (*ROOT.glob("pyproject.toml"), *ROOT.glob("*/python/pyproject.toml")):
        project = tomli.loads(path.read_text())["project"]
        assert project["license"] == "Apache-2.0"
        for name in project["license-files"]:
            assert (path.parent / name).read_text() == (ROOT / name).read_text()
    assert "License: Apache-2.0\n" in (ROOT / "runtime_c" / "aotc.pc.in").read_text()


def test_the_example_checks_every_kernel() -> None:
    """It needs a GPU to run; its completeness can be tested without one."""
    manifest = tomli.loads((ROOT / "kernels.toml").read_text())
    tree = ast.parse((ROOT / "examples" / "python" / "run_kernels.py").read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {kernel["name"] for kernel in manifest["kernel"]} <= functions
