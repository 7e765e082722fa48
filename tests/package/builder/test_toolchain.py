"""Versions read from file names, and the digest of the compiler."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

import aotc
from aotc.package.builder.toolchain import (
    COMPILER_FILES,
    compiler_digest,
    installed_versions,
    toolchain_text,
)


def test_versions_are_those_that_importlib_finds() -> None:
    versions = installed_versions()
    assert list(versions) == ["aotc", "llvmlite", "ptxas", "libdevice"]
    assert versions["aotc"] == aotc.__version__
    assert versions["llvmlite"] == importlib.metadata.version("llvmlite")
    assert versions["ptxas"] == importlib.metadata.version("nvidia-cuda-nvcc")
    assert versions["libdevice"] == importlib.metadata.version("nvidia-nvvm")
    assert f"llvmlite {versions['llvmlite']}; ptxas " in toolchain_text()


def test_first_folder_of_the_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, version in (("first", "9.9"), ("second", "8.8")):
        (tmp_path / folder / f"llvmlite-{version}.dist-info").mkdir(parents=True)
    monkeypatch.setattr(
        "sys.path", [str(tmp_path / "gone"), str(tmp_path / "first"), str(tmp_path / "second")]
    )
    assert installed_versions()["llvmlite"] == "9.9"
    assert installed_versions()["ptxas"] == "unknown"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name in ("ir/core.py", "backend/rules/arith.py", "compiler.py", "package/cache/store.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return tmp_path


@pytest.mark.parametrize("name", ["ir/core.py", "backend/rules/arith.py", "compiler.py"])
def test_digest_follows_the_compiler(package: Path, name: str) -> None:
    before = compiler_digest(package)
    assert compiler_digest(package) == before
    (package / name).write_text("# other\n")
    assert compiler_digest(package) != before


def test_digest_is_of_the_compiler_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(str(path)) or read_bytes(path))
    compiler_digest()
    root = Path(aotc.__file__).parent
    assert {str(root / name) for name in ("compiler.py", "schedule/pipeline.py")} <= set(read)
    assert all((root / name).exists() for name in COMPILER_FILES)


def test_digest_ignores_the_package_layer(package: Path) -> None:
    before = compiler_digest(package)
    (package / "package/cache/store.py").write_text("# other\n")
    assert compiler_digest(package) == before


def test_moving_text_between_files_changes_the_digest(package: Path) -> None:
    (package / "ir/a.py").write_text("xy")
    (package / "ir/b.py").write_text("")
    before = compiler_digest(package)
    (package / "ir/a.py").write_text("x")
    (package / "ir/b.py").write_text("y")
    assert compiler_digest(package) != before
