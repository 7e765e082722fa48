"""Group the commands by the steps of the work, and give the help of each an example."""

from __future__ import annotations

import click

SECTIONS: dict[str, tuple[str, ...]] = {
    "Describe kernels": ("check", "init", "record"),
    "Build": ("build", "verify"),
    "Look inside": ("explain", "dump", "inspect", "report"),
    "Tune": ("tune", "bench", "cover"),
    "Ship": ("split", "merge", "wheel", "replay"),
    "Set up": ("doctor", "cache", "completion"),
}
EXAMPLES: dict[str, str] = {
    "": "aotc init norm.py && aotc build",
    "check": "aotc check mylib",
    "init": "aotc init norm.py -o norm.toml",
    "record": "aotc record -o record -- python app.py",
    "build": "aotc build norm.toml --target sm_90a -o dist",
    "verify": "aotc verify norm.toml --kernel rmsnorm",
    "explain": "aotc explain norm.py:rmsnorm --html rmsnorm.html",
    "dump": "aotc dump norm.toml:rmsnorm --stage ptx",
    "inspect": "aotc inspect dist/norm.aotc --html norm.html",
    "report": "aotc report dist/norm.aotc --html norm.html",
    "tune": "aotc tune dist/norm.aotc --shapes shapes.toml",
    "tune run": "aotc tune dist/norm.aotc --shapes shapes.toml --budget 10m",
    "tune merge": "aotc tune merge h100.toml h200.toml -o norm.tuning.toml",
    "tune import": "aotc tune import ~/.triton/cache --manifest norm.toml",
    "bench": "aotc bench dist/norm.aotc --shapes shapes.toml",
    "cover": "aotc cover norm.toml --shapes shapes.toml --strict",
    "split": "aotc split dist/norm.aotc -o parts",
    "merge": "aotc merge dist/norm.aotc dist/rope.aotc -o dist/llm.aotc",
    "wheel": "aotc wheel dist/norm.aotc --license Apache-2.0",
    "replay": "aotc replay -a dist/record.aotc -- python app.py",
    "doctor": "aotc doctor dist/norm.aotc",
    "cache": "aotc cache info",
    "cache info": "aotc cache info --json",
    "cache prune": "aotc cache prune --days 30 --max-mib 4096",
    "cache clear": "aotc cache clear",
    "completion": 'eval "$(aotc completion bash)"',
}


_MAX_HELP = 160


class Exemplified(click.Command):
    """A command whose help ends with an example."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        example = EXAMPLES.get(ctx.command_path.partition(" ")[2])
        if example:
            with formatter.section("Example"):
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")


class ExemplifiedGroup(Exemplified, click.Group):
    """A group of such commands."""

    command_class = Exemplified


class Workflow(ExemplifiedGroup):
    """The commands, in the sections of `SECTIONS`."""

    group_class = ExemplifiedGroup

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        ordered = [name for names in SECTIONS.values() for name in names if name in self.commands]
        return [*ordered, *sorted(self.commands.keys() - set(ordered))]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        width = max(map(len, self.commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (f"{name:{width}}", self.commands[name].get_short_help_str(_MAX_HELP))
                        for name in names
                    ]
                )
