"""Run the backend's LLVM IR, all threads of one CTA in lockstep.

Every value is a NumPy array with one entry per thread. Shuffles, predicates and barriers mean the
same as on the GPU as long as branches are uniform; the backend writes no others. Reading or
writing outside the given buffers is an error; so tests know that masked lanes touch nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tests.backend.simt_arithmetic import (
    ARITHMETIC,
    COMPARE,
    FLOAT_CALLS,
    INT_CALLS,
    LIBDEVICE,
    convert,
    dtype_of,
    elementwise,
    fused,
    permuted,
    round_to,
    signed,
    to_fp8,
    update,
)
from tests.backend.simt_async import AsyncCopies
from tests.backend.simt_mma import matrix_places, mma

WARP = 32
_SHARED_BASE = 1024


def split_arguments(text: str) -> list[str]:
    """Split at commas outside all brackets."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += char in "([{<"
        depth -= char in ")]}>"
        if char == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


class Machine:
    """Hold global memory, and run kernels in it."""

    def __init__(self) -> None:
        self.memory = bytearray(256)  # address 0 is never valid
        self.valid: list[tuple[int, int]] = []
        self.loads = 0
        self.stores = 0
        self.copies = 0

    def alloc(self, array: Any) -> int:
        """Copy an array into memory; return its address, aligned to 256."""
        self.memory += b"\xee" * (-len(self.memory) % 256)
        address = len(self.memory)
        self.memory += np.ascontiguousarray(array).tobytes()
        self.valid.append((address, len(self.memory)))
        self.memory += b"\xee" * 64
        return address

    def read(self, address: int, dtype: Any, shape: tuple[int, ...]) -> Any:
        """Return the number stored at an address."""
        count = math.prod(shape)
        return np.frombuffer(self.memory, dtype, count, address).reshape(shape).copy()

    def run(self, llvm_ir: str, args: list[Any], grid: tuple[int, ...] = (1,)) -> None:
        """Launch the kernel of a module with these arguments."""
        grid = (*grid, 1, 1)[:3]
        for z in range(grid[2]):
            for y in range(grid[1]):
                for x in range(grid[0]):
                    _Cta(self, llvm_ir, args, (x, y, z), grid).run()


class _Cta:
    def __init__(
        self,
        machine: Machine,
        text: str,
        args: list[Any],
        cta: tuple[int, ...],
        grid: tuple[int, ...],
    ) -> None:
        self.machine = machine
        match = re.search(
            r"^define ptx_kernel void @\w+\((.*)\) nounwind (.*) \{$", text, re.MULTILINE
        )
        assert match is not None
        count = re.search(r'"nvvm.reqntid"="(\d+)"', match[2])
        assert count is not None
        self.threads = int(count[1])
        self.env: dict[str, Any] = {}
        self.shared = bytearray(b"\xee" * (227 * 1024))
        self.copies = AsyncCopies(self.space)
        self.position = {"ctaid": cta, "nctaid": grid}
        for param, arg in zip(split_arguments(match[1]), args, strict=True):
            kind, name = param.split(" noundef")[0], param.rsplit(" ", 1)[1]
            self.env[name] = np.full(self.threads, np.array(arg).astype(dtype_of(kind)))
        self.blocks: dict[str, list[str]] = {}
        current: list[str] = []
        for line in text[match.end() :].split("\n}\n", maxsplit=1)[0].splitlines():
            if re.fullmatch(r"\w+:", line):
                current = self.blocks.setdefault(line[:-1], [])
            elif line.strip():
                current.append(line.strip())

    def run(self) -> None:
        label, before = "entry", ""
        while True:
            lines = self.blocks[label]
            phis = [line for line in lines if " = phi " in line]
            incoming = [self.phi(line, before) for line in phis]
            for line, value in zip(phis, incoming, strict=True):
                self.env[line.split(" = ")[0]] = value
            for line in lines[len(phis) : -1]:
                self.step(re.sub(r", !dbg !\d+$", "", line))
            last = re.sub(r", !(dbg|llvm.loop) !\d+", "", lines[-1])
            if last == "ret void":
                return
            assert last != "unreachable", "an assertion of the kernel failed"
            targets = re.findall(r"label %(\w+)", last)
            if len(targets) == 2:
                condition = self.value("i1", last.split(",")[0].split()[2])
                assert condition.all() or not condition.any(), f"not uniform: {last}"
                targets = targets[:1] if condition.all() else targets[1:]
            label, before = targets[0], label

    def phi(self, line: str, before: str) -> Any:
        kind = re.search(r" = phi (.+?) \[", line)
        assert kind is not None
        for value, label in re.findall(r"\[ (\S+), %(\w+) \]", line):
            if label == before:
                return self.value(kind[1], value)
        raise AssertionError(f"{line} has no value from {before}")

    # ---- operands ------------------------------------------------------------

    def value(self, kind: str, text: str) -> Any:
        vector = re.fullmatch(r"<(\d+) x (.+)>", kind)
        if text == "poison":
            return [None] * (int(vector[1]) if vector else 1)
        if text == "zeroinitializer" and vector:
            return [np.zeros(self.threads, dtype_of(vector[2]))] * int(vector[1])
        if text.startswith("%"):
            return self.env[text]
        if vector:
            return [self.typed(part) for part in split_arguments(text[1:-1])]
        dtype = dtype_of(kind)
        if text.startswith("ptrtoint (ptr addrspace(3) @shared"):
            return np.full(self.threads, _SHARED_BASE, dtype)
        if text in ("true", "false"):
            return np.full(self.threads, text == "true")
        if text.startswith(("0xH", "0xR")):
            bits = np.uint16(int(text[3:], 16))
            return np.full(self.threads, bits).view(dtype)
        if text.startswith("0x"):
            return np.full(self.threads, np.uint64(int(text, 16))).view(np.float64).astype(dtype)
        number = int(text) % (1 << (8 * dtype.itemsize)) if dtype.kind != "b" else int(text)
        return np.full(self.threads, number).astype(dtype)

    def typed(self, text: str) -> Any:
        text = text.strip()
        for prefix in ("range(i32 0, ",):
            assert not text.startswith(prefix)
        match = re.fullmatch(r"(ptr(?: addrspace\(\d\))?|<\d+ x \w+>|\w+) (.+)", text)
        assert match is not None, text
        return self.value(match[1], match[2])

    # ---- instructions --------------------------------------------------------

    def step(self, line: str) -> None:
        name, rest = "", line
        if line.startswith("%"):
            name, rest = line.split(" = ", 1)
        with np.errstate(all="ignore"):
            out = self.execute(rest)
        if name:
            self.env[name] = out

    def execute(self, text: str) -> Any:
        opcode, _, rest = text.partition(" ")
        if opcode == "call":
            return self.call(rest)
        rest = re.sub(r"^(disjoint|contract|nneg) ", "", rest)
        handler = getattr(self, f"do_{opcode}", None)
        if handler is not None:
            return handler(rest)
        match = re.fullmatch(r"(<\d+ x \w+>|\w+) (.+)", rest)
        assert match is not None, rest
        kind = match[1]
        args = [self.value(kind, part) for part in split_arguments(match[2])]
        return elementwise(kind, ARITHMETIC[opcode], args)

    def do_icmp(self, rest: str) -> Any:
        predicate, rest = rest.split(" ", 1)
        kind, operands = re.fullmatch(r"(ptr addrspace\(1\)|\w+) (.+)", rest).groups()  # type: ignore[union-attr]
        a, b = (self.value(kind, part) for part in split_arguments(operands))
        if predicate[0] == "s":
            a, b = signed(a), signed(b)
        return COMPARE[predicate[-2:]](a, b)

    def do_fcmp(self, rest: str) -> Any:
        predicate, kind, operands = rest.split(" ", 2)
        a, b = (self.value(kind, part) for part in split_arguments(operands))
        unordered = np.isnan(a.astype(np.float64)) | np.isnan(b.astype(np.float64))
        if predicate == "uno":
            return unordered
        return COMPARE[predicate[-2:]](a, b) & ~unordered if predicate[0] == "o" else (a != b)

    def do_select(self, rest: str) -> Any:
        condition, a, b = (self.typed(part) for part in split_arguments(rest))
        return np.where(condition, a, b)

    def do_cast(self, rest: str, opcode: str) -> Any:
        source, target = rest.rsplit(" to ", 1)
        return convert(opcode, self.typed(source), target)

    do_sext = lambda self, rest: self.do_cast(rest, "sext")  # noqa: E731
    do_zext = lambda self, rest: self.do_cast(rest, "zext")  # noqa: E731
    do_trunc = lambda self, rest: self.do_cast(rest, "trunc")  # noqa: E731
    do_fpext = lambda self, rest: self.do_cast(rest, "float")  # noqa: E731
    do_fptrunc = lambda self, rest: self.do_cast(rest, "float")  # noqa: E731
    do_sitofp = lambda self, rest: self.do_cast(rest, "sext")  # noqa: E731
    do_uitofp = lambda self, rest: self.do_cast(rest, "zext")  # noqa: E731
    do_fptosi = lambda self, rest: self.do_cast(rest, "fptosi")  # noqa: E731
    do_fptoui = lambda self, rest: self.do_cast(rest, "fptoui")  # noqa: E731
    do_bitcast = lambda self, rest: self.do_cast(rest, "bitcast")  # noqa: E731
    do_ptrtoint = lambda self, rest: self.do_cast(rest, "zext")  # noqa: E731
    do_inttoptr = lambda self, rest: self.do_cast(rest, "zext")  # noqa: E731

    def do_getelementptr(self, rest: str) -> Any:
        element, pointer, index = split_arguments(rest)
        size = int(re.match(r"\[(\d+) x i8\]", element)[1]) if element != "i8" else 1  # type: ignore[index]
        return self.typed(pointer) + self.typed(index) * np.uint64(size)

    def do_extractvalue(self, rest: str) -> Any:
        match = re.fullmatch(r"\{.*\} (%\w+), (\d+)", rest)
        assert match is not None
        return self.env[match[1]][int(match[2])]

    def do_extractelement(self, rest: str) -> Any:
        vector, index = split_arguments(rest)
        return self.typed(vector)[int(index.split()[1])]

    def do_insertelement(self, rest: str) -> Any:
        vector, element, index = split_arguments(rest)
        out = list(self.typed(vector))
        out[int(index.split()[1])] = self.typed(element)
        return out

    # ---- calls ---------------------------------------------------------------

    def call(self, text: str) -> Any:
        text = re.sub(r"^range\([^)]*\) ", "", text)
        if " asm " in text:
            return self.asm(text)
        match = re.fullmatch(r"(<\d+ x \w+>|\{.+?\}|\w+) @([\w.]+)\((.*)\)", text)
        assert match is not None, text
        kind, name, arguments = match.groups()
        args = [self.typed(part) for part in split_arguments(arguments)]
        return self.named_call(kind, name, args)

    def named_call(self, kind: str, name: str, args: list[Any]) -> Any:
        if name.endswith("tid.x") and "cta" not in name:
            return np.arange(self.threads, dtype=np.uint32)
        special = re.fullmatch(r"llvm.nvvm.read.ptx.sreg.(ctaid|nctaid).([xyz])", name)
        if special:
            return np.full(
                self.threads, self.position[special[1]]["xyz".index(special[2])], np.uint32
            )
        if name in ("llvm.nvvm.barrier.cta.sync.aligned.all", "llvm.assume"):
            return None
        if ".mma." in name:
            return mma(name, args)
        if ".shfl.sync." in name:
            return self.shuffle(name.split(".")[4], args[1], args[2])
        if ".vote.all.sync" in name:
            return np.repeat(args[1].reshape(-1, WARP).all(1), WARP)
        if ".redux.sync." in name:
            return self.redux(name.rsplit(".", 1)[1], args[0])
        if ".mulhi." in name:
            wide = signed if not name.rsplit(".", 1)[1].startswith("u") else (lambda a: a)
            a, b = (wide(arg).astype(object) for arg in args[:2])
            return (
                np.array((a * b) >> (8 * args[0].itemsize))
                .astype(object)
                .__and__((1 << (8 * args[0].itemsize)) - 1)
                .astype(args[0].dtype)
            )
        if name.startswith("llvm.nvvm.ff2"):
            dtype = dtype_of(kind.rsplit(maxsplit=1)[-1].rstrip(">"))
            rounding = name.rsplit(".", 1)[1]
            return [round_to(arg, dtype, rounding) for arg in (args[1], args[0])]
        if name == "llvm.nvvm.f2bf16.rz":
            return round_to(args[0], dtype_of("bfloat"), "rz")
        if name == "llvm.nvvm.d2f.rz":
            return round_to(args[0], np.dtype(np.float32), "rz")
        if name.startswith("llvm.nvvm.ff.to."):
            high, low = (to_fp8(arg, name).astype(np.uint16) for arg in args)
            return low | high << 8
        if "x2.to.f16x2" in name:
            dtype = ml_dtypes.float8_e4m3fn if "e4m3" in name else ml_dtypes.float8_e5m2
            halves = (args[0] & 255, args[0] >> 8)
            return [half.astype(np.uint8).view(dtype).astype(np.float16) for half in halves]
        if name.startswith("__nv_"):
            stem = name[5:].removesuffix("f") if kind == "float" else name[5:]
            wide = [arg.astype(np.float64) for arg in args]
            return LIBDEVICE[stem](*wide).astype(dtype_of(kind))
        if name.startswith("llvm.fma."):
            return elementwise(kind, fused, args)
        if name == "llvm.nvvm.prmt":
            return permuted(*args)
        stem = name.rsplit(".", 1)[0] if name != "llvm.nvvm.div.full" else name
        if stem in FLOAT_CALLS:
            return FLOAT_CALLS[stem](*args)
        return INT_CALLS[stem](*args[:2] if stem != "llvm.abs" else args[:1])

    def shuffle(self, mode: str, word: Any, lane: Any) -> Any:
        threads = np.arange(self.threads)
        thread_ids = threads % WARP
        other = {"bfly": thread_ids ^ lane, "idx": lane % WARP}[mode].astype(np.int64)
        assert ((other >= 0) & (other < WARP)).all()
        return word[threads - thread_ids + other]

    def redux(self, kind: str, word: Any) -> Any:
        rows = word.reshape(-1, WARP)
        if kind in ("min", "max"):
            rows = signed(rows)
        combine = {
            "add": lambda r: r.sum(1), "min": lambda r: r.min(1), "umin": lambda r: r.min(1),
            "max": lambda r: r.max(1), "umax": lambda r: r.max(1),
            "and": lambda r: np.bitwise_and.reduce(r, 1),
            "or": lambda r: np.bitwise_or.reduce(r, 1),
            "xor": lambda r: np.bitwise_xor.reduce(r, 1),
        }[kind]  # fmt: skip
        return np.repeat(combine(rows).astype(rows.dtype).view(np.uint32), WARP)

    # ---- memory --------------------------------------------------------------

    def asm(self, text: str) -> Any:
        text = text.removesuffix(" convergent")
        match = re.fullmatch(r'(.+?) asm (?:sideeffect )?"(.*)", "(.*)"\((.*)\)', text)
        assert match is not None, text
        code, constraints = match[2], match[3].split(",")
        args = [self.typed(part) for part in split_arguments(match[4])]
        if code.startswith("createpolicy"):
            return np.zeros(self.threads, np.uint64)
        if code.startswith("cvt.rz.f16.f32"):
            return round_to(args[0], np.dtype(np.float16), "rz").view(np.uint16)
        if code.startswith("fence."):
            return None
        if code == "add.s64 $0, $1, $2;":
            return args[0].astype(np.uint64) + args[1].astype(np.uint64)
        if "cp.async." in code:
            self.machine.copies += self.copies.run(code, args, self.threads)
            return None
        outputs = sum(constraint.startswith("=") for constraint in constraints)
        if code.startswith(("ldmatrix", "stmatrix")):
            return self.move_matrices(code, args)
        operand = lambda number: args[int(number) - outputs]  # noqa: E731
        if "%nctaid.x; shr.u32" in code:
            return np.zeros(self.threads, np.uint32)
        if code == "mov.u32 $0, %smid;":
            return np.zeros(self.threads, np.uint32)
        if code == "mov.u32 $0, %tid.x;":
            return np.arange(self.threads, dtype=np.uint32)
        if ".cas.b32 seen" in code:
            return self.add_bf16x2(code, args)
        if ".cas.b16 seen" in code:
            return self.pick_half(code, args)
        if re.search(r"(atom|red)\.relaxed", code):
            is_tied = constraints[outputs].isdigit()
            return self.atomic(code, operand, args[:outputs] if is_tied else [])
        access = re.search(
            r"(?:@\$(\d+) )?(ld|st)\S*?\.(global|shared)\S*?(?:\.v(\d))?\.b(\d+) ", code
        )
        address = re.search(r"\[\$(\d+)\+(-?\d+)\]", code)
        assert access is not None
        assert address is not None
        active = operand(access[1]) if access[1] else np.ones(self.threads, bool)
        count, size = int(access[4] or 1), int(access[5]) // 8
        where = operand(address[1]).astype(np.int64) + int(address[2])
        if access[2] == "st":
            words = [operand(n) for n in re.findall(r"\$(\d+)", code.split("{")[1].split("}")[0])]
            return self.store(access[3], where, active, words, size)
        tied = args[:outputs] if access[1] else None
        loaded = self.load(access[3], where, active, count, size, tied=tied)
        return loaded[0] if count == 1 else loaded

    def atomic(self, code: str, operand: Callable[[str], Any], tied: list[Any]) -> Any:
        """Update memory thread by thread; return each old word, None for a `red`."""
        match = re.fullmatch(
            r"(?:@\$(\d+) )?(atom|red)\.relaxed\.(?:cta|gpu|sys)\.(global|shared)\.([\w.]+) "
            r"(?:(\{.*?\}|\$\d+|_), )?\[\$(\d+)\+(-?\d+)\], (.*);",
            code,
        )
        assert match is not None, code
        predicate, opcode, space, operation, target, base, offset, sources = match.groups()
        assert (opcode == "red") == (target is None)
        parts = [part for part in operation.split(".") if not re.fullmatch(r"v\d|noftz", part)]
        words = [operand(number) for number in re.findall(r"\$(\d+)", sources)]
        count = int((re.search(r"\.v(\d)", operation) or (0, 1))[1])
        active = operand(predicate) if predicate else np.ones(self.threads, bool)
        where = operand(base).astype(np.int64) + int(offset)
        size = words[0].itemsize
        out = [word.copy() for word in tied or words[:count]]
        for thread in np.flatnonzero(active):
            memory, start = self.space(space, int(where[thread]), count * size)
            self.machine.stores += 1
            for index in range(count):
                span = slice(start + index * size, start + (index + 1) * size)
                old = np.frombuffer(bytes(memory[span]), words[0].dtype)
                operands = [words_of_op[thread : thread + 1] for words_of_op in words[index::count]]
                memory[span] = update(parts[0], parts[1], old, operands).tobytes()
                out[index][thread] = old[0]
        if target in (None, "_"):
            return None
        return out[0] if count == 1 else out

    def add_bf16x2(self, code: str, args: list[Any]) -> Any:
        """Emulate the compare-and-swap loop, one thread after the other."""
        offset = re.search(r"\[\$1\+(-?\d+)\]", code)
        assert offset is not None
        base, addend, mask, active = args
        out = np.zeros(self.threads, np.uint32)
        for thread in np.flatnonzero(active):
            memory, start = self.space("global", int(base[thread]) + int(offset[1]), 4)
            old = np.frombuffer(bytes(memory[start : start + 4]), np.uint32)
            pairs = [word.view(ml_dtypes.bfloat16) for word in (old, addend[thread : thread + 1])]
            total, mask_bits = (pairs[0] + pairs[1]).view(np.uint32), mask[thread]
            memory[start : start + 4] = ((total & mask_bits) | (old & ~mask_bits)).tobytes()
            out[thread] = old[0]
        return out

    def pick_half(self, code: str, args: list[Any]) -> Any:
        """Run the compare-and-swap loop of minima and maxima, one thread after the other."""
        offset = re.search(r"\[\$1\+(-?\d+)\]", code)
        assert offset is not None
        base, value, active = args
        pick = max if "max." in code else min
        out = np.zeros(self.threads, np.uint16)
        for thread in np.flatnonzero(active):
            memory, start = self.space("global", int(base[thread]) + int(offset[1]), 2)
            old = np.frombuffer(bytes(memory[start : start + 2]), np.uint16)[0]
            memory[start : start + 2] = pick(old, value[thread], key=_magnitude).tobytes()
            out[thread] = old
        return out

    def move_matrices(self, code: str, args: list[Any]) -> Any:
        """Load or store 8x8 matrices; a lane's address points to a row of 16 bytes."""
        count, offset = re.search(r"\.x(\d)", code), re.search(r"\+(-?\d+)\]", code)
        assert count is not None
        assert offset is not None
        rows = args[0].astype(np.int64) + int(offset[1])
        words = [np.zeros(self.threads, np.uint32) for _ in range(int(count[1]))]
        for thread in range(self.threads):
            for matrix in range(len(words)):
                halves = matrix_places(thread % WARP, matrix, trans=".trans" in code)
                for half, (lane, column) in enumerate(halves):
                    memory, start = self.space(
                        "shared", int(rows[thread // WARP * WARP + lane]), 16
                    )
                    address = start + 2 * column
                    if code.startswith("st"):
                        bits = int(args[1 + matrix][thread]) >> 16 * half & 0xFFFF
                        memory[address : address + 2] = bits.to_bytes(2, "little")
                    else:
                        bits = int.from_bytes(memory[address : address + 2], "little")
                        words[matrix][thread] |= bits << 16 * half
        self.machine.loads += self.threads * code.startswith("ld")
        if code.startswith("st"):
            self.machine.stores += self.threads
            return None
        return words[0] if len(words) == 1 else words

    def space(self, space: str, start: int, size: int) -> tuple[bytearray, int]:
        assert start % size == 0, f"address {start} is not aligned to {size}"
        if space == "shared":
            assert 0 <= start - _SHARED_BASE <= len(self.shared) - size
            return self.shared, start - _SHARED_BASE
        assert any(a <= start and start + size <= b for a, b in self.machine.valid), hex(start)
        return self.machine.memory, start

    def load(
        self, space: str, where: Any, active: Any, count: int, size: int, *, tied: Any
    ) -> list[Any]:
        dtype = np.dtype(f"uint{max(16, 8 * size)}")
        out = [
            np.zeros(self.threads, dtype) if tied is None else tied[i].copy() for i in range(count)
        ]
        for thread in np.flatnonzero(active):
            memory, start = self.space(space, int(where[thread]), count * size)
            self.machine.loads += 1
            for index in range(count):
                address = start + index * size
                out[index][thread] = int.from_bytes(memory[address : address + size], "little")
        return out

    def store(self, space: str, where: Any, active: Any, words: list[Any], size: int) -> None:
        for thread in np.flatnonzero(active):
            memory, start = self.space(space, int(where[thread]), len(words) * size)
            self.machine.stores += 1
            for index, word in enumerate(words):
                address = start + index * size
                bits = int(word[thread]) & ((1 << (8 * size)) - 1)
                memory[address : address + size] = bits.to_bytes(size, "little")


def _magnitude(half: Any) -> int:
    """Return an integer in the order of the floats of 16 bits."""
    bits = int(half)
    return -(bits & 0x7FFF) - 1 if bits >> 15 else bits
