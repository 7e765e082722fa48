"""Archives to test with, and the smallest files accepted as cubins."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from aotc.compiler import compile_kernel
from aotc.ir.expression import parse
from aotc.package.archive.index import (
    Archive,
    Choice,
    CubinParam,
    Guard,
    Kernel,
    Param,
    TensorMap,
    TypeVariable,
    Variant,
    parse_target,
)
from aotc.package.archive.selection import ANY_GPU, Branch, Selection
from aotc.package.builder.run import BuildOptions, build
from aotc.package.manifest.read import parse as parse_manifest
from tests.support.listeners import Silent
from tests.support.verify_subjects import manifest_text


def fake_cubin(
    target: str = "sm_90a", symbol: str = "k", payload: bytes = b"", shared_bytes: int = 0
) -> bytes:
    """Return an ELF file with the checked parts: sections, flags, the assembler's note."""
    names = b"\0.shstrtab\0.note.nv.tkinfo\0.text." + symbol.encode() + b"\0"
    if shared_bytes:
        names += b".nv.shared." + symbol.encode() + b"\0.nv.shared.reserved.0\0"
    note = f"\0ptxas\0-arch {target} \0".encode()
    bodies = [names, note, payload]
    major, minor, _ = parse_target(target)
    sections = [struct.pack("<IIQQQQIIQQ", *[0] * 10)]
    offset = 64
    for name, body in zip((b".shstrtab", b".note.nv.tkinfo", b".text."), bodies, strict=True):
        kind = 3 if name == b".shstrtab" else 1
        flags = 6 if name == b".text." else 0  # allocated, executable
        name_offset = names.index(name)
        location = (flags, 0, offset, len(body))
        sections.append(struct.pack("<IIQQQQIIQQ", name_offset, kind, *location, 0, 0, 1, 0))
        offset += len(body)
    if shared_bytes:  # as ptxas writes it: without bytes in the file, and from sm_90 on 1 KiB more
        has_reserved = major >= 9
        parts = ((b".nv.shared." + symbol.encode(), shared_bytes + 1024 * has_reserved),)
        parts += ((b".nv.shared.reserved.0", 0),) * has_reserved
        for name, size in parts:
            name_offset = names.index(name + b"\0")
            sections.append(
                struct.pack("<IIQQQQIIQQ", name_offset, 8, 0, 0, offset, size, 0, 0, 1, 0)
            )
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01\x41\x08",
        2,
        190,
        1,
        0,
        0,
        offset,
        0x06000004 | (10 * major + minor) << 8,
        64,
        56,
        0,
        64,
        len(sections),
        1,
    )
    return header + b"".join(bodies) + b"".join(sections)


