"""Help: every command has its place in the order of the work, and an example that it takes."""

from __future__ import annotations

import shlex
from typing import Any

import click
import pytest

from aotc.cli.process import commands
from aotc.cli.workflow import EXAMPLES, SECTIONS


def paths(group: click.Group = commands, prefix: str = "") -> list[str]:
    """Return the names of all commands, such as `cache prune`."""
    names: list[str] = []
    for name, command in group.commands.items():
        names.append(f"{prefix}{name}")
        if isinstance(command, click.Group):
            names += paths(command, f"{prefix}{name} ")
    return names


def test_every_command_has_a_section() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(
        commands.commands
    )
    assert sorted(EXAMPLES) == sorted(["", *paths()])


@pytest.mark.parametrize("path", paths())
def test_the_help_ends_with_an_example_that_the_command_takes(path: str, run: Any) -> None:
    code, out, _ = run(*path.split(), "--help")
    assert code == 0
    assert out.rstrip().endswith(f"Example:\n  {EXAMPLES[path]}")
    words = shlex.split(EXAMPLES[path].removeprefix('eval "$(').removesuffix(')"'))
    assert " ".join(words[: 1 + len(path.split())]) in (
        f"aotc {path}",
        f"aotc {path[:4]} {words[2]}",
    )
    command: click.Command = commands
    context = click.Context(command)
    args = words[1:]
    while isinstance(command, click.Group):
        command.parse_args(context, args)
        _, child, args = command.resolve_command(context, [*context._protected_args, *context.args])
        assert child is not None
        command, context = child, click.Context(child, parent=context)
    command.parse_args(context, args)


def test_commands_without_a_subcommand_show_help(run: Any) -> None:
    for args in ((), ("cache",)):
        code, out, err = run(*args)
        assert code == 2
        assert "Usage: aotc" in out + err
        assert "Example:\n" in out + err


def test_sections_are_in_the_order_of_the_work(run: Any) -> None:
    _, out, _ = run("--help")
    places = [out.index(f"\n{title}:") for title in SECTIONS]
    assert places == sorted(places)
    names = [name for names in SECTIONS.values() for name in names]
    rows = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert [row for row in rows if row in names] == names
