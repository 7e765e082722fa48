"""The two distributions with the loader: their lists of sources, and the lean one's contents."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import tomli

from aotc.package.archive.file import read
from aotc.package.emit.wheel import make_wheel

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


def test_the_extension_lists_all_its_files() -> None:
    """A list, because setuptools takes no pattern there; a missing file fails here."""
    extension = _extension(LEAN)
    assert sorted(extension["sources"]) == _files("aotc/runtime/*.c", "runtime_c/src/*.c")
    assert sorted(extension["depends"]) == _files(
        "aotc/runtime/*.h", "runtime_c/src/*.h", "runtime_c/include/aotc/aotc.h"
    )
    for path in (*extension["sources"], *extension["depends"]):
        assert (LEAN / path).resolve() == ROOT / path


def _has_setuptools() -> bool:
    """Say whether the build needs no environment of its own, and so no network."""
    try:
        return int(importlib.metadata.version("setuptools").split(".")[0]) >= 77
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheels of the loader and the compiler, built as users do, from a copy of the sources."""
    folder = tmp_path_factory.mktemp("wheels")
    copy = folder / "repository"
    skipped = shutil.ignore_patterns("*.so", "__pycache__", "build", "*.egg-info")
    for name in ("aotc", "runtime_c/src", "runtime_c/include", "runtime_c/python"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=skipped)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    if _has_setuptools():
        command.insert(4, "--no-build-isolation")
    for project in (LEAN, ROOT):
        path = copy / project.relative_to(ROOT)
        result = subprocess.run(
            [*command, str(folder), str(path)],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env={**os.environ, "CFLAGS": "-O0 -g0"},  # compiled in a third of the time
        )
        assert result.returncode == 0, result.stderr
    (loader,) = folder.glob("aotc_runtime-*.whl")
    (compiler,) = folder.glob("aotc-*.whl")
    return loader, compiler


def _content(wheel: Path) -> tuple[set[str], list[str], set[str]]:
    """Return the modules of a wheel, the lines of its metadata, and its licences."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    modules = {name for name in names if ".dist-info/" not in name}
    return modules, lines, {Path(name).name for name in names if "/licenses/" in name}


@pytest.mark.slow
def test_the_lean_wheel_holds_the_loader_alone(wheels: tuple[Path, Path]) -> None:
    names, lines, licenses = _content(wheels[0])
    compiled = [name for name in names if name.endswith(".so")]
    assert len(compiled) == 1
    assert sorted(names - set(compiled)) == [
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


@pytest.mark.slow
def test_the_compiler_depends_on_the_loader(wheels: tuple[Path, Path]) -> None:
    """Together they have every module, and none twice; the compiler's wheel is for any host."""
    loader, _, _ = _content(wheels[0])
    compiler, lines, _ = _content(wheels[1])
    assert not loader & compiler
    assert {name for name in loader | compiler if name.endswith(".py")} == set(
        _files("aotc/**/*.py")
    )
    assert "Requires-Dist: aotc-runtime==0.1.0" in lines
    assert wheels[1].name == "aotc-0.1.0-py3-none-any.whl"
    assert f"Version: {importlib.metadata.version('aotc')}" in lines


@pytest.mark.slow
@pytest.mark.parametrize("has_compiler", [False, True])
def test_a_packed_archive_installs_beside_either(
    tmp_path: Path, wheels: tuple[Path, Path], archives: Path, has_compiler: bool
) -> None:
    """In a new environment: other distributions are found in this one, aotc itself is not."""
    packed = make_wheel(read(archives / "golden.aotc"))
    (tmp_path / packed.file_name).write_bytes(packed.content)
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    (site,) = environment.glob("lib/python3*/site-packages")
    install = [sys.executable, "-m", "pip", f"--python={python}", "install", "--no-index", "-q"]
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    chosen = [*wheels[: 1 + has_compiler], tmp_path / packed.file_name]
    subprocess.run([*install, "--no-deps", *chosen], check=True, timeout=300)
    program = f"import aotc, {packed.module} as packed; print(aotc.__file__, packed.ARCHIVE)"
    paths = _run(python, "-c", program).split()
    assert all(Path(path).is_relative_to(site) for path in paths)
    command = _run(python, "-m", "aotc", "inspect", paths[1], fails=not has_compiler)
    assert ("5 kernels" in command) == has_compiler
    # Removed again, it leaves the loader whole.
    uninstall = [sys.executable, "-m", "pip", f"--python={python}", "uninstall", "-y", "-q"]
    if has_compiler:
        subprocess.run([*uninstall, "aotc"], check=True, timeout=120)
    _run(python, "-c", f"import aotc.runtime, aotc.triton, {packed.module}")


def _run(python: Path, *arguments: str, fails: bool = False) -> str:
    process = subprocess.run(
        [python, "-P" if sys.version_info >= (3, 11) else "-s", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=python.parent,
        env={"PATH": "/usr/bin"},
    )
    assert (process.returncode != 0) == fails, process.stdout + process.stderr
    return process.stdout


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
