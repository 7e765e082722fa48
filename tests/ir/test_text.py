"""Printing and parsing: round trips for every op, and errors at the right place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.core import Block, Kernel, Op
from aotc.ir.diagnostics import IRError, Loc, at
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.layout import LinearLayout
from aotc.ir.params import ParamInfo, TensorSource
from aotc.ir.rewrite import Builder
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.types import FP32, FP64, I32, DescriptorType, PointerType, TileType
from aotc.ir.verify import verify
from tests.support.every_op import SAMPLES, kernel_of, ops_of, sample_kernel
from tests.support.op_sampler import ROW


def _round_trip(kernel: Kernel, *, locs: bool = False) -> Kernel:
    text = print_kernel(kernel, locs=locs)
    again = parse_kernel(text)
    verify(again)
    assert print_kernel(again, locs=locs) == text
    return again


# ---- round trips ------------------------------------------------------------------------------


def test_every_op_has_a_sample() -> None:
    assert set(SAMPLES) == set(Op.registry)


@pytest.mark.parametrize("layout", [None, ROW], ids=["tile", "gpu"])
@pytest.mark.parametrize("opcode", SAMPLES)
def test_every_op_survives_the_round_trip(opcode: str, layout: LinearLayout | None) -> None:
    kernel = sample_kernel(opcode, layout=layout)
    verify(kernel)
    again = _round_trip(kernel)
    before, after = ops_of(kernel, opcode), ops_of(again, opcode)
    assert before
    assert len(after) == len(before)
    for old, new in zip(before, after, strict=True):
        assert repr(list(new.attributes.values())) == repr(list(old.attributes.values()))
        assert [v.type for v in new.results] == [v.type for v in old.results]
        assert [v is None for v in new.slots] == [v is None for v in old.slots]


def test_all_samples_in_one_kernel() -> None:
    tile_ops = [sample for name, sample in SAMPLES.items() if not name.startswith("gpu.")]
    _round_trip(kernel_of(tile_ops * 2))


def test_kernel_attributes() -> None:
    body = Block([I32])
    Builder(body)(scf.Return())
    kernel = Kernel(
        "naïve_kernel", (ParamInfo("n", 16),), body,
        num_warps=8, num_ctas=2, maxnreg=168, shared_bytes=1024,
    )  # fmt: skip
    again = _round_trip(kernel)
    assert (again.name, again.params) == (kernel.name, kernel.params)
    assert (again.num_warps, again.num_ctas) == (8, 2)
    assert (again.maxnreg, again.shared_bytes) == (168, 1024)


def test_what_the_launcher_describes_and_checks() -> None:
    body = Block([PointerType(FP32), I32, DescriptorType(FP32, (4, 8))])
    Builder(body)(scf.Return())
    source = TensorSource("x", ("max(1, n)", "8"), ("n * 2",))
    params = (ParamInfo("x", 16), ParamInfo("n"), ParamInfo("x.map", tensor=source))
    again = _round_trip(Kernel("k", params, body, guards=("n > 0", "n % 4 == 0")))
    assert again.params == params
    assert [info.argument for info in again.params] == ["x", "n", "x"]
    assert again.guards == ("n > 0", "n % 4 == 0")


@given(value=st.floats(), integer=st.integers(-(2**70), 2**70), text=st.text(max_size=20))
def test_literals(value: float, integer: int, text: str) -> None:
    body = Block()
    add = Builder(body)
    add(arith.Constant(value, FP64))
    add(arith.Constant(integer, I32))
    condition = add(
        arith.Constant(True, TileType(sample_kernel("tile.assert").body.args[0].type, (2,)))
    )  # type: ignore[arg-type]
    add(tile.Assert(condition.out, text))
    add(scf.Return())
    again = _round_trip(Kernel("k", (), body))
    constants = [op.value for op in again.walk() if isinstance(op, arith.Constant)]
    assert repr(constants) == repr([value, integer, True])
    assert [op.message for op in again.walk() if isinstance(op, tile.Assert)] == [text]


def test_locations_with_call_sites() -> None:
    body = Block([FP32])
    add = Builder(body)
    outer = Loc('caller "x".py', 40, 2, 9)
    with at(Loc("k.py", 3, 4, 9, call_site=outer)):
        add(arith.Neg(body.args[0]))
    add(scf.Return())
    kernel = Kernel("k", (ParamInfo("x"),), body, loc=Loc("k.py", 1, 0, 3))
    again = _round_trip(kernel, locs=True)
    first = again.body.first
    assert first is not None
    assert list(first.loc.chain()) == [Loc("k.py", 3, 4, 9, call_site=outer), outer]
    assert again.loc == Loc("k.py", 1, 0, 3)
    assert "loc(" not in print_kernel(kernel)


# ---- names ------------------------------------------------------------------------------------


def _named(*hints: str) -> str:
    body = Block([FP32])
    add = Builder(body)
    for hint in hints:
        add(arith.Neg(body.args[0])).out.hint = hint
    add(scf.Return())
    kernel = Kernel("k", (ParamInfo("x"),), body)
    _round_trip(kernel)
    lines = print_kernel(kernel).splitlines()[1:-2]
    return " ".join(line.split(" = ")[0].strip() for line in lines)


def test_hints_become_names_made_unique() -> None:
    assert _named("acc", "acc", "x", "", "acc") == "%acc %acc_1 %x_1 %0 %acc_2"
    assert _named("a", "a_1", "a", "a_1") == "%a %a_1 %a_2 %a_1_1"


def test_hints_that_are_no_names_become_numbers() -> None:
    assert _named("0", "a b", "", "ä", "3x") == "%0 %1 %2 %ä %3"


def test_printing_changes_nothing() -> None:
    body = Block([FP32], ["hint"])
    Builder(body)(scf.Return())
    kernel = Kernel("k", (ParamInfo("x"),), body)
    print_kernel(kernel)
    assert body.args[0].hint == "hint"


def test_layouts_are_named_once_in_order_of_use() -> None:
    text = print_kernel(sample_kernel("gpu.convert"))
    aliases = [line.split(" = ")[0] for line in text.splitlines() if line.startswith("#")]
    assert aliases == [f"#{index}" for index in range(len(aliases))]
    assert len(aliases) == 4


# ---- errors -----------------------------------------------------------------------------------

_HEAD = "kernel @k(%x: fp32, %n: i32) {num_warps = 4} {\n"


@pytest.mark.parametrize(
    ("body", "position", "message"),
    [
        ("  %y = arith.neg(%z) : fp32\n", "2:18", "expected a value defined before, got '%z'"),
        ("  %y = arith.nag(%x) : fp32\n", "2:8", "expected a known opcode, got 'arith.nag'"),
        ("  %y = arith.neg(%x, %x) : fp32\n", "2:8", "arith.neg takes 1 operands, got 2"),
        ("  %y = arith.neg() : fp32\n", "2:8", "lacks an operand"),
        ("  %y = arith.neg(%x) : fp16\n", "2:8", r"arith.neg has results \(fp32\)"),
        ("  arith.neg(%x)\n", "2:3", r"arith.neg has results \(fp32\)"),
        ("  %y, %z = arith.neg(%x) : fp32\n", "2:12", r"arith.neg has results \(fp32\)"),
        ("  %y = arith.add(%x, %n) : fp32\n", "2:8", "operands are fp32 and i32"),
        ("  %x = arith.neg(%x) : fp32\n", "2:3", "expected a name that is not taken, got '%x'"),
        ("  %y = arith.neg(%x : fp32\n", "2:21", "expected ',', got ':'"),
        ("  %y = arith.neg(%x) : fp33\n", "2:24", "expected a type, got 'fp33'"),
        ("  %y = arith.cast(%x) {dtype = 3} : fp32\n", "2:8", r"arith.cast has results \(3\)"),
        ("  %y = arith.cast(%x) {} : fp32\n", "2:8", "needs attribute dtype"),
        ("  %y = arith.cast(%x) {dtype = fp16, q = 1} : fp16\n", "2:8", "no attribute q"),
        ("  %y = tile.splat(%x) {shape = [4]} : tile<4xfp32, #7>\n", "2:52", "a layout defined"),
        ("  %y = tile.splat(%x) {shape = [4]} : shared<4xfp32>\n", "2:39", "a shared buffer"),
        ("  %y ? arith.neg(%x) : fp32\n", "2:6", "cannot read"),
        ('  tile.assert(%c) {message = "open}\n', "2:30", "cannot read"),
        ('  tile.barrier {message = "\\q"}\n', "2:27", "expected a string"),
    ],
)
def test_errors_name_their_place(body: str, position: str, message: str) -> None:
    with pytest.raises(IRError, match=message) as caught:
        parse_kernel(f"{_HEAD}{body}  scf.return\n}}\n", "dump.ir")
    line, col = position.split(":")
    assert caught.value.loc is not None
    assert (caught.value.loc.file, caught.value.loc.line) == ("dump.ir", int(line))
    assert str(caught.value).startswith(f"dump.ir:{line}:{col}: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected 'kernel', got 'the end'"),
        ("kernel", "expected a kernel name, got 'the end'"),
        (_HEAD + "  scf.return\n", "expected an op, got 'the end'"),
        (_HEAD + "  scf.return\n}\n}\n", "expected the end, got '}'"),
        ("kernel @k() {num_wraps = 4} {\n  scf.return\n}", "attributes among num_warps"),
        ("#0 = #ll<what>\n", "expected a layout like"),
    ],
)
def test_errors_of_the_whole(text: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        parse_kernel(text)


@given(st.data())
def test_damaged_text_is_an_ir_error_and_nothing_else(data: st.DataObject) -> None:
    text = print_kernel(sample_kernel(data.draw(st.sampled_from(list(SAMPLES)))), locs=True)
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start, min(len(text), start + 12)))
    patch = data.draw(st.text(alphabet='%#"{}()[]<>,:=*x_ 19.-efnan\n', max_size=4))
    try:
        kernel = parse_kernel(text[:start] + patch + text[end:])
    except IRError:
        return
    print_kernel(kernel)


def test_absent_operands_at_the_end_may_lack() -> None:
    kernel = parse_kernel(
        "kernel @k(%p: *fp32) {} {\n  %v = tile.load(%p) : fp32\n  scf.return\n}\n"
    )
    assert "tile.load(%p, _, _)" in print_kernel(kernel)
