"""Long chains of `elif`, as in generated code."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.frontend.survey.support import Survey
from aotc.verify.interpreter.run import run
from tests.frontend.conftest import Sources

COUNTS = [2, 17, 33, 49, 64, 65, 66, 500]


def chain(count: int, body: str, otherwise: str = "", *, test: str = "n == {}") -> str:
    """Return an if-chain of `count` links; `{}` in the body is the link's number."""
    lines: list[str] = []
    for number in range(count):
        word = "elif" if number else "if"
        lines.append(f"{word} {test.format(number)}:")
        lines += [f"    {line.format(number)}" for line in body.splitlines()]
    if otherwise:
        lines += ["else:", *(f"    {line}" for line in otherwise.splitlines())]
    return "\n".join(lines)


def kernel(text: str, after: str = "", before: str = "") -> str:
    lines = [*before.splitlines(), *text.splitlines(), *after.splitlines()]
    return "@triton.jit\ndef k(p, n, m):\n" + "".join(f"    {line}\n" for line in lines)


def results(sources: Sources, text: str, numbers: list[int]) -> list[float]:
    """Return a kernel's output for each n."""
    signature = {"p": "*fp32", "n": "i32", "m": "i32"}
    translation = sources.translate(text, signature).kernel
    stored: list[float] = []
    for number in numbers:
        run(translation, (1,), [out := np.full(1, -1, np.float32), number, 3])
        stored.append(float(out[0]))
    return stored


def some(count: int) -> list[int]:
    """Return numbers at the ends of a chain and of its groups, and numbers outside."""
    return [number for number in (0, 1, 15, 16, 17, 31, 32, count - 1) if number < count] + [
        -1,
        9999,
    ]


@pytest.mark.parametrize("count", COUNTS)
def test_variables(sources: Sources, count: int) -> None:
    body = "r = {0} * 2.0\nif {0} % 3 == 0:\n    kept = m + {0}"
    text = kernel(chain(count, body, "r = 0.5"), "tl.store(p, r + kept)", "kept = m * 100")
    expected = [
        number * 2 + (3 + number if number % 3 == 0 else 300) if 0 <= number < count else 300.5
        for number in some(count)
    ]
    assert results(sources, text, some(count)) == expected


@pytest.mark.parametrize("count", COUNTS)
def test_without_else(sources: Sources, count: int) -> None:
    text = kernel(chain(count, "r = {} + 7.0"), "tl.store(p, r)", "r = m * 1.0")
    expected = [number + 7 if 0 <= number < count else 3 for number in some(count)]
    assert results(sources, text, some(count)) == expected


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("form", ["elif", "if"])
def test_returns_of_a_helper(sources: Sources, count: int, form: str) -> None:
    """A variable set before and changed after, and a chain of `if` and `return` alike."""
    text = chain(count, "return x * {}")
    if form == "if":
        text = text.replace("elif", "if")
    lines = "".join(f"    {line}\n" for line in [*text.splitlines(), "return x - 0.5"])
    helper = f"@triton.jit\ndef f(x, n):\n{lines}"
    actual = results(sources, helper + kernel("tl.store(p, f(m * 1.0, n))"), some(count))
    assert actual == [3 * number if 0 <= number < count else 2.5 for number in some(count)]


@pytest.mark.parametrize("count", [3, 100])
def test_a_kernel_that_returns(sources: Sources, count: int) -> None:
    text = kernel(chain(count, "tl.store(p, {})\nreturn"), "tl.store(p, 77)")
    expected = [number if 0 <= number < count else 77 for number in some(count)]
    assert results(sources, text, some(count)) == expected


@pytest.mark.parametrize("count", [3, 100])
def test_tiles_and_pointers_in_a_loop(sources: Sources, count: int) -> None:
    body = "q = p + {0}\nt = tl.full([4], {0}, tl.float32)\nv = (n, {0})"
    text = chain(count, body, "q = p\nt = tl.zeros([4], tl.float32)\nv = (m, 0)")
    loop = "for i in range(m):\n" + "".join(f"    {line}\n" for line in text.splitlines())
    use = "    s += tl.sum(t) + v[0]\n    tl.store(q - (v[1] + 0), s)"
    assert results(sources, kernel(loop + use, "", "s = 0.0"), [1, count - 1]) == [
        15,
        3 * (4 * (count - 1) + count - 1),
    ]


@pytest.mark.parametrize("count", [3, 2000])
def test_constants_decide(sources: Sources, count: int) -> None:
    text = chain(count, "tl.store(p, {})", test="C == {}")
    ir = sources.text(
        kernel(text).replace("m)", "m, C: tl.constexpr)"),
        {"p": "*fp32", "n": "i32", "m": "i32"},
        {"C": count - 1},
    )
    assert "scf.if" not in ir
    assert ir.count("tile.store") == 1


def test_a_constant_among_the_links(sources: Sources) -> None:
    text = chain(100, "r = {} + 0.0", "r = -3.0", test="(n == {0} if {0} != 40 else {0} < 0)")
    actual = results(sources, kernel(text, "tl.store(p, r)"), [39, 40, 41, 99])
    assert actual == [39, -3, 41, 99]


def test_what_a_path_does_not_set_is_lost(sources: Sources) -> None:
    text = chain(100, "r = {}", "r = 3").replace("r = 70", "pass")
    signature = {"p": "*fp32", "n": "i32", "m": "i32"}
    error = sources.error(kernel(text, "tl.store(p, r)"), signature)
    assert "r has no value here: it is set only if the condition" in error.message


def test_types_meet_as_in_a_short_chain(sources: Sources) -> None:
    text = chain(100, "r = {}", "r = 3").replace("r = 70", "r = 0.5")
    signature = {"p": "*fp32", "n": "i32", "m": "i32"}
    error = sources.error(kernel(text, "tl.store(p, r)"), signature)
    assert "r is float32 in one branch of this `if`, and int32 in the other" in error.message


def test_blocks_of_a_long_chain_do_not_nest_deep(sources: Sources) -> None:
    text = kernel(chain(500, "r = {}", "r = 3"), "tl.store(p, r)")
    translation = sources.translate(text, {"p": "*fp32", "n": "i32", "m": "i32"}).kernel
    assert max(len(list(op.ancestors())) for op in translation.walk()) <= 20


def test_a_survey_looks_at_every_link(sources: Sources) -> None:
    text = chain(700, "tl.store(p, {})", "tl.store(p, tl.missing(n))")
    text = text.replace("tl.store(p, 3)", "tl.store(p, tl.absent(3))")
    path = sources.write(kernel(text))
    (support,) = Survey("sm_90a").functions(path)
    assert [refusal.message for refusal in support.refusals] == [
        "unknown name tl.absent",
        "unknown name tl.missing",
    ]
