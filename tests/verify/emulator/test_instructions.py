"""All modules with rules are listed."""

from __future__ import annotations

import re
from pathlib import Path

from aotc.verify import emulator
from aotc.verify.emulator.compute.registry import COMPUTES
from aotc.verify.emulator.engine.registry import EXECUTES
from aotc.verify.emulator.instructions import RULE_MODULES

_DECLARES = re.compile(r"^@(executes|computes|ends|rule)\(", re.MULTILINE)


def test_every_module_with_rules_is_listed():
    folder = Path(emulator.__file__).parent
    declaring = {path.stem for path in folder.rglob("*.py") if _DECLARES.search(path.read_text())}
    listed = {module.__name__.rpartition(".")[2] for module in RULE_MODULES}
    assert declaring <= listed
    assert len(declaring) > 15


def test_no_opcode_has_two_rules():
    assert not COMPUTES.keys() & EXECUTES.keys()
