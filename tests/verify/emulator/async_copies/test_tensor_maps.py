"""Tensor maps edited by a kernel: their fields, and the fences that publish an edit."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from aotc.verify.emulator.async_copies.tensor_argument import TensorArgument, TensorTable
from aotc.verify.emulator.errors import EmulationError, Fault
from tests.support.ptx_kernel import faults, run

MAP, BARRIER = 1024, 1152
SHARED = 1160
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"

INIT = f"""
    setp.eq.u32 %p1, %r0, 0;
    setp.lt.u32 %p2, %r0, 8;
    mad.lo.u32 %r2, %r0, 16, %r1;
    mad.wide.u32 %rd20, %r0, 16, %rd0;
    @%p1 mbarrier.init.shared.b64 [%r1+{BARRIER}], 1;
    fence.mbarrier_init.release.cluster;
    @%p2 ld.v4.b32 {{%r10, %r11, %r12, %r13}}, [%rd20];
    @%p2 st.shared.v4.b32 [%r2+{MAP}], {{%r10, %r11, %r12, %r13}};
    bar.sync 0;
"""
REPLACE = """
    @%p1 tensormap.replace.tile.{field}.shared::cta.b1024.b{bits} [%r1+{map}], {rest};
"""
PUBLISH = f"""
    bar.sync 0;
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned \
[%rd1], [%r1+{MAP}], 128;
"""
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;\n"
COPY = f"""
    @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd30, [%r1+{BARRIER}], {{count_bytes}};
    @%p1 {LOAD} [%r1], [{{map}}, {{origin}}], [%r1+{BARRIER}];
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p3, [%r1+{BARRIER}], 0;
    @!%p3 bra WAIT;
    mad.wide.u32 %rd21, %r0, 16, %rd2;
    setp.lt.u32 %p4, %r0, {{chunks}};
    @%p4 ld.shared.v4.b32 {{{{%r10, %r11, %r12, %r13}}}}, [%r2];
    @%p4 st.global.v4.b32 [%rd21], {{{{%r10, %r11, %r12, %r13}}}};
"""


def replace(field, rest, bits=32):
    return REPLACE.format(field=field, rest=rest, bits=bits, map=MAP)


def copy(tensor="%rd1", origin="{0, 0}", count_bytes=512):
    chunks = count_bytes // 16
    return COPY.format(map=tensor, origin=origin, count_bytes=count_bytes, chunks=chunks)


def _arguments(dtype=np.float32):
    rng = np.random.default_rng(0)
    array, other = (rng.standard_normal((8, 16)).astype(dtype) for _ in range(2))
    return (
        TensorArgument(array, (8, 16)),
        np.zeros(16, np.uint64),
        np.zeros(128, np.float32),
        other,
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_an_edited_map_is_used(seed):
    """Another tensor, of fewer rows: the box's last rows are outside."""
    arguments = _arguments()
    body = INIT + replace("global_address", "%rd3", 64) + replace("global_dim", "1, 5")
    run(body + PUBLISH + ACQUIRE + copy(), *arguments, shared=SHARED, seed=seed)
    expected = arguments[3].copy()
    expected[5:] = 0
    np.testing.assert_array_equal(arguments[2].reshape(8, 16), expected)


def test_every_field_can_be_set():
    """Strides, box, element strides, type, swizzle and fill, one by one, of a map of rank 1."""
    rng = np.random.default_rng(1)
    data = rng.integers(0, 2**16, (16, 32), np.uint16)
    out = np.zeros(128, np.float32)
    edits = [
        ("rank", "1"),
        ("global_stride", "0, %rd22", 64),
        ("elemtype", "6"),
        ("global_dim", "0, 32"),
        ("global_dim", "1, 16"),
        ("box_dim", "0, 16"),
        ("box_dim", "1, 16"),
        ("element_stride", "0, 1"),
        ("element_stride", "1, 2"),
        ("interleave_layout", "0"),
        ("swizzle_mode", "1"),
        ("swizzle_atomicity", "0"),
        ("fill_mode", "1"),
    ]
    body = INIT + "mov.b64 %rd22, 64;" + "".join(replace(*edit) for edit in edits)
    body += PUBLISH + ACQUIRE + copy(origin="{8, 4}", count_bytes=256)
    run(
        body,
        TensorArgument(data.reshape(-1), (8,)),
        np.zeros(16, np.uint64),
        out,
        shared=SHARED,
    )
    box = np.full((8, 16), 0x7FF7, np.uint16)
    box[:6] = data[4::2, 8:24]
    actual = out[:64].view(np.uint16).reshape(8, 2, 8)
    lines = np.arange(8) * 32 // 128 & 1
    unswizzled = np.where(lines[:, None, None] == 1, actual[:, ::-1], actual).reshape(8, 16)
    np.testing.assert_array_equal(unswizzled, box)


