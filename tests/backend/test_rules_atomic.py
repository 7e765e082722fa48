"""Atomics lowered to LLVM IR and run in lockstep, and assembled for every target."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pytest

from aotc.backend import assemble, disassemble, emit_ptx
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import arith, gpu
from aotc.ir.dialects.tile import AtomicKind, supports_atomic
from aotc.ir.types import BF16, FP16, FP32, FP64, I1, I32, SCALARS, PointerType, ScalarType
from aotc.target import TARGETS, Target
from aotc.verify.interpreter.atomics import combine_rule
from tests.backend.programs import NUMPY, SM_80, SM_90, Program, row_layout

CELLS_AT = 256  # where the lockstep machine puts the first array
KINDS: tuple[AtomicKind, ...] = get_args(AtomicKind)
SUPPORTED = [
    pytest.param(kind, scalar, id=f"{kind}-{scalar}")
    for scalar in SCALARS.values()
    for kind in KINDS
    if supports_atomic(kind, scalar)
]


@dataclass(frozen=True)
class Update:
    """An atomic on a tile of cells: width, layout, and whether its result is stored."""

    kind: AtomicKind
    element: ScalarType
    num_elems: int = 256
    num_warps: int = 2
    vector: int = 1
    is_read: bool = True

    def program(self) -> Program:
        layout = row_layout(self.num_elems, self.num_warps)
        program = Program(self.num_warps)
        cells = program.param(PointerType(self.element), 16)
        program.inputs.append(cells)
        index = program.load(I32, layout)
        value, mask = program.load(self.element, layout), program.load(I1, layout)
        pointers = program.add(arith.AddPtr(program.splat(cells, layout), index)).out
        old = program.add(
            gpu.AtomicRmw(pointers, value, self.kind, mask, scope="gpu", vector=self.vector)
        ).out
        if self.is_read:
            program.store(old)
        return program

    def run(self, cells: Any, *arrays: Any, target: Target = SM_90) -> tuple[Any, list[Any]]:
        """Return the cells afterwards, and the stored part of the result."""
        program = self.program()
        outs = program.run(cells, *arrays, target=target)
        return program.machine.read(CELLS_AT, cells.dtype, cells.shape), outs


def random(rng: np.random.Generator, scalar: ScalarType, size: int) -> Any:
    dtype = np.dtype(NUMPY[scalar.name])
    if scalar.is_float:
        return (8 * rng.standard_normal(size)).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, size, dtype, endpoint=True)


@pytest.mark.parametrize("target", [SM_80, SM_90], ids=str)
@pytest.mark.parametrize(("kind", "scalar"), SUPPORTED)
def test_every_kind_and_type(kind: AtomicKind, scalar: ScalarType, target: Target) -> None:
    rng = np.random.default_rng(5)
    update = Update(kind, scalar)
    cells, value = random(rng, scalar, 300), random(rng, scalar, update.num_elems)
    index = rng.permutation(300)[: update.num_elems].astype(np.int32)
    mask = rng.random(update.num_elems) < 0.7
    expected = cells.copy()
    expected[index[mask]] = combine_rule(kind, scalar)(cells[index[mask]], value[mask])
    after, (old,) = update.run(cells, index, value, mask, target=target)
    assert after.tobytes() == expected.tobytes()
    assert old[mask].tobytes() == cells[index[mask]].tobytes()


@pytest.mark.parametrize("scalar", [FP32, FP16, BF16, FP64], ids=str)
@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("target", [SM_80, SM_90], ids=str)
def test_vectors(scalar: ScalarType, target: Target, *, is_read: bool) -> None:
    rng = np.random.default_rng(6)
    widest = {FP32: 4, FP16: 8, BF16: 8, FP64: 1}[scalar] if target == SM_90 else 1
    if scalar.bits == 16 and target == SM_80:
        widest = 2
    update = Update("add", scalar, vector=widest, num_elems=1024, is_read=is_read)
    cells, value = random(rng, scalar, 1024), random(rng, scalar, 1024)
    mask = np.repeat(rng.random(1024 // 8) < 0.5, 8)
    expected = cells.copy()
    expected[mask] = combine_rule("add", scalar)(cells[mask], value[mask])
    after, outs = update.run(cells, np.arange(1024, dtype=np.int32), value, mask, target=target)
    assert after.tobytes() == expected.tobytes()
    if is_read:
        assert outs[0][mask].tobytes() == cells[mask].tobytes()


@pytest.mark.parametrize("num_elems", [1, 2, 16, 64, 4096])
def test_copies_of_an_element_update_it_once(num_elems: int) -> None:
    update = Update("add", I32, num_elems=num_elems, num_warps=4)
    cells = np.arange(num_elems, dtype=np.int32)
    increments, mask = np.ones(num_elems, np.int32), np.ones(num_elems, np.bool_)
    after, (old,) = update.run(cells, cells, increments, mask)
    assert (after == cells + 1).all()
    assert (old == cells).all()


def test_a_shared_address_takes_every_update() -> None:
    index = np.random.default_rng(0).integers(0, 3, 256).astype(np.int32)
    increments, mask = np.ones(256, np.int32), np.ones(256, np.bool_)
    update = Update("add", I32, is_read=False)
    after, _ = update.run(np.zeros(3, np.int32), index, increments, mask)
    assert after.tolist() == np.bincount(index, minlength=3).tolist()


@pytest.mark.parametrize("start", [0, 1])
def test_half_of_a_word_leaves_the_other_alone(start: int) -> None:
    """One bf16 where the target adds pairs only: its neighbour keeps even a NaN's bits."""
    update = Update("add", BF16, num_elems=32, num_warps=1, is_read=False)
    bits = np.full(64, 0x7FA5, np.uint16)
    cells = bits.view(NUMPY["bf16"])
    cells[start::2] = 1.5
    index = np.arange(start, 64, 2, dtype=np.int32)
    value, mask = np.full(32, 0.25, NUMPY["bf16"]), np.ones(32, np.bool_)
    after, _ = update.run(cells, index, value, mask, target=SM_80)
    assert (after[start::2] == 1.75).all()
    assert (after.view(np.uint16)[1 - start :: 2] == 0x7FA5).all()


