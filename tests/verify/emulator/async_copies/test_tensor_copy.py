"""Tensor copies: boxes in and out of shared memory, against boxes cut out with NumPy."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from aotc.verify.emulator.async_copies.tensor_argument import TensorArgument
from aotc.verify.emulator.errors import EmulationError
from tests.support.ptx_kernel import faults, run

SHARED = 32768  # the box at 0, the mbarrier behind it
THREADS = 128
BARRIER = SHARED
LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"

INIT = f"""
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r1+{BARRIER}], 1;
    fence.mbarrier_init.release.cluster;
    bar.sync 0;
"""
WAIT = f"""
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r1+{BARRIER}], 0;
    @!%p2 bra WAIT;
"""
# Each thread copies 16 bytes at a time between shared memory and the bytes at %rd1.
TO_GLOBAL = "\n".join(
    f"""
    ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%r2+{offset}];
    st.global.v4.b32 [%rd20+{offset}], {{%r10, %r11, %r12, %r13}};"""
    for offset in range(0, SHARED, 16 * THREADS)
)
TO_SHARED = "\n".join(
    f"""
    ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%rd20+{offset}];
    st.shared.v4.b32 [%r2+{offset}], {{%r10, %r11, %r12, %r13}};"""
    for offset in range(0, SHARED, 16 * THREADS)
)
PLACES = """
    mad.lo.u32 %r2, %r0, 16, %r1;
    mad.wide.u32 %rd20, %r0, 16, %rd1;
