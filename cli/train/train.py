"""`mainspring train` and `mainspring quickstart`: a whole campaign on this machine."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.agreement import Yes, agreement
from cli.options import (
    CampaignFile,
    DryRun,
    Dump,
    Home,
    Json,
    SetFields,
    StoredName,
    View,
    hint,
    overrides,
    print_dump,
    refuse_without_file,
    tell,
)
from cli.terminal_text import echo, plain
from mainspring.algorithms.schedule import Schedule

Detach = Annotated[
    bool, typer.Option("--detach", help="Keep the campaign's processes in the background.")
]
Stop = Annotated[
    bool,
    typer.Option(
        "--stop", help="Stop the processes. To resume, repeat the command without --stop."
    ),
]

app = typer.Typer()


@app.command()
def train(
    file: CampaignFile = None,
    name: StoredName = None,
    detach: Detach = False,
    stop: Stop = False,
    dry_run: DryRun = False,
    given: SetFields = None,
    dump: Dump = False,
    yes: Yes = False,
    view: View = True,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Run a campaign with everything it needs on this machine, and write its report.

    Starts Postgres and Temporal (unless configured), an engine if none is running, a rollout
    worker, a sandbox node and the trainer. To resume after an interruption, repeat the command,
    or give --name without the file. A file that was changed since changes the campaign, where
    its fields can change; that is asked first.
    """
    from mainspring.config.files.reading import load_campaign
    from mainspring.config.settings import configured_settings

    if file is None:
        name = require_name(name, "train")
        refuse_without_file(given, dump, "train")
        if stop:
            return _stop(configured_settings(home).home, name)
        command = ["train", "--name", name]
        config = _stored(home, name)
        return _perform(config, command, home, detach, stop, dry_run, as_json, as_stored=True)
    if dump:
        return dump_campaign(file, given, as_json=as_json)
    config = load_campaign(file, tell, overrides(given))
    refuse_other_name(name, config.name, file)
    command = ["train", str(file.absolute())]
    command += [word for field in given or () for word in ("--set", field)]
    command += ["--yes"] * yes
    _perform(config, command, home, detach, stop, dry_run, as_json, yes=yes)


