"""Write the archives that the C tests open: `python golden.py DIRECTORY`.

The cubins are ELF files with what the runtime and the fake driver look at, and no code: functions,
their parameters as `.nv.info` lists them, static shared memory. Beside each archive lies
`NAME.aotc.raw`, the decoded frames, which stand in for a decompressor, so the C tests need no zstd:
for each frame two little-endian u64 sizes (stored, decoded) and the two contents. The indices of
kernels are in frames that are not compressed, so the C tests can read and change them where they are.
All archives but `grouped` have a frame for each blob.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import zstandard

from aotc.ir.expression import parse
from aotc.package.archive.archive_root import Root, read_header
from aotc.package.archive.check_index import check_archive
from aotc.package.archive.decoder import Decoder
from aotc.package.archive.encoder import _lay_out, encode_records
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
    canonical,
    parse_target,
)
from aotc.package.archive.layout import (
    DIRECTORY_ENTRY,
    DIRECTORY_HEAD,
    MINOR,
    RECORDS,
    ROOT_SECTIONS,
)
from aotc.package.archive.selection import ANY_GPU, Branch, Selection

_NOBITS = 8
_SOURCE = bytes(range(32))
_MANY = 160  # kernels: their root is too large to be verified whole
_MORE_SECTIONS = 80  # of a newer minor version: a directory that is longer than what is read first
_SAME_SLOT = ("pfjbgukvzj", "qtndaxrdmj")  # FNV-1a gives both one tag and, of 512 slots, one place


def _param_info(sizes: list[tuple[int, int]]) -> bytes:
    """Return `.nv.info` attributes for parameters of (offset, size)."""
    return b"".join(
        struct.pack("<BBHIHHI", 0x04, 0x17, 12, 0, ordinal, offset, size << 18 | 0x1F000)
        for ordinal, (offset, size) in enumerate(sizes)
    )


def cubin(
    target: str, functions: dict[str, list[tuple[int, int]]], payload: bytes, shared: int = 0
) -> bytes:
    """Return an ELF file with functions of these parameters; `payload` makes it distinct."""
    named: list[tuple[str, int, bytes, int]] = []
    for symbol, sizes in functions.items():
        named.append((f".text.{symbol}", 1, payload, len(payload)))
        named.append((f".nv.info.{symbol}", 1, _param_info(sizes), 16 * len(sizes)))
        if shared:
            named.append((f".nv.shared.{symbol}", _NOBITS, b"", shared))
    names = b"\0.shstrtab\0" + b"".join(name.encode() + b"\0" for name, *_ in named)
    section = struct.Struct("<IIQQQQIIQQ")
    table = [section.pack(*[0] * 10), section.pack(1, 3, 0, 0, 64, len(names), 0, 0, 1, 0)]
    body = names
    for name, kind, content, size in named:
        at = names.index(b"\0" + name.encode() + b"\0") + 1
        flags = 6 if name.startswith(".text.") else 0  # allocated, executable
        table.append(section.pack(at, kind, flags, 0, 64 + len(body), size, 0, 0, 1, 0))
        body += content
    body += bytes(-len(body) % 8)
    major, minor, _ = parse_target(target)
    flags = 0x06000004 | (10 * major + minor) << 8
    ident = b"\x7fELF\x02\x01\x01\x41\x08"
    numbers = (2, 190, 1, 0, 0, 64 + len(body), flags, 64, 56, 0, 64, len(table), 1)
    return struct.pack("<16sHHIQQQIHHHHHH", ident, *numbers) + body + b"".join(table)


def _add(targets: tuple[str, ...]) -> Kernel:
    """Return a kernel with a type variable, a promise, an optional guard, and two configs."""
    params = (
        Param("x_ptr", "pointer", "T", divisibility=16, access="read"),
        Param("y_ptr", "pointer", "T", divisibility=16, access="read"),
        Param("out_ptr", "pointer", "T", divisibility=16, access="write"),
        Param("n", "scalar", "i32", divisibility=16, is_optional=True),
    )
    guards = (
        Guard(parse("x_ptr % 16 == 0"), "x_ptr is a multiple of 16", is_promise=True),
        Guard(parse("n % 16 == 0"), "n is a multiple of 16"),
        Guard(parse("min(n, 7) > 0 and 100 // n < 100"), "n is neither 0 nor 1"),
    )
    sizes = [(0, 8), (8, 8), (16, 8), (24, 4)]
    block = (1024, 2048)
    variants = [
        Variant(
            target=target,
            symbol=f"add_{dtype}_{''.join(map(str, wanted))}",
            cubin=cubin(
                target, {f"add_{dtype}_{''.join(map(str, wanted))}": sizes}, bytes([config])
            ),
            num_threads=32 * (4, 8)[config],
            types=(dtype,),
            guards=wanted,
            config=config,
            cubin_params=tuple(CubinParam(o, s, "argument", i) for i, (o, s) in enumerate(sizes)),
            grid=(parse(f"cdiv(n, {block[config]})"),),
        )
        for target in targets
        for dtype in ("fp16", "fp32")
        for wanted in ((0, 1), (0,))
        for config in (0, 1)
    ]
    configs = tuple((("BLOCK", block[i]), ("num_warps", (4, 8)[i])) for i in (0, 1))
    types = (TypeVariable("T", ("fp16", "fp32")),)
    return Kernel("add", _SOURCE, tuple(variants), params, types, (), guards, configs)


def _choose(target: str) -> Kernel:
    """Return a kernel with every scalar dtype, choices, constants, and the caller's grid."""
    dtypes = [
        "i1",
        "i8",
        "i16",
        "i32",
        "i64",
        "u8",
        "u16",
        "u32",
        "u64",
        "fp16",
        "bf16",
        "fp32",
        "fp64",
        "fp8e4nv",
        "fp8e5",
    ]
    widths = (1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 1, 1)
    params = tuple(Param(f"a_{dtype}", "scalar", dtype) for dtype in dtypes)
    choices = (
        Choice("CAUSAL", (True, False)),
        Choice("MODE", ("fast", "exact", None, 3, 0.5)),
        Choice("ONLY", (7,)),
    )
    sizes: list[tuple[int, int]] = []
    end = 0
    for width in widths:
        sizes.append((-(-end // width) * width, width))
        end = sum(sizes[-1])
    variants: list[Variant] = []
    for causal in choices[0].values:
        for mode in choices[1].values:
            symbol = f"choose_{causal}_{mode}".replace(".", "_")
            variant = Variant(
                target=target,
                symbol=symbol,
                cubin=cubin(target, {symbol: sizes}, b"choose"),
                num_threads=64,
                choices=(causal, mode, 7),
                cubin_params=tuple(
                    CubinParam(o, s, "argument", i) for i, (o, s) in enumerate(sizes)
                ),
                remarks=("one", "two"),
            )
            variants.append(variant)
    variants.pop()  # CAUSAL = false, MODE = 0.5 was not built
    constants = (("BLOCK", 4096), ("NAME", "x"), ("SCALE", 0.25), ("FLAG", True), ("NOTHING", None))
    guards = (Guard(parse("a_u64 >= 0"), "a_u64 is below 2^63"),)
    return Kernel(
        "choose", _SOURCE, tuple(variants), params, (), choices, guards, constants=constants
    )


def _shared(targets: tuple[str, ...]) -> Kernel:
    """Return a kernel whose only config needs more shared memory than an A100 has."""
    params = (Param("p", "pointer", "fp32"),)
    variants = tuple(
        Variant(
            target=target,
            symbol="shared",
            cubin=cubin(target, {"shared": [(0, 8)]}, b"shared", 1024),
            num_threads=128,
            cubin_params=(CubinParam(0, 8),),
            dynamic_shared_bytes=200 * 1024,
            static_shared_bytes=1024,
            grid=(parse("1"),),
        )
        for target in targets
    )
    return Kernel("shared", _SOURCE, variants, params)


def _scratch(target: str) -> Kernel:
    """Return a kernel with scratch memory and computed parameters."""
    params = (Param("p", "pointer", "fp32"), Param("n", "scalar", "i64"))
    variant = Variant(
        target=target,
        symbol="scratch",
        cubin=cubin(target, {"scratch": [(0, 8), (8, 8), (16, 8), (24, 4)]}, b"scratch"),
        num_threads=32,
        cubin_params=(
            CubinParam(0, 8),
            CubinParam(8, 8, "scratch"),
            CubinParam(16, 8, "expression", 0, parse("n * n - 1")),
            CubinParam(24, 4, "expression", 0, parse("n // 3 + n % 5")),
        ),
        grid=(parse("n"), parse("2")),
        scratch_bytes=parse("4 * n"),
        scratch_align=128,
    )
    return Kernel("scratch", _SOURCE, (variant,), params)


def _tma(target: str) -> Kernel:
    """Return a kernel over a tensor: encoded map, cluster, programmatic launch."""
    params = (
        Param("a", "tensor", "bf16", rank=2),
        Param("out", "pointer", "bf16", divisibility=16),
    )
    tensor_map = TensorMap(
        param=0,
        data_type=9,
        address=parse("a"),
        dims=(parse("a.shape[1]"), parse("a.shape[0]")),
        strides=(parse("a.strides[0] * 2"),),
        box=(64, 128),
        element_strides=(1, 1),
        swizzle=3,
        l2_promotion=2,
    )
    variants = tuple(
        Variant(
            target=target,
            symbol=f"tma_{waits}",
            cubin=cubin(target, {f"tma_{waits}": [(0, 128), (128, 8)]}, b"tma"),
            num_threads=384,
            config=waits,
            cluster=(2, 1, 1) if waits else (16, 1, 1),
            dynamic_shared_bytes=100 * 1024,
            cubin_params=(CubinParam(0, 128, "tensor_map", 0), CubinParam(128, 8, "argument", 1)),
            grid=(parse("cdiv(a.shape[0], 128)"), parse("a.shape[1] // 64")),
            tensor_maps=(tensor_map,),
            waits_pdl=bool(waits),
        )
        for waits in (1, 0)
    )
    configs = ((("WAITS", False),), (("WAITS", True),))
    return Kernel("tma", _SOURCE, variants, params, configs=configs)


def _boxes(target: str) -> Kernel:
    """Return that kernel with a tensor map and parameters in its second config that are others."""
    kernel = _tma(target)
    last, first = kernel.variants
    (tensor_map,) = first.tensor_maps
    other = replace(
        first,
        cubin=cubin(target, {first.symbol: [(0, 128)]}, b"boxes"),
        cubin_params=first.cubin_params[:1],
        tensor_maps=(replace(tensor_map, box=(64, 64)),),
    )
    return replace(kernel, name="boxes", variants=(last, other))


def _pick(targets: tuple[str, ...]) -> Kernel:
    """Return a kernel whose function says for which target it was built."""
    variants = tuple(
        Variant(
            target=target,
            symbol=f"pick_{target}",
            cubin=cubin(target, {f"pick_{target}": [(0, 4)]}, b"pick"),
            num_threads=32,
            guards=(0,) if target == "sm_86" else (),
            cubin_params=(CubinParam(0, 4),),
            grid=(parse("1"),),
        )
        for target in targets
    )
    guards = (Guard(parse("n % 16 == 0"), "n is a multiple of 16"),)
    return Kernel("pick", _SOURCE, variants, (Param("n", "scalar", "i32"),), guards=guards)


def _mapped(target: str) -> Kernel:
    """Return a kernel over a pointer: with tensor maps on a condition, and without.

    The second config has no map, the third has no other way and a condition on an overflow.
    """
    params = (
        Param("a", "pointer", "bf16", divisibility=16),
        Param("rows", "scalar", "i32"),
        Param("stride", "scalar", "i64"),
    )
    tensor_map = TensorMap(
        param=0,
        data_type=9,
        address=parse("a"),
        dims=(parse("64"), parse("max(1, rows)")),
        strides=(parse("stride * 2"),),
        box=(64, 128),
        element_strides=(1, 1),
        swizzle=3,
    )
    fits = f"rows % 128 == 0 and stride >= 0 and stride % 8 == 0 and stride < {1 << 39}"
    cases = (
        (0, parse(fits), True),
        (0, None, False),
        (1, None, False),
        (2, parse("rows * stride * stride > 0"), True),
    )
    variants: list[Variant] = []
    for config, condition, is_mapped in cases:
        symbol = f"mapped_{config}" if is_mapped else f"plain_{config}"
        sizes = [(0, 128 if is_mapped else 8), (128, 8)]
        first = CubinParam(*sizes[0], "tensor_map" if is_mapped else "argument", 0)
        variants.append(
            Variant(
                target=target,
                symbol=symbol,
                cubin=cubin(target, {symbol: sizes}, symbol.encode()),
                num_threads=128,
                config=config,
                condition=condition,
                cubin_params=(first, CubinParam(*sizes[1], "argument", 2)),
                grid=(parse("cdiv(rows, 128)"),),
                tensor_maps=(tensor_map,) if is_mapped else (),
            )
        )
    configs = tuple((("CONFIG", config),) for config in range(3))
    return Kernel("mapped", _SOURCE, tuple(variants), params, configs=configs)


def _looped(target: str) -> Kernel:
    """Return a kernel whose CTAs loop over programs, in configs of several sizes and clusters."""
    shared_bytes = (0, 100 * 1024, 200 * 1024, 0, 0)
    clusters = ((1, 1, 1), (1, 1, 1), (1, 1, 1), (2, 1, 1), (2, 2, 4))
    sizes = [(0, 8), (8, 4), (12, 4), (16, 4), (24, 8)]
    variants = tuple(
        Variant(
            target=target,
            symbol=f"looped_{config}",
            cubin=cubin(target, {f"looped_{config}": sizes}, b"looped"),
            num_threads=384,
            config=config,
            cluster=cluster,
            dynamic_shared_bytes=shared_bytes[config],
            cubin_params=(
                CubinParam(0, 8),
                *(CubinParam(8 + 4 * at, 4, "grid", axis) for at, axis in enumerate((2, 0, 1))),
                CubinParam(24, 8, "scratch"),
            ),
            scratch_bytes=parse("16"),
            scratch_align=16,
            is_persistent=True,
        )
        for config, cluster in enumerate(clusters)
    )
    configs = tuple((("CONFIG", config),) for config in range(len(clusters)))
    return Kernel("looped", _SOURCE, variants, (Param("p", "pointer", "fp32"),), configs=configs)


def _together(target: str) -> Kernel:
    """Return a kernel whose CTAs wait for each other, in configs of several sizes and clusters."""
    shared_bytes, clusters = (0, 200 * 1024, 0), ((1, 1, 1), (1, 1, 1), (2, 1, 1))
    variants = tuple(
        Variant(
            target=target,
            symbol=f"together_{config}",
            cubin=cubin(target, {f"together_{config}": [(0, 8)]}, b"together"),
            num_threads=384,
            config=config,
            cluster=cluster,
            dynamic_shared_bytes=shared_bytes[config],
            cubin_params=(CubinParam(0, 8),),
            cooperative=True,
        )
        for config, cluster in enumerate(clusters)
    )
    configs = tuple((("CONFIG", config),) for config in range(len(clusters)))
    return Kernel("together", _SOURCE, variants, (Param("p", "pointer", "fp32"),), configs=configs)


def _steered(targets: tuple[str, ...]) -> Kernel:
    """Return a kernel with selections: by GPU, by target, and by dtype.

    Its configs are numbered; odd ones need `n` to be a multiple of 16, the last `k` to be positive.
    """
    params = (
        Param("x", "pointer", "T"),
        *(Param(name, "scalar", "i32") for name in ("m", "n", "k")),
    )
    sizes = [(0, 8), (8, 4), (12, 4), (16, 4)]
    guards = (Guard(parse("n % 16 == 0"), "n is a multiple of 16"),)
    variants = tuple(
        Variant(
            target=target,
            symbol=f"steered_{dtype}_{config}{'_aligned' if aligned else ''}",
            cubin=cubin(
                target,
                {f"steered_{dtype}_{config}{'_aligned' if aligned else ''}": sizes},
                bytes([config]),
            ),
            num_threads=32,
            types=(dtype,),
            guards=(0,) if aligned else (),
            config=config,
            condition=parse("k > 0") if config == 5 else None,
            cubin_params=tuple(CubinParam(o, s, "argument", i) for i, (o, s) in enumerate(sizes)),
            grid=(parse("1"),),
        )
        for target in targets
        for dtype in ("fp16", "fp32")
        for config in range(6)
        for aligned in ((True,) if config % 2 else (True, False))
    )
    size, wide = parse("m * n"), parse("cdiv(n, k)")
    tree = Branch(
        size, 1 << 20, Branch(wide, 4, (4,), (1, 3, 2)), Branch(parse("m"), 16, (3,), (5, 2))
    )
    selections = (
        Selection(targets[-1], ANY_GPU, 0, tree),
        Selection(targets[-1], ANY_GPU, 1, (2,)),
        Selection(targets[-1], "Fake GPU", 0, Branch(size, 1 << 20, (2,), tree)),
        Selection(targets[0], ANY_GPU, 0, Branch(parse("n"), -1, (4, 0), (2,))),
    )
    return Kernel(
        "steered", _SOURCE, variants, params, (TypeVariable("T", ("fp16", "fp32")),),
        guards=guards, configs=tuple((("CONFIG", config),) for config in range(6)),
        selections=selections,
    )  # fmt: skip


def _wrong(target: str) -> Kernel:
    """Return a kernel whose index and cubin disagree about a parameter."""
    variant = Variant(
        target=target,
        symbol="wrong",
        cubin=cubin(target, {"wrong": [(0, 8), (8, 4)]}, b"wrong"),
        num_threads=32,
        cubin_params=(CubinParam(0, 8),),
    )
    return Kernel("wrong", _SOURCE, (variant,), (Param("p", "pointer", "fp32"),))


def _frames(data: bytes) -> list[tuple[int, int]]:
    """Return offset and size of each frame."""
    root = Root(data, read_header(data))
    found: dict[int, int] = {}
    for number, row in enumerate(root.rows["ENTRIES"]):
        found[row[2]] = row[3]
        sizes = (frame[0] for frame in Decoder(root, number).frames)
        found.update(zip(root.places(number), sizes, strict=True))
    return sorted(found.items())


def _stored(content: bytes) -> bytes:
    """Return a zstd frame of one raw block: 12 bytes, then the content (RFC 8878, section 3.1.1)."""
    size = len(content)
    if size > 1 << 17:
        raise ValueError("a block holds at most 128 KiB")
    head = b"\x28\xb5\x2f\xfd\xa0" + size.to_bytes(4, "little")
    return head + (size << 3 | 1).to_bytes(3, "little") + content


def _write(directory: Path, name: str, archive: Archive, *, is_grouped: bool = False) -> None:
    check_archive(archive)

    compressor = zstandard.ZstdCompressor(19, write_checksum=False)
    makers = iter((compressor.compress, _stored))  # of blobs, of indices

    def frames(contents: list[bytes]) -> list[bytes]:
        return [*map(next(makers), contents)]

    data = encode_records(canonical(archive), frames, is_grouped=is_grouped)
    (directory / f"{name}.aotc").write_bytes(data)
    raw: list[bytes] = []
    for offset, size in _frames(data):
        frame = data[offset : offset + size]
        content = zstandard.ZstdDecompressor().decompress(frame)
        raw.append(struct.pack("<QQ", len(frame), len(content)) + frame + content)
    (directory / f"{name}.aotc.raw").write_bytes(b"".join(raw))


def _write_stored(directory: Path, name: str, archive: Archive) -> None:
    """Write an archive without compression, of which a decompressor need know nothing."""
    check_archive(archive)
    data = encode_records(canonical(archive), None, is_grouped=False)
    (directory / f"{name}.aotc").write_bytes(data)
    (directory / f"{name}.aotc.raw").write_bytes(b"")


def _later(names: tuple[str, ...], *arguments: Any) -> bytes:
    """Lay out an index, and the root as a newer minor version may: with sections that nobody knows yet."""
    packed = _lay_out(names, *arguments)
    if names != ROOT_SECTIONS:
        return packed
    first = DIRECTORY_HEAD.size
    end = first + DIRECTORY_ENTRY.size * len(names)
    added = DIRECTORY_ENTRY.size * _MORE_SECTIONS
    known = DIRECTORY_ENTRY.iter_unpack(packed[first:end])
    entries = [(kind, size, at + added, count) for kind, size, at, count in known]
    kinds = range(len(RECORDS) + 1, len(RECORDS) + 1 + _MORE_SECTIONS)
    entries += [(kind, 8, len(packed) + added, 0) for kind in kinds]
    head = DIRECTORY_HEAD.pack(len(entries), 0)
    return b"".join([head, *(DIRECTORY_ENTRY.pack(*e) for e in entries), packed[end:]])


def main(directory: Path) -> None:
    """Write all archives into a directory."""
    both = ("sm_80", "sm_90a")
    every = (
        *(
            "sm_80",
            "sm_86",
            "sm_87",
            "sm_90a",
            "sm_100f",
            "sm_100a",
            "sm_103a",
            "sm_107a",
            "sm_110f",
        ),
        *("sm_120f", "sm_121a"),
    )
    hopper = "sm_90a"
    kernels = (_add(both), _choose(hopper), _shared(both), _scratch(hopper), _tma(hopper))
    _write(directory, "golden", Archive("golden", "1.2.3", kernels, "aotc; ptxas"))
    _write(directory, "grouped", Archive("grouped", "1", kernels, "aotc"), is_grouped=True)
    _write(directory, "hopper", Archive("hopper", "1", (_tma(hopper),)))
    _write(directory, "boxes", Archive("boxes", "1", (_boxes(hopper),)))
    _write(directory, "mapped", Archive("mapped", "1", (_mapped(hopper),)))
    _write(directory, "looped", Archive("looped", "1", (_looped(hopper),)))
    _write(directory, "together", Archive("together", "1", (_together(hopper),)))
    _write(directory, "steered", Archive("steered", "1", (_steered(both),)))
    _write(directory, "wrong", Archive("wrong", "1", (_wrong(hopper),)))
    _write(directory, "pick", Archive("pick", "1", (_pick(every),)))
    _write(directory, "guarded", Archive("guarded", "1", (_pick(("sm_86",)),)))
    twins = (_add((hopper,)), replace(_add((hopper,)), name="twin"))
    _write(directory, "twins", Archive("twins", "1", twins))
    _write(directory, "small", Archive("small", "1", (_add((hopper,)),)))
    _write_stored(directory, "stored", Archive("stored", "1", kernels, "aotc"))
    names = (*(f"add_{number:03}" for number in range(_MANY)), *_SAME_SLOT)
    many = tuple(replace(_add(both), name=name) for name in names)
    _write_stored(directory, "many", Archive("many", "1", many, "aotc"))
    _write(directory, "empty", Archive("empty", "1", ()))
    with (
        patch("aotc.package.archive.encoder._lay_out", _later),
        patch("aotc.package.archive.encoder.MINOR", MINOR + 1),
    ):
        _write_stored(directory, "later", Archive("later", "1", kernels, "aotc"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
