"""The emitter writes pure expressions once where they dominate, and no further."""

from __future__ import annotations

import pytest

from aotc.backend.emitter import Emitter
from aotc.ir.diagnostics import IRError


def test_pure_text_is_written_once() -> None:
    emit = Emitter()
    assert emit.value("add i32 %a, 1") == emit.value("add i32 %a, 1")
    assert emit.fresh("load") != emit.fresh("load")
    assert len(emit.lines) == 3


def test_scopes_forget_what_was_inside() -> None:
    emit = Emitter()
    outer = emit.value("add i32 %a, 1")
    with emit.scope():
        assert emit.value("add i32 %a, 1") == outer
        inner = emit.value("add i32 %a, 2")
    assert emit.value("add i32 %a, 2") != inner


def test_inner_scopes_know_what_outer_ones_do_and_forget_only_their_own() -> None:
    emit = Emitter()
    with emit.scope():
        outer = emit.value("add i32 %a, 1")
        with emit.scope():
            assert emit.value("add i32 %a, 1") == outer
            inner = emit.value("add i32 %a, 2")
        with emit.scope():
            again = emit.value("add i32 %a, 2")
        assert again != inner
        assert emit.value("add i32 %a, 1") == outer
        assert emit.value("add i32 %a, 2") not in (inner, again)
    assert emit.value("add i32 %a, 1") != outer


def test_a_scope_that_is_left_by_an_error_forgets_too() -> None:
    emit = Emitter()
    with pytest.raises(IRError), emit.scope():
        inner = emit.value("add i32 %a, 1")
        raise IRError("no")
    assert emit.value("add i32 %a, 1") != inner


def test_thread_values_go_to_the_prologue_from_anywhere() -> None:
    emit = Emitter()
    with emit.scope():
        name = emit.thread_value("shl i32 %tid, 2")
    assert emit.value("shl i32 %tid, 2") == name
    assert (emit.lines, len(emit.prologue)) == ([], 1)


def test_a_body_value_is_not_taken_for_a_prologue_value() -> None:
    emit = Emitter()
    below = emit.value("shl i32 %tid, 2")
    assert emit.thread_value("shl i32 %tid, 2") != below


def test_rewind_drops_lines_and_label() -> None:
    emit = Emitter()
    mark = emit.mark()
    with emit.scope():
        emit.start_block("loop")
        emit.value("add i32 %a, 1")
    emit.rewind(mark)
    assert (emit.lines, emit.label) == ([], "entry")


def test_strings_are_shared_and_escaped() -> None:
    emit = Emitter()
    name = emit.string('a"b\\ü')
    assert emit.string('a"b\\ü') == name
    assert 'c"a\\22b\\5C\\C3\\BC\\00"' in next(iter(emit.globals))
