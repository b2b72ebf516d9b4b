"""`mainspring rollout ...`: list, show, retry, label, search and export rollouts."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import Failed, Home, Json, Label, Masked, RunName, with_database
from cli.rollout.label import label
from cli.rollout.retry import retry
from cli.rollout.search import search
from cli.terminal_text import echo, plain
from mainspring.status import StopReason, Verdict
from mainspring.trajectories.format import TrajectoryFormat

_TURNS = re.compile(r"(?P<op>>=|<=|>|<|=|)\s*(?P<number>\d+)|(?P<low>\d+)\.\.(?P<high>\d+)")
ORDERS = ("newest", "oldest", "turns", "reward", "seconds")

app = typer.Typer(
    name="rollout",
    help="Inspect, retry, label and export rollouts (one agent run on one task).",
    no_args_is_help=True,
)
app.command()(retry)
app.command()(search)
app.command("label")(label)


@app.command("list")
def list_(
    campaign: RunName,
    failed: Failed = False,
    masked: Masked = False,
    suspicious: Annotated[
        bool, typer.Option("--suspicious", help="Only rollouts that look like cheating.")
    ] = False,
    verdict: Annotated[
        Verdict | None, typer.Option(help="Only rollouts with this verdict.")
    ] = None,
    stop: Annotated[
        StopReason | None, typer.Option(help="Only rollouts with this stop reason.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Only rollouts of tasks whose id contains this text.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Only rollouts of tasks in this split.")] = None,
    version: Annotated[
        int | None, typer.Option(min=0, help="Only rollouts of this policy version.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=1, help="Only rollouts in the batch of this training step.")
    ] = None,
    fault: Annotated[
        str | None, typer.Option(help="Only rollouts whose fault contains this text.")
    ] = None,
    turns: Annotated[
        str | None, typer.Option(help="Only rollouts with this number of turns: 5, '>10' or 5..10.")
    ] = None,
    with_label: Label = None,
    sort: Annotated[str, typer.Option(help=f"Order of the list: {', '.join(ORDERS)}.")] = "newest",
    limit: Annotated[int, typer.Option(min=1, help="Number of rollouts to list.")] = 40,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """List rollouts of a campaign, newest group first."""
    from infra.db.reading.rollout_search import Order, RolloutQuery

    fewest, most = _turn_bounds(turns)
    query = RolloutQuery(
        failed=failed,
        masked=masked,
        suspicious=suspicious,
        verdict=verdict,
        stop=stop,
        task=task,
        split=split,
        version=version,
        step=step,
        fault=fault,
        min_turns=fewest,
        max_turns=most,
        label=with_label,
    )
    order = Order(_one_of("--sort", sort, ORDERS))

    async def read(db: Any) -> Any:
        return await _find(db, campaign, query, order, limit)

    name, rows, total = with_database(home, read)
    if as_json:
        typer.echo(json.dumps([_row(row) for row in rows]))
        return
    from cli.rollout import rollout_screen

    rollout_screen.print_list(name, rows, total, limit, with_time=order is Order.SECONDS)


@app.command()
def show(
    rollout_id: Annotated[
        str,
        typer.Argument(
            metavar="ROLLOUT",
            help="Id of the rollout; the campaign's name is optional if the rest is unique.",
        ),
    ],
    turn: Annotated[
        int | None, typer.Option(min=1, help="Number of the turn to show (default: all).")
    ] = None,
    patch: Annotated[
        bool, typer.Option("--patch", help="Print only the patch, as it was graded.")
    ] = False,
    tests: Annotated[
        bool, typer.Option("--tests", help="Print only the output of the hidden tests.")
    ] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show one rollout: result, issue, turns, patch and test output."""
    from infra.db.naming import rollout_named
    from mainspring.errors import UsageError
    from reports.one_rollout import read as read_all

    if sum((turn is not None, patch, tests, as_json)) > 1:
        raise UsageError(
            "--turn, --patch, --tests and --json exclude each other", remedy="give one of them"
        )

    async def read(db: Any) -> Any:
        return await read_all(db, await rollout_named(db, rollout_id))

    seen = with_database(home, read)
    if as_json:
        typer.echo(json.dumps(seen.as_dict()))
    elif patch or tests:
        text = seen.patch if patch else seen.grade_output
        if text is None:
            what = "a patch" if patch else "a test output"
            raise UsageError(
                f"rollout {seen.record.id} has no {what.removeprefix('a ')}",
                remedy=f"`mainspring rollout show {seen.record.id}` tells why it ended",
            )
        # A file gets every byte of it, a terminal what does not steer it.
        text = plain(text) if sys.stdout.isatty() else text
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    else:
        if turn is not None and turn > len(seen.turns):
            raise UsageError(
                f"rollout {seen.record.id} has {len(seen.turns)} turns, no turn {turn}",
                remedy=f"give --turn 1 to {len(seen.turns)}" if seen.turns else "",
            )
        from cli.rollout import rollout_screen
        from infra.stack import viewer_address
        from mainspring.config.settings import load_settings

        page = viewer_address.page_of(load_settings(home).home, "r", seen.record.id)
        rollout_screen.print_one(seen, only_turn=turn, view=page)


