"""Options that several commands take, and how commands reach what they need.

Imported by the commands beside this file.
"""

import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from cli.own_packages import import_beside
from cli.terminal_text import echo
from mainspring.artifacts.retention import Checkpoints

T = TypeVar("T")
LONG = "this takes long; Postgres and Temporal answer"

Home = Annotated[Path | None, typer.Option(help="State folder (default .mainspring).")]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]
CampaignFile = Annotated[
    Path | None, typer.Argument(help="Campaign file (TOML).", callback=import_beside)
]
StoredName = Annotated[
    str | None, typer.Option(help="Name of a stored campaign to resume, instead of its file.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the checklist. Store and start nothing.")
]
SetFields = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set a field of the file, as in agent.step_limit=30. Repeat for more.",
    ),
]
Dump = Annotated[
    bool,
    typer.Option(
        "--dump", help="Print every field with where its value comes from. Start nothing."
    ),
]


def _set_view(given: bool) -> bool:
    if not given:
        os.environ["MAINSPRING_VIEW"] = "false"
    return given


View = Annotated[
    bool,
    typer.Option(
        "--view/--no-view",
        callback=_set_view,
        help="Start the viewer beside the run, unless one runs (docs/viewer.md).",
    ),
]
CampaignName = Annotated[str, typer.Argument(help="Name of the campaign.")]
RunName = Annotated[str, typer.Argument(help="Name of the campaign or other run.")]
CopiedCheckpoints = Annotated[
    Checkpoints,
    typer.Option(
        "--checkpoints",
        help="Policy versions to copy: none, what resuming needs, or all on disk.",
    ),
]
Failed = Annotated[
    bool, typer.Option("--failed", help="Only rollouts that were graded and not resolved.")
]
Masked = Annotated[
    bool,
    typer.Option("--masked", help="Only rollouts without a score: cancelled, or ended by a fault."),
]
Label = Annotated[
    str | None,
    typer.Option("--label", metavar="LABEL", help="Only rollouts that were given this label."),
]
OneSplit = Annotated[str | None, typer.Option(help="Split of the tasks (default: the only one).")]
Workers = Annotated[
    bool, typer.Option(help="Start a local rollout worker and sandbox node for this run.")
]


def overrides(given: list[str] | None) -> Any:
    """Values that stand above a file: of `--set`, and of variables of the environment."""
    from mainspring.config.files.layers import Overrides

    return Overrides(tuple(given or ()), os.environ)


def refuse_without_file(given: list[str] | None, dump: bool, command: str) -> None:
    """Raises UsageError for options that belong to a file."""
    from mainspring.errors import UsageError

    if given or dump:
        raise UsageError(
            f"`mainspring {command}` {'--dump' if dump else '--set'} needs a file",
            remedy="what is stored keeps its fields: `mainspring campaign show NAME` shows it",
        )


def print_dump(config: Any, origins: Any, *, as_json: bool = False) -> None:
    """`config`: what the file is read as. `origins`: see `mainspring.config.files.layers`."""
    from mainspring.config.files.dumping import DEFAULT, dumped

    lines = list(dumped(config, origins))
    if as_json:
        document = {"config": config.model_dump(mode="json"), "origins": dict(origins)}
        return typer.echo(json.dumps(document))
    for line, origin in lines:
        echo(f"{line}  # {origin}", dim=origin == DEFAULT)


def hint(text: str) -> None:
    """Print the next step, beside what the command prints for other programs."""
    echo(f"next: {text}", dim=True, err=True)


def tell(text: str) -> None:
    """Print what a command waits for, beside its output."""
    echo(text, err=True, dim=True)


def run_spoken(home: Path | None, work: Awaitable[T], what: str = LONG) -> T:
    """The result of `work`; what it waits for is told when it takes long."""
    import asyncio

    from cli.operations.machine.spoken import spoken
    from mainspring.config.settings import load_settings

    return asyncio.run(spoken(work, lambda: load_settings(home), tell, what=what))


def with_services(home: Path | None, call: Callable[[Any], Awaitable[T]]) -> T:
    """Call with `cli.operations.machine.services.Services`: settings, database and Temporal."""
    import asyncio

    from cli.operations.machine import services

    return asyncio.run(services.with_services(home, call, say=tell, what=LONG))


def with_database(home: Path | None, call: Callable[[Any], Awaitable[T]], what: str = LONG) -> T:
    """`what`: empty where the call tells its progress itself."""
    from infra.db.connect import with_database as run

    return run_spoken(home, run(home, call), what)
