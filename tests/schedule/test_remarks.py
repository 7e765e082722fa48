"""The remarks of the schedule: one place for all texts, each used, each with its fields filled in."""

from __future__ import annotations

import re
from pathlib import Path
from string import Formatter

import pytest

import aotc.schedule
from aotc.schedule.remarks import Reason, Remark

SOURCES = Path(aotc.schedule.__file__).parent
TEMPLATES = [*Remark, *Reason]


def fields(template: Remark | Reason) -> list[str]:
    return [name for _, name, _, _ in Formatter().parse(template.value) if name]


@pytest.mark.parametrize("template", TEMPLATES, ids=str)
def test_a_template_holds_the_values_of_its_fields(template: Remark | Reason) -> None:
    values = {name: f"<{name}>" for name in fields(template)}
    text = template(**values)
    assert all(value in text for value in values.values())
    assert "{" not in text


@pytest.mark.parametrize("template", [remark for remark in TEMPLATES if fields(remark)], ids=str)
def test_a_field_must_be_given(template: Remark | Reason) -> None:
    with pytest.raises(KeyError, match=fields(template)[0]):
        template()


def test_every_template_is_used_and_no_remark_is_written_elsewhere() -> None:
    sources = [path.read_text() for path in sorted(SOURCES.rglob("*.py"))]
    names = {name for text in sources for name in re.findall(r"\bRe(?:mark|ason)\.[A-Z_]+", text)}
    assert names == {str(template) for template in TEMPLATES}
    assert not any(re.search(r"\.remark\([^)]*\bf?\"", text) for text in sources)
