"""Share of public kernels translated with guessed types.

    pip download --no-deps fla-core && unzip -d others fla_core*.whl
    python benchmarks/coverage.py others [--compile] [--reasons 20] [--without amd npu]

Every kernel of a folder is tried: module-level functions with `@triton.jit` and no return value,
not called by another kernel. Their launch types are unknown, so these are guessed. Parameters of
loads and stores are pointers; names tell floats, indices and switches. After a refusal other
types and constants are tried in turn. `--compile` also takes each translated kernel to PTX for
sm_90a.

A kernel without a fitting guess is counted by the first guess's error. Most of these are wrong
guesses for a person to look at: the share of translated kernels is a lower bound.
"""

from __future__ import annotations

import argparse
import ast
import collections
import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from aotc.compiler import CompileRequest, compile_ptx
from aotc.frontend import translate
from aotc.ir.diagnostics import DiagnosticError

TARGET = "sm_90a"
GUESS_SECONDS, COMPILE_SECONDS = 20, 60

_IS_JIT = re.compile(r"(triton\.)?jit\b")
_MEMORY = re.compile(r"(load|store|atomic_\w+|make_block_ptr|make_tensor_descriptor)$")
_FLOATS = re.compile(
    r"eps|scale$|^scale|alpha|beta|gamma|lr$|momentum|softcap|cap$|dropout_p|^p$|theta|inv_|_inv"
    r"|decay|clip|limit|lambda",
    re.IGNORECASE,
)
_INDICES = re.compile(
    r"idx|ids|indices|seqlen|offset|table|cu_|lens|map|slot|pos|num_|count|chunk_ind|expert|token"
    r"|req|label|target|sorted",
    re.IGNORECASE,
)
_SWITCHES = re.compile(
    r"(IS|HAS|USE|STORE|WITH|ENABLE|DO|OUTPUT|SAVE|INPUT|FUSE|EVEN|HEAD_FIRST|TRANS|REVERSE|CAUSAL"
    r"|APPLY|NORM|INPLACE|RETURN|LOAD|KEEP|SKIP|ALLOW|MASK)"
)
_OTHER_POINTERS = ("*i32", "*fp32", "*i64", "*u8", "*fp8e4nv", "*i1")
_OTHER_EXTENTS = (16, 1, 2, 4)
_EXTENT = 64
_BUG = "BUG"


# ---- kernels ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Function:
    """A function with a `jit` decorator, and facts on its parameters from its source."""

    node: ast.FunctionDef

    @cached_property
    def annotations(self) -> dict[str, str]:
        """The text of each parameter's annotation."""
        args = self.node.args
        listed = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        return {arg.arg: ast.unparse(arg.annotation) if arg.annotation else "" for arg in listed}

    @cached_property
    def defaults(self) -> dict[str, object]:
        """The literal defaults."""
        args = self.node.args
        positional = [arg.arg for arg in (*args.posonlyargs, *args.args)]
        pairs = [*zip(reversed(positional), reversed(args.defaults), strict=False)]
        keywords = zip(args.kwonlyargs, args.kw_defaults, strict=True)
        pairs += [(arg.arg, default) for arg, default in keywords if default is not None]
        return {name: node.value for name, node in pairs if isinstance(node, ast.Constant)}

    @cached_property
    def calls(self) -> list[ast.Call]:
        """All calls in the body."""
        return [node for node in ast.walk(self.node) if isinstance(node, ast.Call)]

    @cached_property
    def returns(self) -> bool:
        """Return whether it returns a value: kernels do not."""
        nodes = ast.walk(self.node)
        return any(isinstance(node, ast.Return) and node.value is not None for node in nodes)

    def pointers(self, functions: Mapping[str, Function], depth: int = 6) -> set[str]:
        """Return the parameters used as pointers, here or in callees."""
        worklist = [_leftmost(call.args[0]) for call in self.calls if call.args and _accesses(call)]
        for call in self.calls if depth else ():
            callee = functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
            if callee is not None and callee is not self:
                inside = callee.pointers(functions, depth - 1)
                arguments = [*zip(callee.annotations, call.args, strict=False)]
                arguments += [(keyword.arg or "", keyword.value) for keyword in call.keywords]
                worklist += [_leftmost(value) for name, value in arguments if name in inside]
        assigned = collections.defaultdict[str, list[str]](list)
        for node in ast.walk(self.node):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        assigned[target.id].append(_leftmost(node.value))
        pointers: dict[str, None] = {}
        while worklist:
            name = worklist.pop()
            if name and name not in pointers:
                pointers[name] = None
                worklist += assigned[name]
        return {name for name in pointers if name in self.annotations}

    @cached_property
    def descriptors(self) -> set[str]:
        """The parameters with calls of their own `load` or `store`."""
        methods = [call.func for call in self.calls if isinstance(call.func, ast.Attribute)]
        return {
            method.value.id
            for method in methods
            if isinstance(method.value, ast.Name) and method.attr in ("load", "store")
        } & self.annotations.keys()


def _accesses(call: ast.Call) -> bool:
    """Return whether a call is `tl.load(…)` or its like."""
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id in ("tl", "language")
        and _MEMORY.match(function.attr) is not None
    )


def _leftmost(node: ast.expr) -> str:
    """Return the first name in a sum of a pointer and offsets, or nothing."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.BinOp):
            node = node.left
        elif isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        elif isinstance(node, ast.IfExp):
            node = node.body
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_method = node.func.attr in ("to", "cast") or not node.args
            node = node.func.value if is_method else node.args[0]
        else:
            return ""
    return node.id


def kernels_of(path: Path) -> dict[str, tuple[Function, set[str]]]:
    """Return the kernels of a file by name, each with its pointer parameters."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = {
        node.name: Function(node)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(_IS_JIT.match(ast.unparse(decorator)) for decorator in node.decorator_list)
    }
    called = {
        call.func.id
        for function in functions.values()
        for call in function.calls
        if isinstance(call.func, ast.Name)
    }
    return {
        name: (function, function.pointers(functions))
        for name, function in functions.items()
        if name not in called and not function.returns
    }


