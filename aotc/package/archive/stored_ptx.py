"""Store PTX in an archive with its tile IR in comments (`--with-ptx`).

Verifying an archive without its sources takes two texts of a variant: the compiled PTX, and its
tile IR, which defines the right outputs. They are stored as one blob: the PTX, then the tile IR in
comment lines, so that any tool can read it as PTX.

Invariant: `split(join(tile_ir, ptx)) == (tile_ir, ptx)`, and the line numbers of the PTX stay.
"""

from __future__ import annotations

_HEAD = "// ---- tile IR ----"
_PREFIX = "//| "


def join(tile_ir: str, ptx: str) -> bytes:
    """Return the stored form of a kernel's PTX and tile IR; both end with a newline."""
    # Not `splitlines`: a string in the IR may hold other line ends of Python.
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
