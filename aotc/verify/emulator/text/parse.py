"""Parse PTX text into a `Module`: its variables, and kernels with resolved names.

The grammar is that of LLVM's NVPTX backend, including inline assembly with nested scopes. Anything
else is an error that names its line. Only `.pragma` and debug sections, irrelevant to execution,
are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from aotc.verify.emulator.text.functions import find_functions, parse_function, skip_body
from aotc.verify.emulator.text.parse_body import Body
from aotc.verify.emulator.text.program import Extents, Kernel, Module, Param, Variable
from aotc.verify.emulator.text.tokens import Cursor
from aotc.verify.emulator.text.variables import SPACES, TYPE_BITS, parse_variable

# Allowed before a variable or function, without effect here.
_LINKAGE = (".visible", ".extern", ".weak", ".common")
_TRIPLES = {
    ".reqntid": "cta_threads",
    ".maxntid": "max_threads",
    ".reqnctapercluster": "cluster_ctas",
}
_IGNORED_COUNTS = (".minnctapersm", ".maxnreg", ".maxnctapersm", ".maxclusterrank")
_IGNORED_WORDS = (".explicitcluster", ".blocksareclusters", ".noreturn")


def parse_module(text: str) -> Module:
    """Parse a PTX text.

    Raises: EmulationError for truncated or unsupported text.
    """
    return _Parser(Cursor(text)).module()


class _Parser:
    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._variables: dict[str, Variable] = {}
        self._kernels: dict[str, Kernel] = {}
        self._target = ""
        self._files = _files(cursor)
        self._functions = find_functions(cursor)

    def module(self) -> Module:
        while self._cursor.token.kind != "end":
            self._item()
        return Module(self._target, self._variables, self._kernels)

    def _item(self) -> None:
        cursor = self._cursor
        token = cursor.next()
        word = token.text
        if word == ".version":
            cursor.next()
        elif word == ".address_size":
            if cursor.integer("a size") != 64:
                raise cursor.error("only 64-bit addresses are emulated", token)
        elif word == ".target":
            self._target = cursor.word("a target")
            while cursor.take(","):
                cursor.word("an option of the target")
        elif word == ".file":
            cursor.integer("a file's number")
            cursor.next()
            while cursor.take(","):
                cursor.next()
        elif word == ".section":
            cursor.word("a section's name")
            cursor.expect("{")
            cursor.skip_past("}")
        elif word == ".entry":
            kernel = self._kernel()
            self._kernels[kernel.name] = kernel
        elif word == ".func":
            if parse_function(cursor) is not None:
                skip_body(cursor)  # parsed at its calls
        elif word in SPACES:
            variable = parse_variable(cursor, word[1:])
            self._variables[variable.name] = variable
        elif word not in _LINKAGE and word != ";":
            raise cursor.error(f"{word!r} is no part of a module that is known", token)

    def _kernel(self) -> Kernel:
        cursor = self._cursor
        name = cursor.word("a kernel's name")
        params: list[Param] = []
        if cursor.take("("):
            while not cursor.take(")"):
                params.append(self._param(params))
                cursor.take(",")
        limits: dict[str, Extents] = {}
        while not cursor.take("{"):
            token = cursor.next()
            if token.text in _TRIPLES:
                limits[_TRIPLES[token.text]] = self._extents()
            elif token.text in _IGNORED_COUNTS:
                cursor.integer("a limit")
            elif token.text == ".pragma":
                cursor.skip_past(";")
            elif token.text not in _IGNORED_WORDS:
                raise cursor.error(f"{token.text!r} is no limit of a kernel that is known", token)
        symbols = {*self._variables, *(param.name for param in params)}
        body = Body(cursor, frozenset(symbols), self._files, self._functions)
        return Kernel(name, tuple(params), body.parse(), body.registers, body.variables, **limits)

    def _param(self, before: list[Param]) -> Param:
        cursor = self._cursor
        cursor.expect(".param")
        align, bits, pointer = 1, 0, False
        while cursor.peek().startswith("."):
            word = cursor.next().text
            if word == ".align":
                # After `.ptr` it is the pointee's alignment.
                value = cursor.integer("an alignment")
                align = align if pointer else value
            elif word == ".ptr":
                pointer = True
            elif word in TYPE_BITS:
                bits = TYPE_BITS[word]
            elif word not in SPACES:
                raise cursor.error(f"{word!r} says nothing known of a parameter")
        name = cursor.word("a parameter's name")
        count = 1
        if cursor.take("["):
            count = cursor.integer("an extent")
            cursor.expect("]")
        align = max(align, bits // 8)
        end = before[-1].offset + before[-1].size_bytes if before else 0
        return Param(name, math.ceil(end / align) * align, count * bits // 8, pointer)

    def _extents(self) -> Extents:
        extents = [self._cursor.integer("an extent")]
        while self._cursor.take(","):
            extents.append(self._cursor.integer("an extent"))
        x, y, z = [*extents, 1, 1][:3]
        return x, y, z


def _files(cursor: Cursor) -> Mapping[int, str]:
    """Return the file names by their `.loc` number; they stand at the end of the text."""
    tokens = cursor.tokens
    return {
        int(tokens[index + 1].text): tokens[index + 2].text.strip('"')
        for index, token in enumerate(tokens[:-2])
        if token.text == ".file" and tokens[index + 1].kind == "number"
    }
