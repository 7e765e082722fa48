"""Archives: round trips, one encoding, and how files are written."""

from __future__ import annotations

import errno
import hashlib
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aotc.ir.expression import parse
from aotc.package.archive.archive_root import slots
from aotc.package.archive.file import (
    decode,
    encode,
    read,
    without_texts,
    write,
    write_file,
    write_together,
)
from aotc.package.archive.index import (
    Archive,
    ArchiveError,
    Choice,
    CubinParam,
    Guard,
    Kernel,
    Param,
    TypeVariable,
    Value,
    Variant,
    canonical,
    num_combinations,
    split_combination,
)
from aotc.package.archive.layout import BLOB_CUBIN, BLOB_PTX, RECORDS
from aotc.package.archive.selection import ANY_GPU, Branch, Selection, Tree
from tests.support.archive_bytes import (
    field,
    frame_rows,
    index_of,
    num_kernels,
    patched,
    place,
    resealed,
    root_at,
    root_end,
)
from tests.support.extent import examples

_GOLDEN = Path(__file__).with_name("golden.aotc")
# ------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("name", ["archive", "small"])
def test_round_trip(samples: SimpleNamespace, name: str) -> None:
    archive = getattr(samples, name)
    data = encode(archive)
    assert decode(data) == canonical(archive)
    assert encode(decode(data)) == data


def blobs(data: bytes, kernel: int) -> list[tuple[int, int, int, int]]:
    """Return the records of a kernel's blobs: frame, start, size, kind."""
    layout = RECORDS["BLOBS"]
    offset, count = place(data, "BLOBS", kernel)
    index = index_of(data, kernel)
    return [layout.unpack_from(index, offset + layout.size * number) for number in range(count)]


def frames(data: bytes) -> list[list[tuple[int, int]]]:
    """Return the kind and the decoded size of each blob of each kernel, grouped by frame."""
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for kernel in range(num_kernels(data)):
        for frame, _, size, kind in blobs(data, kernel):
            groups.setdefault((kernel, frame), []).append((kind, size))
    return list(groups.values())


def test_variants_for_a_target_share_a_frame(samples: SimpleNamespace) -> None:
    def distinct(kernel: Kernel, target: str, blob: str) -> int:
        contents = (getattr(v, blob) for v in kernel.variants if v.target == target)
        return len(set(contents) - {None})

    expected = [
        [kind] * distinct(kernel, target, blob)
        for kernel in canonical(samples.archive).kernels
        for target in kernel.targets
        for kind, blob in ((BLOB_CUBIN, "cubin"), (BLOB_PTX, "ptx"))
    ]
    data = encode(samples.archive)
    frame_kinds = [[kind for kind, _ in group] for group in frames(data)]
    assert frame_kinds == [kinds for kinds in expected if kinds]
    assert max(map(len, frame_kinds)) > 1
    alone = encode(samples.archive, is_grouped=False)
    assert decode(alone) == decode(data)
    assert {len(group) for group in frames(alone)} == {1}
    assert len(data) < len(alone)


