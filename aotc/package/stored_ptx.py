"""The PTX that an archive keeps with `--with-ptx`, and in its comments what it was made from.

An archive that is to be verified where its sources are gone needs two texts of a variant: what was
compiled and what it had to mean, its tile IR. They are stored as one: the PTX, then the tile IR in
comment lines. So it is one blob, and still a PTX file that any tool reads.

Invariant: `split(join(tile_ir, ptx)) == (tile_ir, ptx)`, and no line of the PTX moves.
"""

from __future__ import annotations

_HEAD = "// ---- tile IR ----"
_PREFIX = "//| "


def join(tile_ir: str, ptx: str) -> bytes:
    """Return the stored form of a kernel's PTX and tile IR; both end with a newline."""
    # Not `splitlines`: a string in the IR may hold other characters that end a line for Python.
    comments = "".join(f"{_PREFIX}{line}\n" for line in tile_ir.removesuffix("\n").split("\n"))
    return f"{ptx}{_HEAD}\n{comments}".encode()


def split(stored: bytes) -> tuple[str, str]:
    """Return the tile IR and the PTX; the tile IR is empty if none was stored."""
    text = stored.decode()
    ptx, head, comments = text.partition(f"{_HEAD}\n")
    if not head:
        return "", text
    lines = [line.removeprefix(_PREFIX) for line in comments.removesuffix("\n").split("\n")]
    return "".join(f"{line}\n" for line in lines), ptx