@app.command()
def export(
    out: Annotated[
        Path, typer.Argument(help="Folder (folders, atif) or file (sft, parquet) to write.")
    ],
    campaign: Annotated[str, typer.Option(help="Name of the campaign or other run.")],
    format: Annotated[
        TrajectoryFormat, typer.Option(help="Format of the files.")
    ] = TrajectoryFormat.FOLDERS,
    resolved: Annotated[
        bool | None,
        typer.Option(
            "--resolved/--all",
            help="Export resolved rollouts or all. Default: resolved for sft, else all.",
        ),
    ] = None,
    with_label: Label = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of rollouts to export, oldest first.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Export the trajectories of a campaign's finished rollouts."""
    from cli.operations.runs import labelling
    from cli.progress import counting
    from infra.db.naming import campaign_named
    from reports.export import formats as exporting

    only_resolved = format is TrajectoryFormat.SFT if resolved is None else resolved

    async def write(db: Any) -> Any:
        name = (await campaign_named(db, campaign)).id
        if with_label is not None:
            await labelling.refuse_unknown(db, name, with_label)
        with counting("rollouts") as progress:
            return await exporting.export(
                db,
                name,
                out,
                format=format,
                resolved=only_resolved,
                label=with_label,
                limit=limit,
                force=force,
                progress=progress,
            )

    done = with_database(home, write)
    if as_json:
        document = {"out": str(out), "format": format, "rollouts": done.num_written}
        typer.echo(json.dumps(document | {"skipped": done.num_skipped}))
        return
    skipped = f"; {done.num_skipped} without a reply skipped" if done.num_skipped else ""
    echo(f"{done.num_written} rollouts written to {out}{skipped}")


async def _find(db: Any, campaign: str, query: Any, order: Any, limit: int) -> Any:
    """Name, rows and number of all that match; a filter that names nothing is an error."""
    from cli.operations.runs import labelling
    from infra.db.naming import campaign_named, near_names
    from infra.db.reading import rollout_search
    from mainspring.errors import UsageError

    name = (await campaign_named(db, campaign)).id
    rows, total = await rollout_search.find(db, name, query, order=order, limit=limit)
    if not rows and query.label is not None:
        await labelling.refuse_unknown(db, name, query.label)
    if rows or (query.split is None and query.task is None):
        return name, rows, total
    splits, tasks = await rollout_search.splits_and_tasks(db, name)
    if query.split is not None and query.split not in splits:
        remedy = f"its splits: {', '.join(splits)}" if splits else "it has no rollout yet"
        raise UsageError(f"campaign {name} has no split {query.split!r}", remedy=remedy)
    if query.task is not None and not any(query.task in task for task in tasks):
        near = near_names(query.task, tasks)
        raise UsageError(
            f"campaign {name} has no rollout of a task like {query.task!r}",
            remedy=f"did you mean {', '.join(near)}?" if near else "see `mainspring tasks list`",
        )
    return name, rows, total


def _turn_bounds(text: str | None) -> tuple[int | None, int | None]:
    """Fewest and most turns. Raises UsageError."""
    from mainspring.errors import UsageError

    if text is None:
        return None, None
    match = _TURNS.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--turns {text!r} is not a number of turns", remedy="write 5, '>10', '<=3' or 5..10"
        )
    if match["low"]:
        return int(match["low"]), int(match["high"])
    number = int(match["number"])
    return {
        ">": (number + 1, None),
        ">=": (number, None),
        "<": (None, number - 1),
        "<=": (None, number),
    }.get(match["op"], (number, number))


def _one_of(option: str, word: str, words: tuple[str, ...]) -> str:
    from mainspring.errors import UsageError

    if word not in words:
        raise UsageError(f"{option} {word!r} is unknown", remedy=f"choose from {', '.join(words)}")
    return word


def _row(rollout: Any) -> dict[str, Any]:
    keys = ("id", "task", "sample_index", "player", "phase", "stop_reason", "verdict", "reward")
    rest = ("num_turns", "epoch", "suspicions", "fault", "split", "policy_version", "labels")
    return {
        **{key: getattr(rollout, key) for key in (*keys, *rest)},
        "elapsed_s": rollout.spent_s,
    }