def test_a_frame_has_a_limit(samples: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = frames(encode(samples.archive))
    number, sizes = next(
        (number, [size for _, size in g]) for number, g in enumerate(whole) if len(g) > 3
    )
    monkeypatch.setattr("aotc.package.archive.encoder.GROUP_BYTES", sum(sizes) - 1)
    data = encode(samples.archive)
    assert [len(g) for g in frames(data)][number : number + 2] == [len(sizes) - 1, 1]
    assert decode(data) == canonical(samples.archive)
    monkeypatch.undo()
    with pytest.raises(ArchiveError, match="not encoded canonically"):
        decode(data)


@pytest.mark.parametrize("name", ["archive", "small"])
def test_what_is_not_compressed_lies_as_it_is(samples: SimpleNamespace, name: str) -> None:
    archive = canonical(getattr(samples, name))
    data = encode(archive, is_compressed=False)
    decoded = decode(data)
    assert decoded == without_texts(archive)
    assert encode(decoded, is_compressed=False) == data
    assert encode(decoded) == encode(without_texts(archive))
    assert decode(encode(decoded)) == decoded
    for offset, stored_bytes, raw_bytes, digest in frame_rows(data):
        content = data[offset : offset + stored_bytes]
        assert (offset % 64, stored_bytes) == (0, raw_bytes)
        assert hashlib.sha256(content).digest() == digest
    cubins = {variant.cubin for kernel in archive.kernels for variant in kernel.variants}
    assert all(data.find(cubin) % 64 == 0 for cubin in cubins)


def test_padding_between_frames_is_zero(samples: SimpleNamespace) -> None:
    data = encode(samples.archive, is_compressed=False)
    rows = frame_rows(data)[num_kernels(data) :]
    ends = [offset + size for offset, size, _, _ in rows]
    position = next(end for end, (start, *_) in zip(ends, rows[1:], strict=False) if end < start)
    with pytest.raises(ArchiveError, match="padding before a frame"):
        decode(data[:position] + b"\1" + data[position + 1 :])


def test_a_frame_without_compression_has_one_size(samples: SimpleNamespace) -> None:
    data = encode(samples.small, is_compressed=False)
    position = field(data, "ENTRIES", 0, 20)
    changed = patched(data, position, (frame_rows(data)[0][2] + 8).to_bytes(4, "little"))
    with pytest.raises(ArchiveError, match="two sizes"):
        decode(resealed(changed))


def test_variants_share_what_is_the_same(samples: SimpleNamespace) -> None:
    """A variant shares its list with the last one like it, if both are equal."""
    (copy,) = samples.copy.variants
    (tensor_map,) = copy.tensor_maps
    other = replace(copy, tensor_maps=(replace(tensor_map, box=(64, 32)),))
    short = replace(copy, cubin_params=copy.cubin_params[:1])
    num_params = len(copy.cubin_params)
    for variants, num_lists, num_maps in (
        ((copy, copy, copy), (num_params,), 1),
        ((copy, other, other), (num_params,), 2),
        ((copy, other, copy), (num_params,), 3),
        ((copy, short, copy), (num_params, 1, num_params), 1),
    ):
        kernel = replace(
            samples.copy,
            variants=tuple(replace(variant, config=n) for n, variant in enumerate(variants)),
            configs=tuple((("N", n),) for n in range(len(variants))),
        )
        data = encode(Archive("shared", "1", (kernel,)))
        assert place(data, "CUBIN_PARAMS", 0)[1] == sum(num_lists)
        assert place(data, "TENSOR_MAPS", 0)[1] == num_maps
        assert decode(data).kernels == (kernel,)


def test_each_piece_of_a_root_has_its_digest(samples: SimpleNamespace) -> None:
    kernels = tuple(replace(samples.copy, name=f"k{number:03}") for number in range(40))
    data = encode(Archive("many", "1", kernels), is_compressed=False)
    assert root_end(data) - root_at(data) > 2048
    for position in range(128, root_end(data) + 32, 512):
        with pytest.raises(ArchiveError) as error:
            decode(patched(data, position, bytes([data[position] ^ 1])))
        assert error.value.kind == "CHECKSUM"


def test_kernels_are_found_by_their_names() -> None:
    """FNV-1a of 64 bits, checked by its authors' examples; a used slot leads to the next one."""
    tags = {"": 0xCBF29CE4, "a": 0xAF63DC4C, "foobar": 0x85944171, "b": 0xAF63DF4C}
    table = slots([*tags])
    assert [table[slot] for slot in (5, 4, 0, 6)] == [
        (tag, 1 + n) for n, tag in enumerate(tags.values())
    ]
    assert [table[slot] for slot in (1, 2, 3, 7)] == [(0, 0)] * 4
    assert slots([]) == []
    assert [len(slots(["a", "b", "c"][:count])) for count in (1, 2, 3)] == [2, 4, 8]


def test_empty_archive_is_header_and_root() -> None:
    archive = Archive("none", "0", ())
    data = encode(archive)
    assert decode(data) == archive
    root_bytes = int.from_bytes(data[48:56], "little")
    assert len(data) == 128 + 32 + root_bytes + 32 * -(-root_bytes // 1024)


def test_order_of_kernels_and_variants_does_not_matter(samples: SimpleNamespace) -> None:
    data = encode(samples.archive)
    shuffle = random.Random(0)
    for _ in range(3):
        kernels = [
            replace(kernel, variants=tuple(shuffle.sample(kernel.variants, len(kernel.variants))))
            for kernel in shuffle.sample(samples.archive.kernels, len(samples.archive.kernels))
        ]
        assert encode(replace(samples.archive, kernels=tuple(kernels))) == data


def test_equal_cubins_are_stored_once(samples: SimpleNamespace) -> None:
    first = samples.copy
    second = replace(first, name="copy2")
    single, double = (encode(Archive("n", "1", kernels)) for kernels in ((first,), (first, second)))
    assert len(frame_rows(single)) == 2
    assert len(frame_rows(double)) == 3  # two indices, one frame of blobs
    assert [kernel.variants for kernel in decode(double).kernels] == [first.variants] * 2


def test_blobs_that_share_no_frame_are_read_again(samples: SimpleNamespace) -> None:
    """The second kernel's first cubin is the first kernel's, so its next blob is PTX."""

    def variant(payload: bytes, guards: tuple[int, ...] = (), ptx: bytes | None = None) -> Variant:
        cubin = samples.fake_cubin("sm_90a", "k", payload)
        return Variant("sm_90a", "k", cubin, 32, guards=guards, cubin_params=(), ptx=ptx)

    shared = Kernel("first", bytes(32), (variant(b""),), ())
    variants = (variant(b"", (0,), b"// ptx"), variant(b"other"))
    second = Kernel("second", bytes(32), variants, (), guards=(Guard(parse("1"), "always"),))
    archive = Archive("n", "1", (shared, second))
    assert decode(encode(archive)) == canonical(archive)


def test_the_most_specialised_variant_and_the_first_config_come_first(
    samples: SimpleNamespace,
) -> None:
    variants = decode(encode(Archive("n", "1", (samples.norm,)))).kernels[0].variants
    run = [(v.guards, v.config) for v in variants if v.types == ("bf16",) and v.choices[0]]
    assert run == [((0, 1, 2), 0), ((0, 1, 2), 1), ((0, 1), 0), ((0, 1), 1)]


def test_a_config_goes_first_where_its_condition_holds(samples: SimpleNamespace) -> None:
    doubled = tuple(
        replace(variant, condition=condition)
        for variant in samples.norm.variants
        for condition in (None, parse("n_rows % 8 == 0"))
    )
    archive = Archive("n", "1", (replace(samples.norm, variants=doubled),))
    variants = decode(encode(archive)).kernels[0].variants
    run = [
        (v.config, v.condition is None)
        for v in variants
        if v.types == ("bf16",) and v.choices[0] and v.guards == (0, 1)
    ]
    assert run == [(0, False), (0, True), (1, False), (1, True)]


def test_a_kernel_has_the_same_index_in_every_archive(samples: SimpleNamespace) -> None:
    together = encode(samples.archive)
    for number, kernel in enumerate(canonical(samples.archive).kernels):
        alone = encode(Archive("other", "2", (kernel,), "another toolchain"))
        assert index_of(alone, 0) == index_of(together, number)


def test_an_older_version_says_how_to_go_on(samples: SimpleNamespace) -> None:
    data = encode(samples.small)
    with pytest.raises(ArchiveError, match=r"format 1\.0.*build it again with this aotc") as error:
        decode(data[:8] + b"\1" + data[9:])
    assert error.value.kind == "VERSION"


def test_large_archives_are_compressed_faster(
    samples: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = encode(samples.archive)
    monkeypatch.setattr("aotc.package.archive.file.SMALL_ARCHIVE_BYTES", 1000)
    monkeypatch.setattr("aotc.package.archive.file.FAST_ZSTD_LEVEL", 1)
    large = encode(samples.archive)
    assert len(large) > len(small)
    assert decode(large) == decode(small)


def test_golden_archive(samples: SimpleNamespace) -> None:
    """The bytes of version 9.0 keep the meaning they had at its release.

    Decoding compares the index and the layout with today's encoder; the frames may be another
    zstd's.
    """
    assert decode(_GOLDEN.read_bytes()) == canonical(samples.archive)


_names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
_identifiers = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True).filter(
    lambda name: name not in ("and", "or", "not", "min", "max", "cdiv", "true", "false")
)
_values: st.SearchStrategy[Value] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
)
_named_values = st.lists(
    st.tuples(_names, _values), max_size=3, unique_by=lambda pair: pair[0]
).map(tuple)
_DTYPES = ("i1", "i32", "u64", "fp16", "bf16", "fp32", "fp64", "fp8e5")


@st.composite
def kernels(draw: st.DrawFn, fake_cubin: Callable[..., bytes], name: str) -> Kernel:
    """Draw a kernel with scalars, pointers, type variables, choices, guards and configs."""
    names = draw(st.lists(_identifiers, min_size=1, max_size=4, unique=True))
    variables = tuple(
        TypeVariable(f"T{index}", tuple(dtypes))
        for index, dtypes in enumerate(
            draw(
                st.lists(
                    st.lists(st.sampled_from(_DTYPES), min_size=1, max_size=2, unique=True),
                    max_size=2,
                )
            )
        )
    )
    elements = [*_DTYPES, *(variable.name for variable in variables)]
    params = tuple(
        Param(
            param,
            draw(st.sampled_from(["pointer", "scalar"])),
            draw(st.sampled_from(elements)),
            divisibility=draw(st.sampled_from([1, 16])),
            is_optional=draw(st.booleans()),
            access=draw(st.sampled_from(["unknown", "read", "write", "both"])),
        )
        for param in names
    )
    choices = tuple(
        Choice(f"C{index}", tuple(values))
        for index, values in enumerate(
            draw(
                st.lists(
                    st.lists(
                        _values, min_size=1, max_size=2, unique_by=lambda v: (str(type(v)), v)
                    ),
                    max_size=2,
                )
            )
        )
    )
    pointers = [param.name for param in params if param.kind == "pointer"]
    texts = ["1", "-7 // 2", *(f"cdiv({name}, 300) % 16" for name in pointers)]
    guards = tuple(
        Guard(parse(text), draw(_names)) for text in draw(st.lists(st.sampled_from(texts)))
    )[:4]
    configs = tuple(draw(st.lists(_named_values, min_size=1, max_size=3)))
    rank = draw(st.integers(0, 3))
    keys = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["sm_80", "sm_90a", "sm_100f"]),
                st.integers(0, num_combinations(variables, choices) - 1),
                st.sets(st.integers(0, len(guards) - 1)) if guards else st.just(set[int]()),
                st.integers(0, len(configs) - 1),
            ),
            min_size=1,
            max_size=4,
            unique_by=lambda key: (key[0], key[1], tuple(sorted(key[2])), key[3]),
        )
    )
    variants: list[Variant] = []
    for target, number, required, config in keys:
        types, chosen = split_combination(variables, choices, number)
        payload = draw(st.binary(max_size=3))
        is_persistent = draw(st.booleans())
        counts = tuple(
            CubinParam(8 * len(pointers) + 4 * axis_number, 4, "grid", axis)
            for axis_number, axis in enumerate(
                draw(st.permutations(range(3))) if is_persistent else ()
            )
        )
        variants.append(
            Variant(
                target,
                "k",
                fake_cubin(target, "k", payload),
                draw(st.integers(1, 1024)),
                types,
                chosen,
                tuple(sorted(required)),
                config,
                draw(st.sampled_from([None, *map(parse, texts)])),
                dynamic_shared_bytes=draw(st.integers(0, (1 << 32) - 1)),
                registers=draw(st.integers(0, 65535)),
                cubin_params=tuple(
                    CubinParam(8 * index, 8, index=names.index(pointer))
                    for index, pointer in enumerate(pointers)
                )
                + counts,
                grid=tuple(parse(draw(st.sampled_from(texts))) for _ in range(rank)),
                waits_pdl=draw(st.booleans()),
                is_persistent=is_persistent,
                remarks=tuple(draw(st.lists(st.sampled_from(["slow", "überfüllt"]), max_size=2))),
                ptx=draw(st.sampled_from([None, b"// ptx"])),
            )
        )
    selections = tuple(
        Selection(target, gpu, number, draw(trees(texts, len(configs), depth=3)))
        for target, gpu, number in draw(
            st.sets(
                st.tuples(
                    st.sampled_from([key[0] for key in keys]),
                    st.sampled_from([ANY_GPU, "NVIDIA A", "NVIDIA B"]),
                    st.integers(0, num_combinations(variables, choices) - 1),
                ),
                max_size=3,
            )
        )
    )
    return Kernel(
        name, draw(st.binary(min_size=32, max_size=32)), tuple(variants), params, variables,
        choices, guards, configs, draw(_named_values), selections,
    )  # fmt: skip


