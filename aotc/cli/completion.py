"""What shells complete: click's scripts, and words with a colon or a space in bash."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    get_completion_class,
)

from aotc.cli.arguments import words_before

SHELLS = ("bash", "zsh", "fish")


class _WithWords(ShellComplete):
    """Completion that knows the words before the one that is completed."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        words_before.set(tuple(args))
        return super().get_completions(args, incomplete)


class _Zsh(_WithWords, ZshComplete):
    """As click has it."""


class _Fish(_WithWords, FishComplete):
    """As click has it."""


class _Bash(_WithWords, BashComplete):
    """Bash ends words at a colon, and takes a completion's spaces for the ends of words."""

    _prefix = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        words: list[str] = []
        for word in (*args, incomplete):
            if words and (word.startswith(":") or words[-1].endswith(":")):
                words[-1] += word
            else:
                words.append(word)
        *args, incomplete = words
        # Bash replaces only the part after the colon.
        self._prefix = incomplete[: incomplete.rfind(":") + 1]
        return args, incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        # Two backslashes: click's script reads words without `-r`, which takes one away.
        value = str(item.value).removeprefix(self._prefix).replace(" ", "\\\\ ")
        return f"{item.type},{value}"


for shell_class in (_Bash, _Zsh, _Fish):
    add_completion_class(shell_class)


def completion_script(commands: click.Command, shell: str) -> str:
    """Return the script by which `shell` completes the commands."""
    completion_class = get_completion_class(shell)
    assert completion_class is not None, "click has these three"
    return completion_class(commands, {}, "aotc", "_AOTC_COMPLETE").source().strip("\n")
