"""The program ``odb-stream``: its commands, and how errors end it: with one clear line and an exit code."""

import errno
import traceback
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from odb_stream.cli import check, index, inspect, run, simulate, state, write
from odb_stream.errors import ConfigError, OdbStreamError

FAILED = 1
"""Exit code of a run that failed, and of ``check`` if it found a problem."""
USAGE = 2
"""Exit code of wrong arguments, settings or recipes: errors that are found before any data is read."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


class Commands(TyperGroup):
    """The group of all commands; it turns their errors into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (OdbStreamError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # a reader such as head has seen enough: typer ends quietly
            if ctx.params["debug"]:
                typer.echo("".join(traceback.format_exception(error)), err=True, nl=False)
            typer.echo(f"{typer.style('error:', fg='red', bold=True)} {error}", err=True)
            raise typer.Exit(USAGE if isinstance(error, ConfigError) else FAILED) from error
        except KeyboardInterrupt as interrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from interrupt


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 fine; 1 a run that failed, or problems found by check; 2 wrong arguments, settings or recipe; "
        "130 ended by Ctrl-C."
    ),
)
app.command(epilog=f"Example: {write.EXAMPLE}")(write.write)
app.command(epilog=f"Example: {index.EXAMPLE}")(index.index)
app.command(epilog=f"Example: {check.EXAMPLE}")(check.check)
app.command(epilog=f"Example: {run.EXAMPLE}")(run.run)
app.command(epilog=f"Example: {inspect.EXAMPLE}")(inspect.inspect)
app.command(epilog=f"Example: {simulate.EXAMPLE}")(simulate.simulate)
app.command(epilog=f"Example: {state.EXAMPLE}")(state.state)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"odb-stream {version('odb-stream')}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Also show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Sample shards in, token-budget batches out.

    Results go to standard output (as JSON with --json), progress and errors to standard error.
    """


def main() -> None:
    """Run the program."""
    app()


if __name__ == "__main__":
    main()