@st.composite
def trees(draw: st.DrawFn, texts: list[str], num_configs: int, depth: int) -> Tree:
    """Draw a tree over some expressions."""
    if depth == 0 or draw(st.booleans()):
        order = draw(st.permutations(range(num_configs)))
        return tuple(order[: draw(st.integers(1, num_configs))])
    return Branch(
        parse(draw(st.sampled_from(texts))),
        draw(st.integers(-(1 << 63), (1 << 63) - 2)),
        draw(trees(texts, num_configs, depth - 1)),
        draw(trees(texts, num_configs, depth - 1)),
    )


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_round_trip_of_any_archive(samples: SimpleNamespace, data: st.DataObject) -> None:
    names = data.draw(st.lists(_names, max_size=3, unique=True))
    drawn = tuple(data.draw(kernels(samples.fake_cubin, name)) for name in names)
    archive = Archive(data.draw(_names), data.draw(_names), drawn, data.draw(_names))
    encoded = encode(archive)
    assert decode(encoded) == canonical(archive)
    assert encode(decode(encoded)) == encoded


# -------------------------------------------------------------------------------------- files


def test_files_round_trip(samples: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "llm.aotc"
    size = write(samples.archive, path)
    assert path.stat().st_size == size
    assert read(path) == canonical(samples.archive)
    assert [file.name for file in tmp_path.iterdir()] == ["llm.aotc"]


def test_unreadable_paths_are_io_errors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "fifo"):
        with pytest.raises(ArchiveError) as error:
            read(path)
        assert error.value.kind == "IO"
        assert str(path) in error.value.message