ZEROS = f"""
    mov.b32 %r10, 0;
    bar.sync 0;
    @%p2 st.shared.v4.b32 [%r2+{MAP}], {{%r10, %r10, %r10, %r10}};
    bar.sync 0;
"""
WHOLE = (
    ("rank", "1"),
    ("global_address", "%rd3", 64),
    ("elemtype", "7"),
    ("global_dim", "0, 16"),
    ("global_dim", "1, 8"),
    ("global_stride", "0, %rd22", 64),
    ("box_dim", "0, 16"),
    ("box_dim", "1, 8"),
    ("element_stride", "0, 1"),
    ("element_stride", "1, 1"),
)


def _made(edits=WHOLE):
    return INIT + ZEROS + "mov.b64 %rd22, 64;" + "".join(replace(*edit) for edit in edits)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_map_is_made_of_zeros(seed):
    """As for a map made by a kernel, not encoded by a host: unset fields are 0."""
    arguments = _arguments()
    run(_made() + PUBLISH + ACQUIRE + copy(), *arguments, shared=SHARED, seed=seed)
    np.testing.assert_array_equal(arguments[2].reshape(8, 16), arguments[3])


@pytest.mark.parametrize("missing", range(len(WHOLE)))
def test_an_unset_field(missing):
    edits = [edit for index, edit in enumerate(WHOLE) if index != missing]
    body = _made(edits) + PUBLISH + ACQUIRE + copy()
    if WHOLE[missing][0] == "rank":
        faults(body, *_arguments(), kind="tensor-map", match="no dimension 1", shared=SHARED)
        return
    arguments = _arguments()
    with contextlib.suppress(Fault):
        run(body, *arguments, shared=SHARED)
    assert not np.array_equal(arguments[2].reshape(8, 16), arguments[3])


@pytest.mark.parametrize("distance", [0, 128])
def test_each_cta_makes_a_map_of_its_own(distance):
    map_pointer = f"mov.u32 %r40, %ctaid.x; mad.wide.u32 %rd1, %r40, {distance}, %rd1;"
    arguments = list(_arguments())
    arguments[1] = np.zeros(32, np.uint64)
    body = _made() + map_pointer + PUBLISH + ACQUIRE + copy()
    if distance:
        run(body, *arguments, shared=SHARED, grid=2)
        return
    faults(body, *arguments, kind="race", match="another thread edits", shared=SHARED, grid=2)


EDIT = replace("global_dim", "1, 5") + PUBLISH + ACQUIRE


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_an_edit_while_a_load_is_in_flight(waits, seed):
    """The load may read the map when it has changed, unless the warp has waited for the load."""
    before, waiting = copy().split("WAIT:")
    after = "WAIT:" + waiting
    body = _made() + PUBLISH + ACQUIRE + before + (after + EDIT if waits else EDIT + after)
    if waits:
        run(body, *_arguments(), shared=SHARED, seed=seed)
        return
    match = "copy in flight may still read"
    faults(body, *_arguments(), kind="race", match=match, shared=SHARED, seed=seed)


@pytest.mark.parametrize("waits", [True, False])
def test_an_edit_while_a_store_is_in_flight(waits):
    store = """
    @%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {0, 0}], [%r1];
    @%p1 cp.async.bulk.commit_group;
    """
    wait = "cp.async.bulk.wait_group.read 0;"
    fill = "@%p2 st.shared.v4.b32 [%r2], {%r10, %r10, %r10, %r10};" + "".join(
        f"@%p2 st.shared.v4.b32 [%r2+{128 * row}], {{%r10, %r10, %r10, %r10}};"
        for row in range(1, 4)
    )
    body = _made() + fill + "fence.proxy.async; bar.sync 0;" + PUBLISH + ACQUIRE + store
    body += (wait if waits else "") + EDIT + wait
    if waits:
        run(body, *_arguments(), shared=SHARED)
        return
    faults(body, *_arguments(), kind="race", match="copy in flight", shared=SHARED)


def test_a_map_of_a_table():
    """Made by the host: acquired from the system, by a thread of the CTA."""
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal((8, 16)).astype(np.float32) for _ in range(3)]
    table = TensorTable(tuple(TensorArgument(array, (8, 16)) for array in arrays))
    out = np.zeros(128, np.float32)
    body = f"""
    mad.lo.u32 %r2, %r0, 16, %r1;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r1+{BARRIER}], 1;
    fence.mbarrier_init.release.cluster;
    bar.sync 0;
    add.u64 %rd1, %rd0, 256;
    """
    fenced = body + ACQUIRE.replace("gpu", "sys")
    run(fenced + copy(), table, 0, out, shared=SHARED)
    np.testing.assert_array_equal(out.reshape(8, 16), arrays[2])
    for wrong in (body, body + ACQUIRE, fenced.replace("[%rd1]", "[%rd0]")):
        faults(wrong + copy(), table, 0, out, kind="proxy", match="acquire.sys", shared=SHARED)
    off = body.replace("256", "272")
    faults(off + copy(), table, 0, out, kind="tensor-map", match="no multiple of 64", shared=SHARED)
    with pytest.raises(EmulationError, match=r"argument 0\[1\]: the box"):
        bad = TensorTable((table.tensors[0], TensorArgument(arrays[0], (8, 300))))
        run(body, bad, 0, out, shared=SHARED)


