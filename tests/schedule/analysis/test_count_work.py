"""Work counts equal those of a walk through the kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.expression import evaluate, parse
from aotc.ir.text import parse_kernel
from aotc.schedule.analysis.count_work import count_work
from aotc.schedule.analysis.launch_values import LaunchValues
from aotc.work import Transfer, Work
from tests.support.every_op import SAMPLES, ops_of, sample_kernel

ROW = "#ll<register=[[1],[2],[4]] lane=[[8],[16],[32],[64],[128]] warp=[[256],[512]] : [1024]>"

LOOP = f"""\
#0 = {ROW}
kernel @rows(%x: *bf16, %out: *bf16, %n: i32) {{num_warps = 4}} {{
  %pid = tile.program_id {{axis = 0}} : i32
  %row = arith.mul(%pid, %n) : i32
  %zero = arith.constant {{value = 0, type = i32}} : i32
  %step = arith.constant {{value = 1024, type = i32}} : i32
  %lanes = tile.arange {{start = 0, end = 1024, layout = #0}} : tile<1024xi32, #0>
  %base = arith.addptr(%x, %row) : *bf16
  %bases = tile.splat(%base) {{shape = [1024], layout = #0}} : tile<1024x*bf16, #0>
  %ends = tile.splat(%n) {{shape = [1024], layout = #0}} : tile<1024xi32, #0>
  %fill = arith.constant {{value = 0.0, type = tile<1024xbf16, #0>}} : tile<1024xbf16, #0>
  scf.for(%zero, %n, %step) (%start: i32) {{
    %starts = tile.splat(%start) {{shape = [1024], layout = #0}} : tile<1024xi32, #0>
    %cols = arith.add(%starts, %lanes) : tile<1024xi32, #0>
    %places = arith.addptr(%bases, %cols) : tile<1024x*bf16, #0>
    %mask = arith.compare(%cols, %ends) {{predicate = "lt"}} : tile<1024xi1, #0>
    %values = gpu.load(%places, %mask, %fill) {{vector = 8}} : tile<1024xbf16, #0>
    %wide = arith.cast(%values) {{dtype = fp32}} : tile<1024xfp32, #0>
    %powers = arith.exp2(%wide) : tile<1024xfp32, #0>
    %narrow = arith.cast(%powers) {{dtype = bf16}} : tile<1024xbf16, #0>
    gpu.store(%places, %narrow, %mask) {{vector = 8}}
    scf.yield()
  }}
  scf.return
}}
"""


def _named(work: Work, **launch: int) -> dict[str, int]:
    """Evaluate all names used by expressions."""
    values = {"__p0": 0, **launch}
    for name, text in work.values:
        values[name] = evaluate(parse(text), values)
    return values


def _values(work: Work, **launch: int) -> list[int]:
    """Return how often each segment runs in a program."""
    values = _named(work, **launch)
    often: list[int] = []
    for segment in work.segments:
        times = evaluate(parse(segment.times), values)
        often.append(times if segment.parent < 0 else times * often[segment.parent])
    return often


@given(st.integers(0, 1 << 20))
def test_loop_over_a_row(n: int) -> None:
    work = count_work(parse_kernel(LOOP))
    outside, loop = work.segments
    assert outside.parent == -1
    assert _values(work, n=n) == [1, -(-n // 1024)]
    load, store = loop.transfers
    assert (load.argument, load.size_bytes, load.is_store, load.moves) == ("x", 2048, False, True)
    assert (store.size_bytes, store.is_store) == (2048, True)
    assert load.stages == 0
    (part,) = load.parts
    assert (part.extent, part.of_loop) == (1024, True)
    values = _named(work, n=n, __p0=3)
    assert evaluate(parse(part.inside), values) == n
    assert [evaluate(parse(text), values) for text in load.origins] == [6 * n]


def test_costs_follow_from_layouts() -> None:
    """Eight elements a thread, four warps: one access, eight exponentials, packed conversions."""
    _, loop = count_work(parse_kernel(LOOP)).segments
    assert loop.special == 4 * 8
    assert loop.wavefronts == 4 * 1
    # Widening takes 8, ex2 8, narrowing 4, an address, a mask value, a load and a store 1 or so each.
    assert 4 * 20 <= loop.instructions <= 4 * 30
    assert loop.stall > 600


BRANCHES = """\
kernel @branches(%n: i32, %m: i32, %flag: *i32) {num_warps = 4} {
  %zero = arith.constant {value = LOWER, type = i32} : i32
  %step = arith.constant {value = STEP, type = i32} : i32
  scf.for(%zero, %n, %step) (%i: i32) {
    %test = arith.compare(OPERANDS) {predicate = "PREDICATE"} : i1
    scf.if(%test) () {
      %a = arith.add(%i, %m) : i32
      scf.yield()
    } () {
      %b = arith.sub(%i, %m) : i32
      %c = arith.sub(%b, %m) : i32
      scf.yield()
    }
    scf.yield()
  }
  scf.return
}
"""
_COMPARE = {
    "lt": int.__lt__,
    "le": int.__le__,
    "gt": int.__gt__,
    "ge": int.__ge__,
}


@given(
    st.integers(-50, 50),
    st.integers(1, 9),
    st.integers(-60, 200),
    st.integers(-60, 200),
    st.sampled_from(sorted(_COMPARE)),
    st.booleans(),
)
def test_branches_on_the_counter_of_a_loop(
    lower: int, step: int, n: int, m: int, predicate: str, swapped: bool
) -> None:
    text = BRANCHES.replace("LOWER", str(lower)).replace("STEP", str(step))
    text = text.replace("PREDICATE", predicate)
    text = text.replace("OPERANDS", "%m, %i" if swapped else "%i, %m")
    work = count_work(parse_kernel(text))
    compare = _COMPARE[predicate]
    branches = [compare(m, i) if swapped else compare(i, m) for i in range(lower, n, step)]
    _, loop, then, orelse = _values(work, n=n, m=m)
    assert loop == len(branches)
    assert (then, orelse) == (sum(branches), len(branches) - sum(branches))


def test_branch_on_what_is_not_known_runs_half_the_time() -> None:
    text = BRANCHES.replace("LOWER", "0").replace("STEP", "1")
    text = text.replace(
        '%test = arith.compare(OPERANDS) {predicate = "PREDICATE"} : i1',
        "%loaded = gpu.load(%flag) : i32\n"
        '    %test = arith.compare(%loaded, %m) {predicate = "lt"} : i1',
    )
    _, loop, then, orelse = _values(count_work(parse_kernel(text)), n=100, m=3)
    assert (loop, then, orelse) == (100, 50, 50)


NESTED = """\
kernel @nested(%n: i32, %m: i32) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  scf.for(%zero, %n, %one) (%i: i32) {
    scf.for(%zero, %i, %one) (%j: i32) {
      %a = arith.add(%i, %j) : i32
      scf.yield()
    }
    scf.yield()
  }
  scf.return
}
"""


@given(st.integers(0, 1000))
def test_inner_loop_counts_as_in_the_middle_of_the_outer(n: int) -> None:
    _, outer, inner = _values(count_work(parse_kernel(NESTED)), n=n)
    assert outer == n
    assert inner == n * (n // 2)


CARRIED = """\
kernel @carried(%x: *fp32, %n: i32) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %eight = arith.constant {value = 8, type = i32} : i32
  %last = scf.for(%zero, %n, %one, %x) (%i: i32, %place: *fp32) {
    %value = gpu.load(%place) : fp32
    %same = gpu.load(%x) : fp32
    %next = arith.addptr(%place, %eight) : *fp32
    scf.yield(%next)
  } : *fp32
  scf.return
}
"""


def test_pointer_that_walks_loads_new_bytes() -> None:
    _, loop = count_work(parse_kernel(CARRIED)).segments
    walking, same = loop.transfers
    assert walking == Transfer("x", 4, False, ("0",), moves=True)
    assert same == Transfer("x", 4, False, ("0",), moves=False)


@pytest.mark.parametrize("opcode", SAMPLES)
def test_every_op_is_counted(opcode: str) -> None:
    """Counting also works on tile IR and before layouts: nothing compilable may fail here."""
    kernel = sample_kernel(opcode)
    for op in ops_of(kernel, opcode):
        values = LaunchValues(kernel)
        assert all(values[out] is None or values[out].num_nodes > 0 for out in op.results)
    assert count_work(kernel).segments


def test_kernels_without_work() -> None:
    kernel = parse_kernel("kernel @empty() {num_warps = 1} {\n  scf.return\n}\n")
    (segment,) = count_work(kernel).segments
    assert (segment.transfers, segment.dots, segment.wavefronts) == ((), (), 0)


def test_assembly_without_arguments_is_counted() -> None:
    kernel = parse_kernel("""\
kernel @k(%out: *i32) {num_warps = 1} {
  %sm = asm.inline() {text = "mov.u32 $0, %smid;", constraints = "=r", dtypes = [i32], pack = 1} : i32
  scf.return
}
""")
    assert count_work(kernel).segments


def test_deep_branches_take_no_longer_than_shallow_ones() -> None:
    """A chain of a hundred branches in a loop, each in the other arm of the one before."""
    depth = 100
    lines = ["kernel @chain(%n: i32, %m: i32) {num_warps = 1} {"]
    lines += ["%zero = arith.constant {value = 0, type = i32} : i32"]
    lines += ["%one = arith.constant {value = 1, type = i32} : i32"]
    lines += ["scf.for(%zero, %n, %one) (%i: i32) {"]
    for depth_index in range(depth):
        lines += [f"%c{depth_index} = arith.constant {{value = {depth_index}, type = i32}} : i32"]
        lines += [f'%t{depth_index} = arith.compare(%i, %c{depth_index}) {{predicate = "eq"}} : i1']
        lines += [f"scf.if(%t{depth_index}) () {{", "scf.yield()", "} () {"]
    lines += ["scf.yield()", "}"] * depth
    lines += ["scf.yield()", "}", "scf.return", "}"]
    work = count_work(parse_kernel("\n".join(lines) + "\n"))
    assert len(work.segments) == 2 + 2 * depth
    assert all(len(segment.times) < 1000 for segment in work.segments)
    assert all(often >= 0 for often in _values(work, n=1000))


def test_arguments_may_have_any_name() -> None:
    text = CARRIED.replace("%n", "%pid0").replace("%x", "%program")
    _, loop = count_work(parse_kernel(text)).segments
    assert _values(count_work(parse_kernel(text)), pid0=7) == [1, 7]
    assert loop.transfers[0].argument == "program"