@pytest.mark.parametrize("name", ["i32", "u64", "fp16", "bf16", "fp32", "fp64"])
def test_compare_and_swap(name: str) -> None:
    scalar, layout = SCALARS[name], row_layout(64, 2)
    program = Program(2)
    cells = program.param(PointerType(scalar), 16)
    program.inputs.append(cells)
    compare, value = program.load(scalar, layout), program.load(scalar, layout)
    pointers = program.pointers(cells, layout)
    program.store(program.add(gpu.AtomicCas(pointers, compare, value)).out)
    rng = np.random.default_rng(8)
    before, new = random(rng, scalar, 64), random(rng, scalar, 64)
    compared = np.where(rng.random(64) < 0.5, before, new).astype(before.dtype)
    (old,) = program.run(before, compared, new)
    after = program.machine.read(CELLS_AT, before.dtype, before.shape)
    assert old.tobytes() == before.tobytes()
    assert (after == np.where(compared == before, new, before)).all()


# ---- text -------------------------------------------------------------------------------------


def _ptx(update: Update, target: Target) -> str:
    return emit_ptx(update.program().llvm_ir(target), target)


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_every_target_assembles_every_instruction(target: Target) -> None:
    """All atomics in one kernel: each as `atom` and as `red`, vectors, and fences."""
    program = Program(1)
    for scalar in SCALARS.values():
        kinds: list[AtomicKind] = [kind for kind in KINDS if supports_atomic(kind, scalar)]
        if not kinds:
            continue
        vector = _widest(scalar, target)
        layout = row_layout(256)
        value = program.load(scalar, layout)
        pointers = program.pointers(program.param(PointerType(scalar), 16), layout)
        for kind in kinds:
            width = vector if kind == "add" else 1
            program.add(gpu.AtomicRmw(pointers, value, kind, vector=width))
            program.store(program.add(gpu.AtomicRmw(pointers, value, kind, None, "sys", width)).out)
        program.store(program.add(gpu.AtomicCas(pointers, value, value, "cta")).out)
    for scope in ("cta", "gpu", "sys"):
        program.add(gpu.Fence(scope))
    assembly = assemble(emit_ptx(program.llvm_ir(target), target), target)
    assert not assembly.warnings


def _widest(scalar: ScalarType, target: Target) -> int:
    if scalar not in (FP32, FP16, BF16):
        return 1
    if target.arch >= 90:
        return 16 // scalar.size_bytes
    return 1 if scalar == FP32 else 2


def test_an_unused_result_is_a_reduction() -> None:
    text = _ptx(Update("add", FP32, num_elems=512, vector=4, is_read=False), SM_90)
    assert re.findall(r"\b(?:red|atom)\S+", text) == ["red.relaxed.gpu.global.add.v4.f32"] * 2
    text = _ptx(Update("add", FP32, num_elems=512, vector=4), SM_90)
    assert re.findall(r"\b(?:red|atom)\S+", text) == ["atom.relaxed.gpu.global.add.v4.f32"] * 2


def test_hardware_has_the_vector() -> None:
    """Not taken apart by ptxas: one instruction a thread for 16 bytes."""
    update = Update("add", BF16, num_elems=512, vector=8, is_read=False)
    sass = disassemble(assemble(_ptx(update, SM_90), SM_90).cubin)
    assert len(re.findall(r"\bREDG?\.\S*", sass)) == 1


def test_bf16_without_an_instruction_loops() -> None:
    text = _ptx(Update("add", BF16, num_elems=128, vector=2, is_read=False), SM_80)
    assert len(re.findall(r"fma\.rn\.bf16x2", text)) == 1
    assert len(re.findall(r"atom\.relaxed\.gpu\.global\.cas\.b32", text)) == 1


def test_what_no_instruction_does_is_refused() -> None:
    with pytest.raises(IRError, match="adds 4 bf16 at once"):
        Update("add", BF16, vector=4).program().llvm_ir(SM_80)