def test_an_unacquired_edit():
    body = INIT + replace("global_dim", "1, 5") + PUBLISH + copy()
    faults(body, *_arguments(), kind="proxy", match="generic.acquire between", shared=SHARED)


@pytest.mark.parametrize("meets", [True, False])
def test_a_warp_may_acquire_for_later_warps(meets):
    """One warp publishes and acquires; a thread of the other one copies."""
    head = INIT.replace("%r0, 0;", "%r0, 0; setp.lt.u32 %p5, %r0, 32; setp.eq.u32 %p6, %r0, 32;")
    body = head + replace("global_dim", "1, 5") + "bar.sync 0;" + "@!%p5 bra THERE;"
    body += PUBLISH.replace("bar.sync 0;", "") + ACQUIRE + "THERE:" + "bar.sync 0;" * meets
    body += copy().replace("@%p1", "@%p6")
    if meets:
        arguments = _arguments()
        run(body, *arguments, shared=SHARED, threads=64)
        np.testing.assert_array_equal(arguments[2].reshape(8, 16)[:5], arguments[0].array[:5])
    else:
        faults(body, *_arguments(), kind=("proxy", "race"), shared=SHARED, threads=64)


def test_acquiring_before_the_edit_is_not_enough():
    body = INIT + replace("global_dim", "1, 5") + ACQUIRE + PUBLISH + copy()
    faults(body, *_arguments(), kind="proxy", match="generic.acquire between", shared=SHARED)


@pytest.mark.parametrize("scope", ["cta", "cluster"])
def test_fences_of_a_narrow_scope_publish_nothing(scope):
    edit = INIT + replace("global_dim", "1, 5")
    for body in (PUBLISH.replace("gpu", scope) + ACQUIRE, PUBLISH + ACQUIRE.replace("gpu", scope)):
        faults(edit + body + copy(), *_arguments(), kind="proxy", match="gpu", shared=SHARED)


def test_an_edit_is_acquired_after_it():
    """By a thread not ordered after the publishing one."""
    warp = "setp.lt.u32 %p5, %r0, 32; @!%p5 bra USER;" + replace("global_dim", "1, 5")
    publish = PUBLISH.replace("bar.sync 0;", "bar.warp.sync -1;")
    # %p1 is the first thread of the other warp from here on.
    use = "USER: setp.eq.u32 %p1, %r0, 32; setp.ge.u32 %p5, %r0, 32; {barrier} @!%p5 bra END;"
    body = INIT + warp + publish + use + ACQUIRE + copy() + "END:"
    run(body.replace("{barrier}", "bar.sync 0;"), *_arguments(), threads=64, shared=SHARED)
    wrong = body.replace("{barrier}", "")
    faults(wrong, *_arguments(), kind="proxy", match="acquire", threads=64, shared=SHARED)


def test_an_edit_in_global_memory_is_released_too():
    edit = INIT + PUBLISH + ACQUIRE
    edit += (
        "@%p1 tensormap.replace.tile.global_dim.global.b1024.b32 [%rd1], 1, 5; bar.warp.sync -1;"
    )
    release = "fence.proxy.tensormap::generic.release.gpu;"
    arguments = _arguments()
    faults(
        edit + ACQUIRE + copy(),
        *arguments,
        kind="proxy",
        match="generic.release between",
        shared=SHARED,
    )
    run(edit + release + ACQUIRE + copy(), *arguments, shared=SHARED)
    assert not arguments[2].reshape(8, 16)[5:].any()
    np.testing.assert_array_equal(arguments[2].reshape(8, 16)[:5], arguments[0].array[:5])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (replace("box_dim", "0, 3"), "box of dimension 0 is 12 bytes"),
        (replace("rank", "2"), "dimension 2 is 0|box of 2 dimensions"),
        (replace("rank", "5"), "rank is 6"),
        (replace("elemtype", "99"), "element type 99"),
        (replace("box_dim", "2, 8"), "box_dim has no dimension 2"),
        (replace("elemtype", "11"), "conversion to tf32"),
        (replace("swizzle_atomicity", "1"), "needs the 128-byte swizzle"),
    ],
)
def test_invalid_maps_are_named(edit, message):
    body = INIT + edit + PUBLISH + ACQUIRE + copy()
    faults(body, *_arguments(), kind="tensor-map", match=message, shared=SHARED)


def test_editing_other_bytes():
    body = INIT + "@%p1 st.shared.b32 [%r1+1024], 1;" + replace("rank", "1")
    faults(body, *_arguments(), kind="tensor-map", match="no tensor map", shared=SHARED)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensormap.replace.tile.colour.shared::cta.b1024.b32 [%r1], 1;", "tile.colour"),
        ("tensormap.replace.tile.rank.local.b1024.b32 [%r1], 1;", "local"),
        ("tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r1], %r0, 1;", "no constant"),
        (PUBLISH.replace("128;", "64;"), "a size other than 128"),
        ("fence.proxy.tensormap::generic.sc.gpu;", "other than .release"),
    ],
)
def test_other_forms_are_refused(text, message):
    with pytest.raises(EmulationError, match=message):
        run(INIT + text, *_arguments(), shared=SHARED)
