"""`kcache`: the group of commands, and what is common to all of them.

A command is imported when it runs, so `--help` and `--version` cost little. Data goes to
stdout and talk to stderr. Exit status: 0, 1 if the reader of a pipe went away, 2 if something
cannot be done, with one sentence saying what.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

COMMANDS = {
    "stats": ("show", "What is in the store, what was hit, and what it saved."),
    "explain": ("entry", "What is stored under a key, and what differs from the nearest other entry."),
    "show": ("entry", "The graph and the kernels that are stored under a key."),
    "purge": ("maintain", "Remove entries."),
    "compile": ("compile", "Build the store's Triton kernels for a GPU that need not be here."),
    "gc": ("maintain", "Evict least used entries down to a size."),
    "verify": ("verify", "Read and verify every entry."),
    "compact": ("maintain", "Make the file as small as what is in use."),
}
"""Name of each command, the module of this package that holds it, and its one line of help."""


class Group(click.Group):
    """Imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f".{COMMANDS[cmd_name][0]}", __package__)
        command = getattr(module, cmd_name, None) or getattr(module, f"{cmd_name}_")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        from kcache.errors import KcacheError

        try:
            return super().invoke(ctx)
        except KcacheError as error:
            raise Failed(str(error)) from error


class Failed(click.ClickException):
    """Something cannot be done. Prints `kcache: ` and the sentence on stderr; exit status 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"kcache: {self.message.rstrip('.')}.", err=True)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("kcache")
        except PackageNotFoundError:
            found = "(not installed)"
        click.echo(f"kcache {found}")
        ctx.exit()


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def cli() -> None:
    """A compile cache under torch.compile that knows what your Triton kernels depend on."""


if __name__ == "__main__":
    cli()
