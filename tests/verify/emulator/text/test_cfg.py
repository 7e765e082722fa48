"""Post-dominators, liveness and definedness, against definitions taken literally."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.verify.emulator.errors import EmulationError
from aotc.verify.emulator.text.cfg import Loop, analyse, build_cfg, nests_of
from aotc.verify.emulator.text.effects import effect_of
from aotc.verify.emulator.text.parse import parse_module

NUM_REGISTERS = 4


def instructions_of(body):
    text = f".entry k() {{ .reg .pred %p<2>; .reg .b32 %r<{NUM_REGISTERS}>; {body} }}"
    return parse_module(text).kernels["k"].instructions


def test_diamond_and_loop():
    instructions = instructions_of(
        """
        @%p1 bra right;
        mov.b32 %r1, 1;
        bra join;
    right:
        mov.b32 %r1, 2;
    join:
        add.s32 %r1, %r1, 1;
        @%p1 bra join;
        ret;
        """
    )
    blocks = build_cfg(instructions).blocks
    assert [(block.start, block.reconvergence) for block in blocks] == [
        (0, 4),
        (1, 4),
        (3, 4),
        (4, 6),
        (6, 7),
    ]


def test_a_trap_is_no_way_out():
    instructions = instructions_of("@%p1 bra fine; trap; fine: mov.b32 %r1, 1; ret;")
    assert build_cfg(instructions).blocks[0].reconvergence == 2


def test_an_endless_loop_meets_nowhere():
    instructions = instructions_of("@%p1 bra out; again: bra again; out: ret;")
    assert build_cfg(instructions).blocks[1].reconvergence == len(instructions)


def test_control_must_not_run_out():
    with pytest.raises(EmulationError, match="control runs past the end"):
        build_cfg(instructions_of("ret; mov.b32 %r1, 1;"))


@st.composite
def programs(draw):
    """Return instructions of random blocks: a few moves, then any jump."""
    count = draw(st.integers(1, 7))
    lines = []
    for block in range(count):
        lines.append(f"b{block}:")
        for _ in range(draw(st.integers(0, 2))):
            target, source = draw(st.tuples(*[st.integers(0, NUM_REGISTERS - 1)] * 2))
            guard = draw(st.sampled_from(["", "@%p1 "]))
            lines.append(f"{guard}add.s32 %r{target}, %r{source}, 1;")
        label = draw(st.integers(0, count - 1))
        kinds = [f"bra b{label};", "ret;"]
        if block + 1 < count:
            kinds += [f"@%p1 bra b{label};", "@%p1 ret;", "mov.b32 %r0, 0;"]
        lines.append(draw(st.sampled_from(kinds)))
    return instructions_of("\n".join(lines))


def edges_of(cfg, instructions):
    """Return each block's successors, -1 being the exit."""
    edges = {}
    for index, block in enumerate(cfg.blocks):
        leaves = instructions[block.stop - 1].opcode == "ret"
        edges[index] = [*block.successors, *([-1] if leaves else [])]
    return edges


def reaches_exit(edges, start, without=None):
    seen, stack = set(), [start]
    while stack:
        node = stack.pop()
        if node == -1:
            return True
        if node not in seen and node != without:
            seen.add(node)
            stack += edges[node]
    return False


@given(programs())
def test_reconvergence_is_the_immediate_post_dominator(instructions):
    cfg = build_cfg(instructions)
    edges = edges_of(cfg, instructions)
    for index, block in enumerate(cfg.blocks):
        if not reaches_exit(edges, index):
            continue
        post = [
            other
            for other in edges
            if other != index and not reaches_exit(edges, index, without=other)
        ]
        # The nearest one is post-dominated by all the others.
        nearest = [
            node
            for node in post
            if all(not reaches_exit(edges, node, without=other) for other in post if other != node)
        ]
        expected = cfg.blocks[nearest[0]].start if nearest else len(instructions)
        assert block.reconvergence == expected


@given(programs())
def test_live_registers_are_read_first_on_some_path(instructions):
    cfg = build_cfg(instructions)
    flow = analyse(instructions, cfg)
    for index, block in enumerate(cfg.blocks):
        for register, number in flow.numbers.items():
            expected = reads_first(instructions, cfg, block.start, register)
            assert bool(flow.live_in[index] >> number & 1) == expected


def reads_first(instructions, cfg, start, register):
    seen, stack = set(), [start]
    while stack:
        index = stack.pop()
        if index in seen or index == len(instructions):
            continue
        seen.add(index)
        effect = effect_of(instructions[index])
        if register in effect.reads:
            return True
        if register not in effect.writes or instructions[index].guard:
            stack += following(instructions, cfg, index)
    return False


def following(instructions, cfg, index):
    block = next(block for block in cfg.blocks if block.start <= index < block.stop)
    if index + 1 < block.stop:
        return [index + 1]
    return [cfg.blocks[successor].start for successor in block.successors]


@given(programs())
def test_undefined_registers_are_unwritten_on_some_path(instructions):
    cfg = build_cfg(instructions)
    flow = analyse(instructions, cfg)
    live = {register for register, number in flow.numbers.items() if flow.live_in[0] >> number & 1}
    assert set(flow.maybe_undefined) == live


def test_nested_loops():
    """Blocks after a loop that lead back into it belong to it; its first may be entered last."""
    body = """
    outer: add.s32 %r1, %r1, 1;
    inner: add.s32 %r2, %r2, 1; @%p1 bra far;
    near: @%p1 bra inner;
    @%p1 bra outer; bra test;
    far: add.s32 %r3, %r3, 1; bra near;
    again: add.s32 %r3, %r3, 1;
    test: @%p1 bra again;
    ret;
    """
    cfg = build_cfg(instructions_of(body))
    outer, inner, rotated = Loop(0, 0), Loop(1, 1), Loop(8, 9)
    assert list(zip([block.start for block in cfg.blocks], nests_of(cfg), strict=True)) == [
        (0, (outer,)), (1, (outer, inner)), (3, (outer, inner)), (4, (outer,)), (5, ()),
        (6, (outer, inner)), (8, (rotated,)), (9, (rotated,)), (10, ()),
    ]  # fmt: skip


def test_a_cycle_with_two_entries_is_no_loop():
    cfg = build_cfg(instructions_of("@%p1 bra b; a: @%p1 bra c; b: bra a; c: ret;"))
    assert nests_of(cfg) == [()] * 4
