from __future__ import annotations

import pytest
from hypothesis import given

from aotc.ir.layout import LinearLayout
from tests.ir.layout_strategies import layouts


@given(layouts())
def test_round_trip(layout: LinearLayout):
    assert LinearLayout.from_text(layout.to_text()) == layout
    named = layout.rename_outs([f"axis_{i}" for i in range(len(layout.shape))])
    assert LinearLayout.from_text(named.to_text()) == named


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (
            LinearLayout({"register": [(0, 1)], "lane": [(1, 0), (0, 0)]}, (2, 2)),
            "#ll<register=[[0,1]] lane=[[1,0],[0,0]] : [2,2]>",
        ),
        (LinearLayout({"register": [], "lane": [()]}, ()), "#ll<register=[] lane=[[]] : []>"),
        (LinearLayout({}, (1,)), "#ll<: [1]>"),
        (
            LinearLayout({"offset": [(0, 1)]}, {"bank": 1, "word": 2}),
            "#ll<offset=[[0,1]] : [bank=1,word=2]>",
        ),
    ],
)
def test_form(layout: LinearLayout, text: str):
    assert layout.to_text() == str(layout) == repr(layout) == text
    assert LinearLayout.from_text(text) == layout


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#ll<>",
        "#ll<register=[[0,1]] : [2,2]",
        "#ll<register=[[0,1]]: [2,2]>",
        "#ll<register=[0,1] : [2,2]>",
        "#ll<register=[[0,1],] : [2,2]>",
        "#ll<register=[[0,-1]] : [2,2]>",
        "#ll<register=[[0,1]] register=[[1,0]] : [2,2]>",
        "#ll<register=[[0,2]] : [2,2]>",
        "#ll<register=[[0]] : [2,2]>",
        "#ll<register=[[0,1]] : [2,3]>",
        "#ll<register=[[0,1]] : [row=2,2]>",
        "#ll<register=[[0,1]] : [row=2,row=2]>",
        "#ll<register=[[0,1]] : [2,2]> ",
    ],
)
def test_anything_else_is_refused(text: str):
    with pytest.raises(ValueError):
        LinearLayout.from_text(text)
