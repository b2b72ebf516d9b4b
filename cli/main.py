"""The `mainspring` command: adds the commands of each module and turns errors into exit codes.

Each noun's file has an `app` with its commands; a command with a file of its own is added there.

Exit codes: 0 done, 2 usage, 3 a service is missing or unfit, 4 the work failed, 130 interrupted.
"""

import atexit
import importlib.metadata
import inspect
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from cli import agents, events, model
from cli.bench import bench_command as bench
from cli.campaign import campaign
from cli.eval import eval
from cli.machine import backup, db, doctor, engine, node, serve, stack, temporal, view, worker
from cli.rollout import rollout
from cli.tasks import tasks
from cli.terminal_text import echo
from cli.train import sft, train
from mainspring.errors import Interrupted, MainspringError

INTERRUPTED = 130

app = typer.Typer(
    name="mainspring",
    help="Train coding agents with RL. Every rollout is a Temporal workflow, so any process can "
    "crash without losing work.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (
    *(train, sft, view, stack, backup, serve, doctor),
    *(tasks, campaign, eval, rollout, events, worker, node, engine, agents, model, db, temporal),
    bench,
)
for module in COMMANDS:
    app.add_typer(module.app)


def _reflow(commands: typer.Typer) -> None:
    """Join the lines of each help paragraph, so that only the terminal's width breaks them."""
    for command in commands.registered_commands:
        text = command.help or inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _reflow(group.typer_instance)


_reflow(app)


def _print_version(is_set: bool) -> None:
    if is_set:
        echo(f"mainspring {importlib.metadata.version('mainspring')}")
        raise typer.Exit


def _switch_colours_off(is_set: bool) -> None:
    if is_set:
        os.environ["NO_COLOR"] = "1"


@app.callback()
def root(
    home: Annotated[
        Path | None, typer.Option(help="State folder of every command (default .mainspring).")
    ] = None,
    no_color: Annotated[
        bool,
        typer.Option(
            "--no-color",
            is_eager=True,
            callback=_switch_colours_off,
            help="Print without colours, as with NO_COLOR=1.",
        ),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    if home is not None:
        # Where each command's settings look unless it is given a --home of its own.
        os.environ["MAINSPRING_HOME"] = str(home)


def main() -> NoReturn:
    try:
        app()
        code = 0
    except SystemExit as ended:
        code = ended.code
    except Interrupted as error:
        echo(f"{error.message}\n  {error.remedy}", err=True)
        code = error.exit_code
    except MainspringError as error:
        red = None if os.environ.get("NO_COLOR") else typer.colors.RED
        echo(f"error: {error.message}", colour=red, err=True)
        if error.remedy:
            echo(f"  {error.remedy}", err=True)
        code = error.exit_code
    except KeyboardInterrupt:
        echo("interrupted; repeat the same command to resume", err=True)
        code = INTERRUPTED
    if not isinstance(code, int):
        sys.exit(code)
    # Not the interpreter's own shutdown: threads of Temporal's SDK abort it with SIGABRT now and
    # then, after the work is done. What registered itself for the end of the process still runs.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
