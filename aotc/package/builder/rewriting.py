"""Add the selections of a tuning table to a built archive and its accompanying files."""

from __future__ import annotations

from pathlib import Path

from aotc.package.archive import file as archives
from aotc.package.archive.index import Archive
from aotc.package.builder.outputs import library_beside
from aotc.package.emit.sources import read_sources
from aotc.package.tuning.packing import with_selections
from aotc.package.tuning.table import TuningTable


def tune_archive(path: Path, table: TuningTable) -> tuple[Archive, tuple[Path, ...]]:
    """Replace an archive by one with a table's selections; return it, and the changed files.

    Its sources file and static library are also rewritten, if they belong to it.

    Raises:
        ArchiveError: the archive cannot be read, the format cannot hold it, or a file cannot be
            written.
        ManifestError: the file of sources is another archive's.
    """
    before = archives.read_bytes(path)
    sources = read_sources(path)
    after, data = archives.changed(before, lambda archive: with_selections(archive, table))
    contents: dict[Path, bytes] = {}
    if data != before:
        contents |= library_beside(path, after, before, data)
        if sources is not None:
            names = [kernel.name for kernel in after.kernels]
            contents[path.with_suffix(".sources.json")] = sources.text(names, data).encode()
        contents[path] = data
        archives.write_together(contents)
    return after, tuple(contents)
