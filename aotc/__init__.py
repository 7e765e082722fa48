"""aotc: ahead-of-time compiler for tile kernels written in Triton's language.

`compile` and `load` are resolved on first use: a serving process that only loads an archive imports
nothing of the compiler. Nor is anything of the standard library imported here: until the command
line handles interrupts, one would be a traceback.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it

if TYPE_CHECKING:
    from aotc.compiler import CompiledKernel
    from aotc.package.launchable import LaunchableKernel, compile  # noqa: A004
    from aotc.runtime import load

__version__ = "0.1.0"
__all__ = ["CompiledKernel", "LaunchableKernel", "__version__", "compile", "load"]

_HOMES = {
    "CompiledKernel": "aotc.compiler",
    "LaunchableKernel": "aotc.package.launchable",
    "compile": "aotc.package.launchable",
    "load": "aotc.runtime",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'aotc' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(home), name)