@app.command()
def quickstart(
    seed: Annotated[int, typer.Option(min=0, help="Seed of tasks, model and sampling.")] = 0,
    schedule: Annotated[
        Schedule,
        typer.Option(
            help="Order of groups: by time (fastest), or by number, so that the same seed "
            "gives the same weights (reproducible)."
        ),
    ] = Schedule.FASTEST,
    detach: Detach = False,
    stop: Stop = False,
    dry_run: DryRun = False,
    view: View = True,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Train a small bundled model on bundled tasks (about 10 minutes on 2 cores).

    Does what `mainspring train` does, with the bundled file. To resume after an interruption,
    repeat the command.
    """
    from cli.operations.runs.quickstart import bundled_campaign

    command = ["quickstart", "--seed", str(seed), "--schedule", schedule]
    config = bundled_campaign(seed, schedule)
    _perform(config, command, home, detach, stop, dry_run, as_json, as_stored=True)


def dump_campaign(file: Path, given: list[str] | None, *, as_json: bool = False) -> None:
    from mainspring.config.files.presets import with_preset
    from mainspring.config.files.reading import check_layers, read_layers

    layers = read_layers(file, overrides(given))
    print_dump(check_layers(layers, file, tell), with_preset(layers), as_json=as_json)


def require_name(name: str | None, command: str) -> str:
    """Raises UsageError where neither a file nor a name was given."""
    from mainspring.errors import UsageError

    if name is None:
        raise UsageError(
            f"`mainspring {command}` needs a file",
            remedy="give one, or --name with the name of a stored run to resume",
        )
    return name


def refuse_other_name(name: str | None, own: str, file: Path) -> None:
    """Raises UsageError when the file's run has another name than the one that was given."""
    from mainspring.errors import UsageError

    if name not in (None, own):
        raise UsageError(
            f"{file} names its run {own}, and --name is {name}",
            remedy=f"leave --name out, or name the run otherwise: --set name={name}",
        )


def _stored(home: Path | None, name: str) -> Any:
    import asyncio

    from cli.operations.runs.stored_run import stored_here
    from mainspring.config.campaign import CampaignConfig

    return asyncio.run(stored_here(home, name, CampaignConfig))


def _perform(
    config: Any,
    command: list[str],
    home: Path | None,
    detach: bool,
    stop: bool,
    dry_run: bool,
    as_json: bool,
    *,
    as_stored: bool = False,
    yes: bool = False,
) -> None:
    import asyncio
    import shlex

    from cli.operations.runs.local_campaign import Telling, check, train, until_left
    from cli.tables import Screen
    from mainspring.config.settings import configured_settings

    console = Screen(stderr=as_json)

    def say(text: str) -> None:
        console.print(text, style="dim", soft_wrap=True)

    telling = Telling(
        say,
        lambda items: print_items(items, console),
        agreement(yes, quiet=as_json),
        for_a_program=as_json,
    )
    folder = configured_settings(home).home
    if stop:
        return _stop(folder, config.name)
    if detach:
        asyncio.run(until_left(configured_settings(home), config.name, say))
    if dry_run or detach:
        asyncio.run(check(home, config, telling))
    if dry_run:
        return
    if detach:
        return _detach(folder, config.name, command, console)
    where = ["--home", str(home)] if home is not None else []
    resume = shlex.join(["mainspring", *command, *where])
    outcome = asyncio.run(train(home, config, telling, resume=resume, as_stored=as_stored))
    if as_json:
        typer.echo(json.dumps(outcome.summary))
        return
    console.print(_table(outcome.summary))
    for sentence in outcome.summary["judge_warnings"]:
        console.print(f"warning      {plain(sentence)}", style="yellow", soft_wrap=True)
    console.print(f"report       {outcome.report}", soft_wrap=True)
    console.print(
        f"Temporal UI  {outcome.temporal_ui}  (every rollout; `mainspring down` stops it)",
        soft_wrap=True,
    )
    name = outcome.summary["campaign"]
    hint(
        f"`mainspring view`, `mainspring rollout list {name} --failed`, open "
        f"{outcome.report.absolute().as_uri()}"
    )


def print_items(items: Sequence[Any], console: Any) -> None:
    """The checklist, one line each, with what to do below those that are not there."""
    from rich.text import Text

    styles = {"ok": "green", "starts": "cyan", "warning": "yellow", "missing": "red"}
    for item in items:
        line = Text(f"{item.state:8} ", style=styles[item.state])
        line.append(plain(f"{item.what}: {item.found}"), style="default")
        console.print(line, soft_wrap=True)
        if item.fix and item.state in ("warning", "missing"):
            console.print(f"         {item.fix}", soft_wrap=True)


def _detach(home: Path, name: str, command: list[str], console: Any) -> None:
    import shlex
    import sys

    from cli.operations.machine.supervisor import Supervisor
    from mainspring.errors import UsageError

    supervisor = Supervisor(home, name)
    if running := supervisor.pid():
        raise UsageError(
            f"process {running} trains campaign {name} already",
            remedy=f"follow it: mainspring campaign watch {name} --home {home}",
        )
    arguments = [*command, "--home", str(home)]
    pid = supervisor.start([sys.executable, "-m", "mainspring", *arguments])
    for line in (
        f"campaign {name} is trained in the background by process {pid}",
        f"follow  mainspring campaign watch {name} --home {home}",
        f"stop    {shlex.join(['mainspring', *arguments, '--stop'])}",
        f"log     {supervisor.log}",
    ):
        console.print(line, soft_wrap=True)


def _stop(home: Path, name: str) -> None:
    from cli.operations.machine.supervisor import Supervisor

    if Supervisor(home, name).stop():
        echo(f"campaign {name}: its processes have ended; repeat without --stop to resume")
    else:
        echo(f"campaign {name}: no process here trains it")


def _table(summary: dict[str, Any]) -> Any:
    from cli.tables import Table
    from mainspring.words.figures import duration, percent

    table = Table(title=f"campaign {summary['campaign']}", title_justify="left")
    table.add_column("resolved, of unseen tasks")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for label, key in (
        ("sampled", "solve_rate"),
        ("greedy", "greedy"),
        ("unseen bug types, sampled", "heldout_templates"),
    ):
        before, after = summary[f"{key}_before"], summary[f"{key}_after"]
        if (before, after) != (None, None):
            table.add_row(label, percent(before), percent(after))
    table.add_section()
    for label, key in (
        ("steps", "num_steps"),
        ("rollouts", "num_rollouts"),
        ("turns", "num_turns"),
    ):
        table.add_row(label, "", str(summary[key]))
    table.add_row("wall time", "", duration(summary["wall_s"]))
    gap = summary["max_logprob_gap"]
    table.add_row("largest log-prob gap", "", "-" if gap is None else f"{gap:.1e}")
    return table