def _norm(targets: tuple[str, ...]) -> Kernel:
    """Return a kernel with every record of the format but tensor maps."""
    params = (
        Param("x_ptr", "pointer", "T", divisibility=16, access="read"),
        Param("out_ptr", "pointer", "T", divisibility=16, access="write"),
        Param("stride", "scalar", "i32", divisibility=16, is_optional=True),
        Param("n_rows", "scalar", "i32"),
        Param("eps", "scalar", "fp32"),
    )
    guards = (
        Guard(parse("x_ptr % 16 == 0"), "x_ptr is 16-byte aligned", is_promise=True),
        Guard(parse("out_ptr % 16 == 0"), "out_ptr is 16-byte aligned", is_promise=True),
        Guard(parse("stride % 16 == 0"), "stride is a multiple of 16"),
    )
    variants = tuple(
        Variant(
            target=target,
            symbol=f"norm_{dtype}",
            cubin=fake_cubin(
                target, f"norm_{dtype}", bytes([causal, len(guards), config]) * 16, 16
            ),
            num_threads=32 * (4, 8)[config],
            types=(dtype,),
            choices=(causal,),
            guards=guards,
            config=config,
            dynamic_shared_bytes=1024,
            static_shared_bytes=16,
            registers=40,
            spill_bytes=8,
            stack_bytes=16,
            cubin_params=(
                CubinParam(0, 8, index=0),
                CubinParam(8, 8, index=1),
                CubinParam(16, 4, index=2),
                CubinParam(20, 4, index=4),
                CubinParam(24, 8, "scratch"),
            ),
            grid=(parse("cdiv(n_rows, 4)"),),
            scratch_bytes=parse("n_rows * 4 + 128"),
            scratch_align=128,
            waits_pdl=True,
            remarks=("2 bytes a thread: the stride is unknown",),
            ptx=f".target {target}".encode(),
        )
        for target in targets
        for dtype in ("fp16", "bf16")
        for causal in (True, False)
        for guards in ((0, 1), (0, 1, 2))
        for config in (0, 1)
    )
    return Kernel(
        name="norm",
        source_sha256=hashlib.sha256(b"norm").digest(),
        variants=variants,
        params=params,
        type_variables=(TypeVariable("T", ("fp16", "bf16")),),
        choices=(Choice("CAUSAL", (True, False)),),
        guards=guards,
        configs=((("num_warps", 4), ("stages", None)), (("num_warps", 8), ("stages", "x"))),
        constants=(("BLOCK", 4096), ("SCALE", 0.5)),
        selections=(
            *(Selection(target, ANY_GPU, 2, (1, 0)) for target in targets),
            Selection(targets[0], "NVIDIA H200", 0, _tree()),
        ),
    )


def _tree() -> Branch:
    """Return a tree with a repeated feature, and leaves at two depths."""
    rows, products = parse("n_rows"), parse("n_rows * stride // 3")
    return Branch(rows, 64, (1,), Branch(products, -5, Branch(rows, 1 << 40, (0,), (1, 0)), (1,)))


def _copy() -> Kernel:
    """Return a kernel launched through a tensor map, with a grid of the caller's."""
    params = (Param("x", "tensor", "bf16", rank=2), Param("n", "scalar", "i64"))
    tensor_map = TensorMap(
        param=0,
        data_type=9,
        address=parse("x"),
        dims=(parse("x.shape[1]"), parse("x.shape[0]")),
        strides=(parse("x.strides[0] * 2"),),
        box=(64, 128),
        element_strides=(1, 1),
        swizzle=3,
        l2_promotion=2,
    )
    variant = Variant(
        target="sm_90a",
        symbol="copy",
        cubin=fake_cubin("sm_90a", "copy"),
        num_threads=128,
        cluster=(2, 1, 1),
        cubin_params=(
            CubinParam(0, 128, "tensor_map"),
            CubinParam(128, 4, "expression", expression=parse("x.shape[0]")),
            CubinParam(136, 8, index=1),
        ),
        tensor_maps=(tensor_map,),
    )
    return Kernel("copy", bytes(32), (variant,), params)


@pytest.fixture(scope="session")
def samples() -> SimpleNamespace:
    """Archives and a maker of cubins: `archive`, `small`, `kernel`, `fake_cubin`."""
    return SimpleNamespace(
        archive=Archive("llm", "0.1.0", (_norm(("sm_90a", "sm_80")), _copy()), "a compiler"),
        small=Archive("one", "1", (_copy(),)),
        norm=_norm(("sm_90a",)),
        copy=_copy(),
        fake_cubin=fake_cubin,
    )


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Return the archive of one manifest, built with PTX and without."""
    paths: dict[bool, Path] = {}
    types = "stride = i32:16?"
    manifest = parse_manifest(manifest_text("sum_rows", types=types), "kernels.toml")
    for with_ptx in (True, False):
        folder = tmp_path_factory.mktemp("dist")
        options = BuildOptions(folder, 1, with_ptx=with_ptx)
        result = build(manifest, options, Silent(), cache=None, compiler=compile_kernel)
        assert not result.failures
        paths[with_ptx] = folder / "demo.aotc"
    return paths
