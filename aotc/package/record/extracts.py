"""Write extracts of kernels to `FOLDER/extracted`, where their own files cannot be compiled.

The recorder extracts every launched kernel (`aotc.triton.extract`). The extract replaces the
kernel's file in these cases:

- the file does not exist;
- the kernel captures variables of an enclosing function;
- its source was changed at run time, or is in the file twice;
- a name in it can only be resolved by running the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aotc.frontend.python.resolve import function_names
from aotc.frontend.survey.support import Survey
from aotc.ir.diagnostics import DiagnosticError
from aotc.package.manifest.read import read_function
from aotc.package.text_output import make_folder, write_text
from aotc.triton.extract import extracted_name

Kernel = dict[str, Any]
_IMPORT = re.compile(r"^from (\w+) import ", re.MULTILINE)
_EXTRACT_KEYS = ("extract", "changed")  # keys of a kernel, dropped once its source is chosen


def with_extracts(
    records: Sequence[dict[str, Any]], folder: Path, target: str
) -> list[dict[str, Any]]:
    """Write the needed extracts; return the records with kernels pointing to them."""
    texts = {record["extract"]: record["text"] for record in records if "extract" in record}
    extracts = _Extracts(texts, folder / "extracted", Survey(target))
    return moved([record for record in records if "extract" not in record], extracts.of)


def moved(
    records: Sequence[dict[str, Any]], relocate: Callable[[Kernel], Kernel]
) -> list[dict[str, Any]]:
    """Apply `relocate` to the kernels of records, and to functions among their constants."""
    results: list[dict[str, Any]] = []
    for original in records:
        record = dict(original)
        if "kernel" in original:
            record["kernel"] = relocate(original["kernel"])
        record["constants"] = {
            name: {"function": relocate(value["function"])} if "function" in value else value
            for name, value in original.get("constants", {}).items()
        }
        if "launch" in original:
            (record["launch"],) = moved([original["launch"]], relocate)
        results.append(record)
    return results


class _Extracts:
    """The recorder's extracts, written to files on demand."""

    def __init__(self, texts: Mapping[str, str], folder: Path, survey: Survey) -> None:
        self._texts, self._folder, self._survey = texts, folder, survey
        self._reasons: dict[
            str, str
        ] = {}  # the reason for extracting a kernel, "" if its own file is used

    def of(self, kernel: Kernel) -> Kernel:
        """Return a kernel in a buildable form, from its own file or its extract."""
        plain = {name: value for name, value in kernel.items() if name not in _EXTRACT_KEYS}
        if "captured" not in kernel:
            plain.pop("unsaid", None)
        name = str(kernel.get("extract"))
        if name not in self._texts:
            return plain
        key = repr(kernel)
        if key not in self._reasons:
            self._reasons[key] = self._reason(kernel)
        reason = self._reasons[key]
        if not reason:
            return plain
        return {
            "file": str((self._folder / name).resolve()),
            "function": extracted_name(name),
            "module": Path(name).stem,
            "extracted": f"{kernel['function']} {reason}",
        }

    def _reason(self, kernel: Kernel) -> str:
        """Return the reason for a kernel's extract, and write it; "" if none is needed."""
        name, file = kernel["function"].replace(".<locals>", ""), kernel["file"]
        if captured := kernel.get("captured"):
            reason = f"captures {', '.join(captured)}"
        elif kernel.get("changed"):
            reason = "was given another source"
        elif not Path(file).is_file():
            reason = "has no file"
        else:
            return self._if_better(kernel, self._problem(file, name))
        self._write(kernel["extract"])
        return reason

    def _if_better(self, kernel: Kernel, problem: str) -> str:
        """Return a problem of a kernel's file, "" if its extract has one too."""
        if not problem:
            return ""
        path = self._write(kernel["extract"])
        if not self._problem(path, extracted_name(kernel["extract"])):
            return problem
        Path(path).unlink()
        return ""

    def _problem(self, file: str, name: str) -> str:
        """Return a problem of a function in a file, or of its callees; "" if none."""
        try:
            opened = self._survey.globals.open(file)
            if name not in function_names(opened):
                read_function(file, name)
            support = {function.key: function for function in self._survey.functions(file)}
        except DiagnosticError as error:
            return f"is not in its file: {error.message}"
        definitions = [
            function
            for function in support.values()
            if (function.key[0], function.name) == (file, name)
        ]
        if len(definitions) > 1:
            return "is in its file more than once"
        waiting, seen = list(definitions), set[object]()
        while waiting:
            function = waiting.pop()
            if function.refusals:
                return f"has what only a run tells: {function.refusals[0].message}"
            seen.add(function.key)
            waiting += [support[key] for key in function.uses if key in support and key not in seen]
        return ""

    def _write(self, name: str) -> str:
        """Write an extract and its imports; return its path."""
        make_folder(self._folder)
        for file in self._with_imports(name):
            write_text(self._folder / file, self._texts[file])
        return str((self._folder / name).resolve())

    def _with_imports(self, name: str) -> Iterator[str]:
        yield name
        for module in _IMPORT.findall(self._texts[name]):
            if f"{module}.py" in self._texts:
                yield from self._with_imports(f"{module}.py")
