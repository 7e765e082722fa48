"""A tuning table goes into a built archive, its sources and its static library; the code stays as it is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from aotc.ir.diagnostics import ManifestError
from aotc.package.archive import file as archives
from aotc.package.archive.decoder import stored_frames
from aotc.package.archive.index import ArchiveError
from aotc.package.archive.selection import Selection
from aotc.package.builder.rewriting import tune_archive
from aotc.package.emit.header import archive_symbol, header_text
from aotc.package.emit.object import library_bytes
from aotc.package.tuning import fit as fits
from aotc.package.tuning.table import KernelTuning, TuningTable

_TABLE = TuningTable((KernelTuning("norm", "sm_90a", "NVIDIA H200", (), (), {}),))
_SELECTION = Selection("sm_90a", "NVIDIA H200", 1, (1,))


@pytest.fixture(autouse=True)
def _fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fitted(*_: object) -> tuple[Selection, ...]:
        return (_SELECTION,)

    monkeypatch.setattr(fits, "fit", fitted)


@pytest.mark.parametrize(
    ("is_grouped", "is_compressed"), [(True, True), (False, True), (True, False)]
)
def test_only_what_is_said_changes(
    tmp_path: Path, samples: SimpleNamespace, is_grouped: bool, is_compressed: bool
) -> None:  # fmt: skip
    path = tmp_path / "llm.aotc"
    before = archives.encode(samples.archive, is_grouped=is_grouped, is_compressed=is_compressed)
    path.write_bytes(before)
    archive, files = tune_archive(path, _TABLE)
    after = path.read_bytes()
    assert files == (path,)
    assert archive == archives.decode(after)
    norm = next(kernel for kernel in archive.kernels if kernel.name == "norm")
    assert [s for s in norm.selections if s.gpu] == [_SELECTION]
    code = [[f for f in stored_frames(data) if f.target] for data in (before, after)]
    assert code[0] == code[1]
    assert tune_archive(path, _TABLE)[1] == ()
    assert path.read_bytes() == after


def test_frames_are_not_compressed_again(
    tmp_path: Path, samples: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "llm.aotc"
    path.write_bytes(archives.encode(samples.archive))
    compressed: list[bytes] = []
    compress = archives._compress  # pyright: ignore[reportPrivateUsage]

    def counted(contents: list[bytes], level: int) -> list[bytes]:
        compressed.extend(contents)
        return compress(contents, level)

    monkeypatch.setattr(archives, "_compress", counted)
    tune_archive(path, _TABLE)
    assert len(compressed) == 1  # the index of the one kernel


def test_what_lies_beside_it_follows(tmp_path: Path, samples: SimpleNamespace) -> None:
    path, library = tmp_path / "llm.aotc", tmp_path / "libllm.a"
    before = archives.encode(samples.archive)
    path.write_bytes(before)
    symbol = archive_symbol(header_text(samples.archive))
    library.write_bytes(library_bytes("llm", before, symbol, "aarch64"))
    sources = {
        "version": 1,
        "archive_sha256": hashlib.sha256(before).hexdigest(),
        "kernels": {"norm": {"function": "norm", "files": [["k.py", "0"]], "functions": {}}},
    }
    sources_path = tmp_path / "llm.sources.json"
    sources_path.write_text(json.dumps(sources))
    _, files = tune_archive(path, _TABLE)
    after = path.read_bytes()
    assert set(files) == {path, library, sources_path}
    assert library.read_bytes() == library_bytes("llm", after, symbol, "aarch64")
    document = json.loads(sources_path.read_text())
    assert document == {**sources, "archive_sha256": hashlib.sha256(after).hexdigest()}


def test_files_of_another_archive_stay(tmp_path: Path, samples: SimpleNamespace) -> None:
    path, library = tmp_path / "llm.aotc", tmp_path / "libllm.a"
    path.write_bytes(archives.encode(samples.archive))
    other = library_bytes("llm", archives.encode(samples.small), "llm_archive_1")
    library.write_bytes(other)
    assert tune_archive(path, _TABLE)[1] == (path,)
    assert library.read_bytes() == other
    (tmp_path / "llm.sources.json").write_text("{}")
    with pytest.raises(ManifestError, match="something else"):
        tune_archive(path, _TABLE)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.aotc"
    path.write_bytes(b"x" * 4096)
    with pytest.raises(ArchiveError, match="not an archive"):
        tune_archive(path, _TABLE)
    assert path.read_bytes() == b"x" * 4096
