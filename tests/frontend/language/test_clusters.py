"""Functions for the CTAs of a cluster and a grid: emitted ops, results, and errors."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.verify.interpreter.run import InterpretError, run
from tests.frontend.conftest import Sources

IMPORT = "import aotc.language as al\n"
NUM_CTAS = 4


def _kernel(body: str, params: str = "x_ptr, out_ptr") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{IMPORT}@triton.jit\ndef k({params}):\n{lines}"


ROWS = """
at = (tl.program_id(0) * al.cluster_size() + al.cluster_rank()) * 32 + tl.arange(0, 32)
x = tl.load(x_ptr + at)
VALUE
tl.store(out_ptr + at, x)
"""
SIGNATURE = {"x_ptr": "*i32", "out_ptr": "*i32"}


def _run(sources: Sources, value: str, num_ctas: int = NUM_CTAS) -> tuple[np.ndarray, np.ndarray]:
    """Return two clusters' rows, by cluster and rank, and the kernel's output."""
    translation = sources.translate(
        _kernel(ROWS.replace("VALUE", value)), SIGNATURE, num_ctas=num_ctas
    )
    x = np.random.default_rng(0).integers(-99, 99, (2, num_ctas, 32)).astype(np.int32)
    out = np.full_like(x, -1)
    run(translation.kernel, (2,), [x, out])
    return x, out


@pytest.mark.parametrize("num_ctas", [1, 2, 8])
@pytest.mark.parametrize("distance", [0, 1, -1, 3, 16])
def test_a_shift_goes_around_the_cluster(sources: Sources, num_ctas: int, distance: int) -> None:
    x, out = _run(sources, f"x = al.cluster_shift(x, {distance})", num_ctas)
    np.testing.assert_array_equal(out, np.roll(x, distance, 1))


def test_a_permutation_gives_each_tile_to_the_cta_that_is_named(sources: Sources) -> None:
    to = (2, 0, 3, 1)
    x, out = _run(sources, f"x = al.cluster_permute(x, {to})")
    expected = np.empty_like(x)
    expected[:, to] = x
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("num_ctas", [1, 4])
def test_each_cta_reads_the_one_that_it_chooses(sources: Sources, num_ctas: int) -> None:
    chosen = f"(al.cluster_rank() * 3 + 1) % {num_ctas}"
    x, out = _run(sources, f"x = al.cluster_read(x, {chosen})", num_ctas)
    ranks = (np.arange(num_ctas) * 3 + 1) % num_ctas
    np.testing.assert_array_equal(out, x[:, ranks])


@pytest.mark.parametrize("num_ctas", [1, 2, 8])
def test_each_cta_gets_its_parts_of_all(sources: Sources, num_ctas: int) -> None:
    parts = f"x.reshape({num_ctas}, {32 // num_ctas})"
    x, out = _run(sources, f"x = al.cluster_transpose({parts}).reshape(32)", num_ctas)
    blocks = x.reshape(2, num_ctas, num_ctas, -1)
    np.testing.assert_array_equal(out, blocks.swapaxes(1, 2).reshape(x.shape))


def test_scalars_go_as_tiles_do(sources: Sources) -> None:
    x, out = _run(sources, "x = x * 0 + al.cluster_shift(tl.sum(x, 0), 1)")
    np.testing.assert_array_equal(out[:, :, 0], np.roll(x.sum(2), 1, 1))


def test_a_kernel_without_these_words_is_that_of_the_cluster(sources: Sources) -> None:
    body = "tl.store(out_ptr + tl.program_id(0), 1)"
    text = sources.text(_kernel(body), {"out_ptr": "*i32"}, {"x_ptr": 0}, num_ctas=4)
    assert "runs_by_cta" not in text
    words = sources.text(_kernel(f"al.cluster_barrier()\n{body}"), SIGNATURE, num_ctas=4)
    assert "num_ctas = 4, runs_by_cta = true" in words
    assert "grid.cluster_barrier" in words


def test_one_cta_has_trivial_words(sources: Sources) -> None:
    value = "x = al.cluster_read(al.cluster_shift(x, 1), al.cluster_rank())\nal.cluster_barrier()"
    text = sources.text(_kernel(ROWS.replace("VALUE", value)), SIGNATURE)
    assert "tile.barrier" in text
    for absent in ("cluster.", "grid.", "runs_by_cta"):
        assert absent not in text


def test_a_cta_that_does_not_come_is_reported(sources: Sources) -> None:
    value = "if al.cluster_rank() > 0:\n    x = al.cluster_shift(x, 1)"
    with pytest.raises(InterpretError, match="waits for ever: not all CTAs come to it"):
        _run(sources, value)


def test_ctas_that_come_to_different_exchanges_are_reported(sources: Sources) -> None:
    value = (
        "if al.cluster_rank() > 0:\n    x = al.cluster_shift(x, 1)\n"
        "else:\n    x = al.cluster_shift(x, 2)"
    )
    with pytest.raises(InterpretError, match="waits for ever: not all CTAs come to it"):
        _run(sources, value)


def test_a_rank_that_is_not_there_is_reported(sources: Sources) -> None:
    with pytest.raises(InterpretError, match="is of CTA 4 of 4"):
        _run(sources, "x = al.cluster_read(x, al.cluster_rank() + 1)")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x = al.cluster_shift(x, tl.program_id(0))", "known at compile time"),
        ("x = al.cluster_permute(x, 1)", "one rank for each CTA, a tuple"),
        ("x = al.cluster_permute(x, (0, 1, 2, 2))", "each rank from 0 to 3 once, got (0, 1, 2, 2)"),
        ("x = al.cluster_permute(x, (1, 0))", "each rank from 0 to 3 once, got (1, 0)"),
        ("x = al.cluster_read(x, 0.5)", "the rank of cluster_read is an integer"),
        ("x = al.cluster_read(x, x)", "the rank of cluster_read is an integer"),
        ("x = tl.cluster_shift(x, 1)", "unknown name tl.cluster_shift"),
    ],
)
def test_mistakes(sources: Sources, value: str, message: str) -> None:
    body = _kernel(ROWS.replace("VALUE", value))
    assert message in sources.error(body, SIGNATURE, num_ctas=NUM_CTAS).message


def test_what_triton_lacks_is_said_to_be_ours(sources: Sources) -> None:
    body = _kernel(ROWS.replace("VALUE", "x = tl.cluster_shift(x, 1)"))
    error = sources.error(body, SIGNATURE, num_ctas=NUM_CTAS)
    assert error.remedy == "Triton has no such word: from aotc.language import cluster_shift"


# ---- the barrier of the grid ------------------------------------------------------------------

TURN = """
pid = tl.program_id(0)
following = (pid + 1) % tl.num_programs(0)
for _ in range(n):
    tl.store(x_ptr + pid, tl.load(out_ptr + pid) * 3)
    al.grid_barrier(counter_ptr)
    tl.store(out_ptr + pid, tl.load(x_ptr + following))
    al.grid_barrier(counter_ptr)