# ---- guesses ----------------------------------------------------------------------------------


@dataclass
class Guess:
    """Argument types and constants for one try of a kernel."""

    signature: dict[str, str] = field(default_factory=dict[str, str])
    constants: dict[str, object] = field(default_factory=dict[str, object])

    def with_pointers(self, kind: str) -> Guess:
        """Return the guess with all pointers of one type."""
        changed = {name: kind for name, old in self.signature.items() if old.startswith("*")}
        return Guess({**self.signature, **changed}, self.constants)

    def with_extents(self, extent: int, *, switches: bool) -> Guess:
        """Return the guess with other numbers, and all switches on or off."""
        changed: dict[str, object] = {
            name: switches if isinstance(old, bool) else extent
            for name, old in self.constants.items()
            if isinstance(old, bool) or old == _EXTENT
        }
        return Guess(self.signature, {**self.constants, **changed})


def guesses(kernel: Function, pointers: set[str]) -> Iterator[Guess]:
    """Yield argument types and constants for a kernel, the likeliest first."""
    first = Guess()
    for name, annotation in kernel.annotations.items():
        if "constexpr" in annotation:
            first.constants[name] = _constant(name, kernel)
        elif name in pointers:
            kind = "i32" if _INDICES.search(name) else "fp32" if _FLOATS.search(name) else "bf16"
            first.signature[name] = f"*{kind}"
        elif name in kernel.descriptors:
            first.signature[name] = f"tensordesc<bf16[{_EXTENT},{_EXTENT}]>"
        else:
            first.signature[name] = "fp32" if _FLOATS.search(name) else "i32"
    yield first
    for kind in _OTHER_POINTERS:
        yield first.with_pointers(kind)
    for extent in _OTHER_EXTENTS:
        for switches in (False, True):
            other = first.with_extents(extent, switches=switches)
            yield from (other, other.with_pointers("*fp32"), other.with_pointers("*i32"))


def _constant(name: str, kernel: Function) -> object:
    if name in kernel.defaults:
        return kernel.defaults[name]
    upper = name.upper()
    if "DTYPE" in upper:
        return "fp32"
    if _SWITCHES.match(upper):
        return False
    if "ACT" in upper and "FACT" not in upper:
        return "silu"
    return 4 if upper.startswith(("NUM_", "N_")) or len(upper) == 1 else _EXTENT


# ---- trying -----------------------------------------------------------------------------------


def try_file(path: Path, *, compiles: bool) -> list[tuple[str, str]]:
    """Return for each kernel of a file its name, and why it was refused or nothing."""
    try:
        kernels = kernels_of(path)
    except (SyntaxError, UnicodeDecodeError):
        return []
    return [(name, _tried(path, name, *of, compiles)) for name, of in kernels.items()]


def _tried(path: Path, name: str, kernel: Function, pointers: set[str], compiles: bool) -> str:  # noqa: FBT001
    refused = ""
    for guess in guesses(kernel, pointers):
        reason = _translated(path, name, guess)
        if not reason:
            return _compiled(path, name, guess) if compiles else ""
        if reason.startswith(_BUG):
            return reason
        refused = refused or reason
    return refused


def _translated(path: Path, name: str, guess: Guess) -> str:
    run = partial(translate, str(path), name, guess.signature, guess.constants, target=TARGET)
    return _reason(run, GUESS_SECONDS)


def _compiled(path: Path, name: str, guess: Guess) -> str:
    types, constants = tuple(guess.signature.items()), tuple(guess.constants.items())
    request = CompileRequest(str(path), name, types, constants, TARGET, map_pointers=True)
    return _reason(partial(compile_ptx, request), COMPILE_SECONDS)


def _reason(run: partial[object], seconds: int) -> str:
    """Return why something was refused, or broke, or took too long; nothing if it is right."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(seconds)
    try:
        run()
    except DiagnosticError as error:
        return error.message
    except TimeoutError:
        return f"takes more than {seconds} s"
    except Exception as error:  # noqa: BLE001 - a bug of ours, which is what is looked for
        return f"{_BUG}: {type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return ""


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--compile", action="store_true", help="go on to PTX")
    parser.add_argument("--reasons", type=int, default=20, help="that are listed")
    parser.add_argument("--without", nargs="*", default=[], help="parts of paths to leave out")
    options = parser.parse_args()
    bugs, began = 0, time.perf_counter()
    for folder in options.folders:
        listed = sorted(folder.rglob("*.py"))
        files = [path for path in listed if not any(part in str(path) for part in options.without)]
        with multiprocessing.Pool(os.cpu_count()) as pool:
            outcomes_by_file = pool.map(
                partial(try_file, compiles=options.compile), files, chunksize=4
            )
        reasons = [reason for outcomes in outcomes_by_file for _, reason in outcomes]
        right = reasons.count("")
        print(f"{folder.name}: {right} of {len(reasons)}")
        counted = collections.Counter(re.sub(r"\d+", "#", text) for text in reasons if text)
        for reason, count in counted.most_common(options.reasons):
            print(f"{count:6}  {reason.splitlines()[0][:140]}")
        bugs += sum(text.startswith(_BUG) for text in reasons)
    print(f"{time.perf_counter() - began:.0f} s, {bugs} bugs", file=sys.stderr)
    return 1 if bugs else 0


if __name__ == "__main__":
    sys.exit(main())