def test_an_invalid_archive_leaves_the_old_file(samples: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "llm.aotc"
    path.write_bytes(b"old")
    with pytest.raises(ArchiveError):
        write(Archive("", "1", ()), path)
    assert path.read_bytes() == b"old"


def test_a_full_disk_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "llm.aotc"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ArchiveError, match="No space left") as error:
        write_file(path, b"new")
    assert error.value.kind == "IO"
    assert [file.name for file in tmp_path.iterdir()] == ["llm.aotc"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_files_written_together_are_all_new_or_all_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    paths = [tmp_path / name for name in ("libllm.a", "llm.h", "llm.aotc")]
    for path in paths:
        path.write_bytes(b"old")
    left = iter(range(number - 1))

    def fail(_: int) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ArchiveError, match=f"cannot write .*{paths[number - 1].name}: No space"):
        write_together(dict.fromkeys(paths, b"new"))
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert {path.read_bytes() for path in paths} == {b"old"}
    monkeypatch.undo()
    write_together(dict.fromkeys(paths, b"new"))
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert {path.read_bytes() for path in paths} == {b"new"}


def test_an_interrupt_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "llm.aotc"
    path.write_bytes(b"old")
    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_file(path, b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["llm.aotc"]


def test_writing_into_a_missing_folder_is_an_io_error(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError) as error:
        write_file(tmp_path / "missing" / "llm.aotc", b"new")
    assert error.value.kind == "IO"