"""
TURN_PARAMS = "x_ptr, out_ptr, counter_ptr, n"
TURN_TYPES = {"x_ptr": "*i32", "out_ptr": "*i32", "counter_ptr": "*i32", "n": "i32"}


@pytest.mark.parametrize("programs", [0, 1, 5])
@pytest.mark.parametrize("times", [0, 1, 3])
def test_programs_see_what_others_wrote_before_the_barrier(
    sources: Sources, programs: int, times: int
) -> None:
    translation = sources.translate(_kernel(TURN, TURN_PARAMS), TURN_TYPES)
    out = np.arange(8, dtype=np.int32)
    expected = out.copy()
    expected[:programs] = np.roll(out[:programs], -times) * 3**times
    counter = np.zeros(1, np.int32)
    run(translation.kernel, (programs,), [np.zeros(8, np.int32), out, counter, times])
    np.testing.assert_array_equal(out, expected)
    assert counter == [0]  # an even number of barriers


def test_clusters_meet_with_all_their_ctas(sources: Sources) -> None:
    body = """
at = tl.program_id(0) * al.cluster_size() + al.cluster_rank()
tl.store(x_ptr + at, at)
al.grid_barrier(counter_ptr)
tl.store(out_ptr + at, tl.sum(tl.load(x_ptr + tl.arange(0, 8)), 0))
"""
    types = dict.fromkeys(("x_ptr", "out_ptr", "counter_ptr"), "*i32")
    translation = sources.translate(_kernel(body, ", ".join(types)), types, num_ctas=4)
    x, out, counter = np.zeros(8, np.int32), np.zeros(8, np.int32), np.zeros(1, np.int32)
    run(translation.kernel, (2,), [x, out, counter])
    assert out.tolist() == [28] * 8
    assert counter == [-(1 << 31)]


def test_a_program_that_does_not_come_is_reported(sources: Sources) -> None:
    body = "if tl.program_id(0) > 0:\n    al.grid_barrier(x_ptr)"
    translation = sources.translate(_kernel(body, "x_ptr"), {"x_ptr": "*i32"})
    with pytest.raises(InterpretError, match="waits for ever: not all programs come to it"):
        run(translation.kernel, (3,), [np.zeros(1, np.int32)])


@pytest.mark.parametrize(
    ("counter", "message"),
    [
        ("p", "counts in one int32"),
        ("p + tl.arange(0, 4)", "counts in one int32"),
        ("1", "takes a pointer"),
    ],
)
def test_mistakes_about_the_grid(sources: Sources, counter: str, message: str) -> None:
    text = _kernel(f"al.grid_barrier({counter})", "p")
    assert message in sources.error(text, {"p": "*i64"}).message