"""


def _zeros() -> str:
    """Fill shared memory with a pattern; bytes outside the box stay readable."""
    return "\n".join(
        f"    st.shared.v4.b32 [%r2+{offset}], {{%r0, %r0, %r0, %r0}};"
        for offset in range(0, SHARED, 16 * THREADS)
    )


def _coordinates(origin):
    return "{" + ", ".join(str(coordinate) for coordinate in reversed(origin)) + "}"


def _load_body(rank, origin, count_bytes, filled=True):
    load = LOAD.format(rank=rank)
    return f"""
    {PLACES}
    {_zeros() if filled else ""}
    fence.proxy.async;
    {INIT}
    @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd30, [%r1+{BARRIER}], {count_bytes};
    @%p1 {load} [%r1], [%rd0, {_coordinates(origin)}], [%r1+{BARRIER}];
    {WAIT}
    """


def _cut(array, origin, box, strides, fill):
    """Return the box of an array at `origin`, element by element."""
    shape = [-(-extent // stride) for extent, stride in zip(box, strides, strict=True)]
    out = np.full(shape, fill, array.dtype)
    for index in itertools.product(*map(range, shape)):
        position = tuple(o + i * s for o, i, s in zip(origin, index, strides, strict=True))
        if all(0 <= p < extent for p, extent in zip(position, array.shape, strict=True)):
            out[index] = array[position]
    return out


def _swizzled_places(box, itemsize, span):
    """Return where in shared memory each element of a box lies, spelled out byte by byte."""
    inner = box[-1] * itemsize
    pitch = max(inner, span)
    count = int(np.prod(box))
    addresses = np.empty(count, np.int64)
    for element in range(count):
        row, byte = divmod(element * itemsize, inner)
        address = row * pitch + byte
        if span:
            chunk, line = address // 16, address // 128
            address = (chunk ^ (line & (span // 16 - 1))) * 16 + address % 16
        addresses[element] = address
    return addresses


CASES = [
    # dtype, shape, box, origin, swizzle, element strides
    (np.uint8, (64,), (32,), (16,), 0, (1,)),
    (np.float32, (7, 12), (4, 8), (5, 8), 32, (1, 1)),
    (np.float16, (20, 40), (16, 32), (-3, -8), 64, (1, 1)),
    (ml_dtypes.bfloat16, (40, 80), (32, 64), (16, 32), 128, (1, 1)),
    (np.float16, (9, 64), (8, 32), (0, 0), 128, (1, 1)),
    (np.int64, (3, 6, 4), (2, 4, 2), (-1, 3, 2), 0, (1, 1, 1)),
    (np.int32, (3, 3, 5, 8), (2, 2, 3, 8), (2, -1, 4, -4), 32, (1, 1, 1, 1)),
    (np.float32, (2, 2, 3, 3, 4), (2, 1, 2, 3, 4), (1, 1, 2, -2, 0), 0, (1, 1, 1, 1, 1)),
    (np.float16, (30, 16), (20, 16), (3, 0), 32, (3, 1)),
    (np.uint16, (4, 8), (4, 8), (100, -104), 0, (1, 1)),
]


def _array(dtype, shape):
    """Return random data with a row pitch of a multiple of 16 bytes."""
    size = np.dtype(dtype).itemsize
    rng = np.random.default_rng(len(shape) * 7 + size)
    padded = (*shape[:-1], -(-shape[-1] * size // 16) * 16 // size)
    data = rng.integers(0, 256, (*padded, size), np.uint8).view(dtype)[..., 0]
    return data[..., : shape[-1]]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{np.dtype(c[0]).name}-{len(c[1])}d-{c[4]}B")
@pytest.mark.parametrize("seed", [0, 1])
def test_load(case, seed):
    dtype, shape, box, origin, span, strides = case
    array, out = _array(dtype, shape), np.zeros(SHARED, np.uint8)
    argument = TensorArgument(array, box, span, strides)
    expected = _cut(array, origin, box, strides, 0)
    body = _load_body(len(shape), origin, expected.nbytes) + TO_GLOBAL
    run(body, argument, out, threads=THREADS, shared=SHARED + 8, seed=seed)
    size = np.dtype(dtype).itemsize
    addresses = _swizzled_places(expected.shape, size, span)
    actual = out.view(f"u{size}")[addresses // size]
    np.testing.assert_array_equal(actual, expected.reshape(-1).view(f"u{size}"))
    untouched = np.ones(SHARED, bool)
    untouched[(addresses[:, None] + np.arange(size)).ravel()] = False
    filled = np.repeat(np.tile(np.arange(THREADS, dtype=np.uint32), SHARED // 16 // THREADS), 4)
    np.testing.assert_array_equal(out[untouched], filled.view(np.uint8)[untouched])


def test_outside_is_nan_if_asked_for():
    array, out = _array(np.float16, (4, 8)), np.zeros(SHARED, np.uint8)
    argument = TensorArgument(array, (4, 16), fill_nan=True)
    run(_load_body(2, (2, -8), 128) + TO_GLOBAL, argument, out, threads=THREADS, shared=SHARED + 8)
    actual = out.view(np.float16)[:64].reshape(4, 16)
    assert np.isnan(actual[2:]).all()
    assert np.isnan(actual[:2, :8]).all()
    np.testing.assert_array_equal(actual[:2, 8:].view(np.uint16), array[2:, :8].view(np.uint16))


@pytest.mark.parametrize("origin", [(0, 3), (0, -4)])
def test_rows_start_at_multiples_of_16_bytes(origin):
    argument = TensorArgument(_array(np.float16, (4, 16)), (4, 8))
    load, image = _load_body(2, origin, 64), np.zeros(SHARED, np.uint8)
    faults(load, argument, image, kind="misaligned", threads=THREADS, shared=SHARED + 8)
    store = _store_body(STORE, 2, origin)
    faults(store, argument, image, kind="misaligned", threads=THREADS, shared=SHARED)


def test_stores_do_not_start_before_the_tensor():
    argument, image = (
        TensorArgument(_array(np.float16, (4, 16)), (4, 8)),
        np.zeros(SHARED, np.uint8),
    )
    body = _store_body(STORE, 2, (-1, 8))
    faults(body, argument, image, kind="tensor-map", match="before", threads=THREADS, shared=SHARED)


def _store_body(instruction, rank, origin, wait=""):
    return f"""
    {PLACES}
    {TO_SHARED}
    fence.proxy.async.shared::cta;
    bar.sync 0;
    setp.eq.u32 %p1, %r0, 0;
    @!%p1 bra END;
    {instruction.format(rank=rank)} [%rd0, {_coordinates(origin)}], [%r1];
    cp.async.bulk.commit_group;
    {wait}
    END:
    """


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{np.dtype(c[0]).name}-{len(c[1])}d-{c[4]}B")
def test_store(case):
    dtype, shape, box, origin, span, strides = case
    origin = tuple(max(0, coordinate) for coordinate in origin)
    size = np.dtype(dtype).itemsize
    array = _array(dtype, shape).copy(order="K")
    before = array.copy()
    image = np.random.default_rng(3).integers(0, 256, SHARED, np.uint8)
    body = _store_body(STORE, len(shape), origin, "cp.async.bulk.wait_group 0;")
    run(body, TensorArgument(array, box, span, strides), image, threads=THREADS, shared=SHARED)
    extents = [-(-extent // stride) for extent, stride in zip(box, strides, strict=True)]
    addresses = _swizzled_places(extents, size, span)
    values = image.view(f"u{size}")[addresses // size].view(dtype)
    expected = before
    for index, value in zip(itertools.product(*map(range, extents)), values, strict=True):
        position = tuple(o + i * s for o, i, s in zip(origin, index, strides, strict=True))
        if all(0 <= p < extent for p, extent in zip(position, shape, strict=True)):
            expected[position] = value
    np.testing.assert_array_equal(array.view(f"u{size}"), expected.view(f"u{size}"))


@pytest.mark.parametrize(
    ("operation", "dtype", "function"),
    [
        ("add", np.float32, np.add),
        ("add", np.int32, np.add),
        ("add", np.float16, np.add),
        ("min", np.int64, np.minimum),
        ("max", np.uint32, np.maximum),
        ("and", np.uint32, np.bitwise_and),
        ("xor", np.uint64, np.bitwise_xor),
    ],
)
def test_reduce(operation, dtype, function):
    rng = np.random.default_rng(5)
    array = (rng.standard_normal((6, 16)) * 100).astype(dtype)
    values = (rng.standard_normal((4, 16)) * 100).astype(dtype)
    image = np.zeros(SHARED, np.uint8)
    image[: values.nbytes] = values.view(np.uint8).ravel()
    expected = array.copy()
    expected[3:] = function(array[3:], values[:3])
    instruction = "cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta." + operation
    wait = "cp.async.bulk.wait_group 0;"
    body = _store_body(instruction + ".tile.bulk_group", 2, (3, 0), wait)
    run(body, TensorArgument(array, (4, 16)), image, threads=THREADS, shared=SHARED)
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("operation", ["and", "or", "xor"])
def test_bits_of_signed_numbers_of_64_bits_are_an_illegal_instruction(operation):
    """As on an H200."""
    instruction = f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{operation}.tile.bulk_group"
    body = _store_body(instruction, 2, (0, 0), "cp.async.bulk.wait_group 0;")
    argument = TensorArgument(_array(np.int64, (6, 16)), (4, 16))
    faults(
        *(body, argument, np.zeros(SHARED, np.uint8)),
        kind="tensor-map",
        match="u64 alone",
        threads=THREADS,
        shared=SHARED,
    )


def _multicast_body(then):
    """Let the first block of a cluster load for both."""
    return f"""
    {PLACES}
    mov.u32 %r20, %ctaid.x;
    mad.wide.u32 %rd20, %r20, {SHARED}, %rd20;
    {_zeros()}
    fence.proxy.async;
    {INIT}
    @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd30, [%r1+{BARRIER}], 1024;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    setp.eq.and.u32 %p3, %r20, 0, %p1;
    mov.b16 %h1, 3;
    @%p3 {LOAD.format(rank=2)}.multicast::cluster [%r1], [%rd0, {{0, 0}}], [%r1+{BARRIER}], %h1;
    {then}
    """


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_multicast(seed):
    """Each block waits at its own mbarrier."""
    array = _array(np.float16, (16, 32))
    out = np.zeros((2, SHARED), np.uint8)
    body = _multicast_body(WAIT + TO_GLOBAL)
    argument = TensorArgument(array, (16, 32), 64)
    run(body, argument, out, threads=THREADS, shared=SHARED + 8, grid=2, cluster=2, seed=seed)
    addresses = _swizzled_places((16, 32), 2, 64)
    for block in out:
        actual = block.view(np.uint16)[addresses // 2]
        np.testing.assert_array_equal(actual, array.view(np.uint16).ravel())


@pytest.mark.parametrize("seed", range(10))
def test_a_block_waits_for_a_multicast_to_it_before_it_ends(seed):
    """Also where its bytes come before it has ended in this run."""
    argument = TensorArgument(_array(np.float16, (16, 32)), (16, 32), 64)
    body = _multicast_body(f"setp.ne.u32 %p4, %r20, 0; @%p4 ret; {WAIT}")
    faults(
        *(body, argument, np.zeros((2, SHARED), np.uint8)),
        kind="ended",
        match="cluster rank 1.*exited",
        threads=THREADS,
        shared=SHARED + 8,
        grid=2,
        cluster=2,
        seed=seed,
    )


# ---- misuse ---------------------------------------------------------------------------------------


def _plain(rank=2, origin=(0, 0), count_bytes=64, **changes):
    body = _load_body(rank, origin, count_bytes)
    for old, new in changes.values():
        assert old in body
        body = body.replace(old, new)
    return body


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (("[%r1], [%rd0", "[%r1+64], [%rd0"), "misaligned", "no multiple of 128 bytes"),
        (("[%r1], [%rd0", f"[%r1+{SHARED}], [%rd0"), "mbarrier|bounds", "."),
        (("tensor.2d", "tensor.1d"), "tensor-map", "box of 2|has 2"),
        ((WAIT, ""), "in-flight", "asynchronous operation writes"),
        ((f"[%r1+{BARRIER}], 64;", f"[%r1+{BARRIER}], 80;"), "deadlock", "all warps wait"),
        ((f"[%r1+{BARRIER}], 64;", f"[%r1+{BARRIER}], 48;"), "in-flight|deadlock", "."),
        (("[%rd0, {", "[%rd1, {"), "tensor-map", "no tensor map"),
    ],
)
def test_misuse(change, kind, message):
    old, new = change
    body = _plain(change=(old, new))
    if "1d" in new:
        body = body.replace("{0, 0}", "{0}")
    array, out = _array(np.float16, (4, 8)), np.zeros(SHARED, np.uint8)
    faults(
        body + TO_GLOBAL,
        TensorArgument(array, (4, 8)),
        out,
        kind=tuple(kind.split("|")),
        match=message,
        threads=THREADS,
        shared=SHARED + 8,
    )


def test_reading_without_having_waited_is_a_race():
    """The copy is complete at the read, but nothing orders the reader after it."""
    body = _load_body(2, (0, 0), 64).replace(WAIT, "@!%p1 bra SKIP;" + WAIT + "SKIP:\nbar.sync 0;")
    array, out = _array(np.float16, (4, 8)), np.zeros(SHARED, np.uint8)
    argument = TensorArgument(array, (4, 8))
    run(body + TO_GLOBAL, argument, out, threads=THREADS, shared=SHARED + 8)
    late = body.replace("SKIP:\nbar.sync 0;", "SKIP:\nmov.b32 %r40, 0;") + TO_GLOBAL
    faults(
        late,
        argument,
        out,
        kind=("race", "in-flight"),
        threads=THREADS,
        shared=SHARED + 8,
    )


def test_unreadable_parts_of_the_tensor():
    array, out = _array(np.float16, (4, 8)), np.zeros(SHARED, np.uint8)
    allowed = np.ones((4, 8), bool)
    allowed[3, 7] = False
    faults(
        _load_body(2, (0, 0), 64),
        TensorArgument(array, (4, 8)),
        out,
        kind="bounds",
        threads=THREADS,
        shared=SHARED + 8,
        readable={0: allowed},
    )


def test_a_store_of_unfenced_data():
    array, image = _array(np.float16, (4, 8)), np.zeros(SHARED, np.uint8)
    body = _store_body(STORE, 2, (0, 0)).replace("fence.proxy.async.shared::cta;", "")
    faults(
        body,
        TensorArgument(array, (4, 8)),
        image,
        kind="proxy",
        match=r"no fence.proxy.async between",
        threads=THREADS,
        shared=SHARED,
    )


def test_overwriting_a_store_in_flight():
    array, image = _array(np.float16, (4, 8)), np.zeros(SHARED, np.uint8)
    late = "st.shared.b32 [%r1], %r0;"
    argument = TensorArgument(array, (4, 8))
    options = {"threads": THREADS, "shared": SHARED}
    run(
        _store_body(STORE, 2, (0, 0), "cp.async.bulk.wait_group.read 0;" + late),
        argument,
        image,
        **options,
    )
    faults(
        _store_body(STORE, 2, (0, 0), "cp.async.bulk.wait_group.read 1;" + late),
        argument,
        image,
        kind="in-flight",
        **options,
    )


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (lambda a: TensorArgument(a, (4, 4)), "box of dimension 0 is 8 bytes"),
        (lambda a: TensorArgument(a[:, :3], (4, 300)), "box of dimension 0 is 300"),
        (lambda a: TensorArgument(a, (4, 8), 48), "swizzle of 48"),
        (lambda a: TensorArgument(a.T, (8, 4)), "last axis is not dense"),
        (lambda a: TensorArgument(a.view(np.complex64), (4, 4)), "no tensor map of complex64"),
        (lambda a: TensorArgument(a[:, 1:], (4, 8)), "the address"),
    ],
)
def test_arguments_refused_by_the_driver(argument, message):
    array, out = np.zeros((4, 8), np.float16), np.zeros(SHARED, np.uint8)
    with pytest.raises(EmulationError, match=message):
        run(_plain(), argument(array), out, threads=THREADS, shared=SHARED + 8)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (".tile.", ".im2col.", "the mode .im2col"),
        (".tile.", ".tile::gather4.", "the modifier .tile::gather4"),
        ("tensor.2d", "tensor", "number of dimensions"),
        (".mbarrier::complete_tx::bytes", "", "without .mbarrier::complete_tx::bytes"),
    ],
)
def test_other_modes_are_refused(old, new, message):
    array, out = np.zeros((4, 8), np.float16), np.zeros(SHARED, np.uint8)
    with pytest.raises(EmulationError, match=message):
        body = _plain(change=(old, new))
        run(body, TensorArgument(array, (4, 8)), out, threads=THREADS, shared=SHARED + 8)


def test_a_block_that_ends_while_a_store_reads_its_memory() -> None:
    array, image = _array(np.float16, (4, 8)), np.zeros(SHARED, np.uint8)
    faults(
        _store_body(STORE, 2, (0, 0)),
        TensorArgument(array, (4, 8)),
        image,
        kind="ended",
        match="after the last thread of the CTA has exited",
        threads=THREADS,
        shared=SHARED,
    )
