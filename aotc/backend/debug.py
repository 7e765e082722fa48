"""The line table of a kernel: the source line of each instruction.

It is optional, because it costs size, and ptxas schedules a kernel with a line table a little
differently. Which line is meant depends on who reads it. The audit of SASS asks for the kernel's own
lines: an inlined function counts for the line that calls it. A profiler wants the line that was
written, in whatever function and file; LLVM's NVPTX backend writes no call sites beside it.

Invariant: no absolute path is written, so that the same source gives the same cubin wherever it is.
"""

from __future__ import annotations

import json
from pathlib import PurePath

from aotc.ir.core import Kernel
from aotc.ir.diagnostics import UNKNOWN_LOC, Loc

# Lower numbers belong to the fixed nodes; loop metadata has a range of its own.
_FIRST_NODE = 100000
_UNIT, _FILE, _SUBPROGRAM, _TYPE, _FLAG = range(_FIRST_NODE, _FIRST_NODE + 5)


class DebugInfo:
    """Number the source locations of one kernel and write their metadata.

    `is_for_profilers` names the lines inside of inlined functions, and files as the manifest does;
    otherwise lines are the kernel's own, and files have no folders.
    """

    def __init__(self, kernel: Kernel, *, is_for_profilers: bool = False) -> None:
        self._kernel = kernel
        self._is_for_profilers = is_for_profilers
        self._file = self._name(kernel.loc.file)
        self._files: dict[str, int] = {self._file: _FILE}
        self._nodes: dict[str, int] = {}
        self._next = _FLAG + 1

    def suffix(self, loc: Loc) -> str:
        """Return what to append to an instruction that comes from `loc`."""
        if loc == UNKNOWN_LOC:
            site = self._kernel.loc
        else:
            site = loc if self._is_for_profilers else list(loc.chain())[-1]
        name = self._name(site.file)
        scope = _SUBPROGRAM
        if name != self._file:
            scope = self._node(
                f"distinct !DILexicalBlockFile(scope: !{_SUBPROGRAM}, file: !{self._file_node(name)}, "
                "discriminator: 0)"
            )
        node = self._node(
            f"!DILocation(line: {max(site.line, 0)}, column: {site.col + 1}, scope: !{scope})"
        )
        return f", !dbg !{node}"

    def function_suffix(self) -> str:
        """Return what to append to the head of the function."""
        return f" !dbg !{_SUBPROGRAM}"

    def metadata(self) -> list[str]:
        """Return the metadata that the suffixes refer to."""
        line = self._kernel.loc.line
        unit = (
            f"distinct !DICompileUnit(language: DW_LANG_C, file: !{_FILE}, producer: "
            '"aotc", isOptimized: true, runtimeVersion: 0, emissionKind: DebugDirectivesOnly)'
        )
        subprogram = (
            f"distinct !DISubprogram(name: {json.dumps(self._kernel.name)}, scope: !{_FILE}, "
            f"file: !{_FILE}, line: {line}, type: !{_TYPE}, scopeLine: {line}, "
            f"spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: !{_UNIT})"
        )
        return [
            f"!llvm.dbg.cu = !{{!{_UNIT}}}",
            f"!llvm.module.flags = !{{!{_FLAG}}}",
            f'!{_FLAG} = !{{i32 2, !"Debug Info Version", i32 3}}',
            f"!{_UNIT} = {unit}",
            f"!{_FILE} = {self._file_text(self._file)}",
            f"!{_SUBPROGRAM} = {subprogram}",
            f"!{_TYPE} = !DISubroutineType(types: !{{}})",
            *(f"!{node} = {text}" for text, node in self._nodes.items()),
        ]

    def _name(self, file: str) -> str:
        path = PurePath(file)
        has_folder = self._is_for_profilers and not path.is_absolute()
        return path.as_posix() if has_folder else path.name

    def _node(self, text: str) -> int:
        if text not in self._nodes:
            self._nodes[text] = self._next
            self._next += 1
        return self._nodes[text]

    def _file_node(self, name: str) -> int:
        return _FILE if name == self._file else self._node(self._file_text(name))

    @staticmethod
    def _file_text(name: str) -> str:
        return f'!DIFile(filename: {json.dumps(name)}, directory: "")'
