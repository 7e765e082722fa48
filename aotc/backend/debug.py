"""The line table of a kernel: the source line of each instruction.

The reader decides which line is meant. The audit of SASS needs the kernel's own lines: an inlined
function counts for the line of its call. A profiler wants the innermost line, in any function and
file, and the calls leading there.

LLVM's NVPTX backend writes no calls beside lines. Its other debug output, labels and an empty
section, makes ptxas schedule some kernels differently. So LLVM sees numbers in place of lines, one
for each location of instructions. `placed` puts the locations there instead, and drops the rest.

Invariant: ptxas makes the same code of a kernel with a line table and without. No absolute path is
written, so the same source gives the same cubin anywhere.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import PurePath

from aotc.ir.core import Kernel
from aotc.ir.diagnostics import UNKNOWN_LOC, Loc

# Lower numbers belong to the fixed nodes; loop metadata has a range of its own.
_FIRST_NODE = 100000
_UNIT, _FILE, _SUBPROGRAM, _TYPE, _FLAG = range(_FIRST_NODE, _FIRST_NODE + 5)
_HEAD = (
    f"!llvm.dbg.cu = !{{!{_UNIT}}}",
    f"!llvm.module.flags = !{{!{_FLAG}}}",
    f'!{_FLAG} = !{{i32 2, !"Debug Info Version", i32 3}}',
    (
        f"!{_UNIT} = distinct !DICompileUnit(language: DW_LANG_C, file: !{_FILE}, "
        'producer: "aotc", isOptimized: true, runtimeVersion: 0, emissionKind: DebugDirectivesOnly)'
    ),
    f'!{_FILE} = !DIFile(filename: "kernel", directory: "")',
    (
        f'!{_SUBPROGRAM} = distinct !DISubprogram(name: "kernel", scope: !{_FILE}, file: !{_FILE}, line: 0, '
        f"type: !{_TYPE}, scopeLine: 0, spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: !{_UNIT})"
    ),
    f"!{_TYPE} = !DISubroutineType(types: !{{}})",
)
_LOC = re.compile(r"\s*\.loc\s+1 (\d+) ")
_OF_DEBUGGER = re.compile(
    r"\s*(?:\.section\s+\.debug_|\.file\s)|\$L__(?:tmp|func_begin|func_end)\d+:"
)
_STRINGS = "$L__names"


class LineTable:
    """Number the source locations of one kernel, and write them into its PTX.

    With a `root`, lines are the innermost ones, with their calls, and files are named relative to
    the `root`; otherwise lines are the kernel's own, and files have no folders.
    """

    def __init__(self, kernel: Kernel, root: str | None = None) -> None:
        self._kernel = kernel
        self._root = root
        self._climb = _steps_up(kernel.loc.file, root) if root is not None else 0
        self._numbers: dict[Loc, int] = {}
        self._files: dict[str, int] = {self._name(kernel.loc.file): 1}
        self._functions: dict[str, int] = {}
        self._written: set[str] = set()

    def suffix(self, loc: Loc) -> str:
        """Return the suffix of an instruction at `loc`."""
        site = self._kernel.loc if loc == UNKNOWN_LOC else loc
        if self._root is None:
            *_, site = site.chain()
        number = self._numbers.setdefault(site, len(self._numbers) + 1)
        return f", !dbg !{_FLAG + number}"

    def function_suffix(self) -> str:
        """Return the suffix of the function's head."""
        return f" !dbg !{_SUBPROGRAM}"

    def metadata(self) -> list[str]:
        """Return the metadata named by the suffixes."""
        locations = (
            f"!{_FLAG + number} = !DILocation(line: {number}, column: 1, scope: !{_SUBPROGRAM})"
            for number in self._numbers.values()
        )
        return [*_HEAD, *locations]

    def placed(self, ptx: str) -> str:
        """Return PTX with places for their numbers, and nothing else for a debugger."""
        locations = list(self._numbers)
        lines: list[str] = []
        for line in ptx.split("\n"):
            match = _LOC.match(line)
            if match is not None and int(match[1]) <= len(locations):
                # Number 0 is code of no place, such as the start of the function.
                lines += self._directives(locations[int(match[1]) - 1]) if match[1] != "0" else []
            elif not _OF_DEBUGGER.match(line):
                lines.append(line)
        lines += (f"\t.file\t{number} {json.dumps(name)}" for name, number in self._files.items())
        return "\n".join([*lines, *self._strings()]) + "\n"

    def _directives(self, loc: Loc) -> list[str]:
        """Return the directives for instructions at `loc`."""
        location, site = self._location(loc), loc.call_site
        if self._root is None or site is None:
            self._written.add(location)
            return [f"\t.loc\t{location}"]
        name = loc.function or "?"
        end = sum(len(function.encode()) + 1 for function in self._functions)
        offset = self._functions.setdefault(name, end)
        label = f"{_STRINGS}+{offset}" if offset else _STRINGS
        # ptxas wants the directive of the call's location before references to it. A recursive
        # function is at one location in both.
        outer = [] if self._location(site) in self._written else self._directives(site)
        self._written.add(location)
        text = f"\t.loc\t{location}, function_name {label}, inlined_at {self._location(site)}"
        return [*outer, text]

    def _location(self, loc: Loc) -> str:
        file = self._files.setdefault(self._name(loc.file), len(self._files) + 1)
        return f"{file} {max(loc.line, 0)} {loc.col + 1}"

    def _strings(self) -> list[str]:
        if not self._functions:
            return []
        data = b"".join(name.encode() + b"\0" for name in self._functions)
        numbers = ",".join(map(str, data))
        return ["\t.section\t.debug_str", "\t{", f"{_STRINGS}:", f"\t.b8 {numbers}", "\t}"]

    def _name(self, file: str) -> str:
        """Return a file's name: relative to the root, if it belongs to the same tree as the kernel."""
        if self._root is None:
            return PurePath(file).name
        path = PurePath(os.path.relpath(file, self._root or os.curdir))
        return path.as_posix() if path.parts.count(os.pardir) <= self._climb else path.name


def _steps_up(file: str, root: str) -> int:
    """Return how many folders the path of a kernel's source goes up from the manifest's, as it is written."""
    path = PurePath(file)
    return path.relative_to(root).parts.count(os.pardir) if path.is_relative_to(root) else 0
