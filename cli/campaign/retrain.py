"""`mainspring campaign retrain`: the stored batches of a campaign, trained again from its first
weights."""

import json
from typing import Annotated, Any

import typer

from cli.options import CampaignName, Home, Json, hint
from cli.terminal_text import echo


def retrain(
    name: CampaignName,
    new: Annotated[str, typer.Option("--as", help="Name of the new campaign.")],
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="Field that differs, for all steps (repeatable)."
        ),
    ] = None,
    num_steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Number of batches, the first ones (default: all)."),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(metavar="STEPS", help="Stored steps to train, in this order, as in 3,1,5-8."),
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Train the stored batches of a campaign again, from its first weights.

    Set another loss, advantage, reward or optimizer setting. Nothing is played: a trainer is all
    that runs. It starts one unless MAINSPRING_TEMPORAL_ADDRESS is set. Each step is shown with how
    far off-policy it was. To resume after an interruption, repeat the command. With the same
    settings the weights are those of the campaign, bit for bit on the CPU.
    """
    import asyncio

    from cli.operations.keeping.campaign_retrain import RetrainOptions, parse_order
    from cli.operations.keeping.retrain_run import retrain as run
    from cli.tables import Screen
    from mainspring.config.files.layers import assignments
    from mainspring.errors import UsageError

    if order is not None and num_steps is not None:
        raise UsageError(
            "--steps and --order both choose the batches", remedy="give one of the two"
        )
    steps = None if order is None else parse_order(order)
    asked = RetrainOptions(tuple(assignments(given or [])), num_steps, steps)
    console = Screen(stderr=True)

    def say(text: str) -> None:
        console.print(text, style="dim", soft_wrap=True)

    done = asyncio.run(run(home, name, new, asked, say, for_a_program=as_json))
    if as_json:
        return echo(json.dumps(_document(done)))
    _print(done)
    echo(str(done.model))
    hint(f"see its steps with `mainspring campaign show {done.campaign}`")


def _document(done: Any) -> dict[str, Any]:
    return {
        "name": done.campaign,
        "retrained_from": done.source.campaign,
        "version": done.source.version,
        "given": dict(done.source.given),
        "num_steps": len(done.steps),
        "steps": [
            {"step": each.step, "batch_of_step": each.of, **each.figures} for each in done.steps
        ],
        "weights_sha256": done.weights,
        "model": str(done.model),
    }


def _print(done: Any) -> None:
    from cli.campaign.campaign_screen import OFF_POLICY, far
    from cli.tables import Screen, Table

    table = Table("step", "batch of step", *OFF_POLICY)
    for column in table.columns:
        column.justify = "right"
    for each in done.steps:
        figures = [far(each.figures[name]) for name in OFF_POLICY.values()]
        table.add_row(str(each.step), str(each.of), *figures)
    screen = Screen(stderr=True)
    screen.print(table)
    if done.weights is not None:
        screen.print(f"weights {done.weights}", soft_wrap=True)
