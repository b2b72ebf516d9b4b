"""`mainspring campaign plan`: whether a campaign fits, before anything starts."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cli.options import Dump, Json, SetFields, overrides

DOES_NOT_FIT = 4


def plan(
    file: Annotated[Path, typer.Argument(help="Campaign file (TOML).")],
    model: Annotated[
        Path | None,
        typer.Option(
            help="Model directory to plan with, instead of policy.model. Its config.json suffices."
        ),
    ] = None,
    gpu_memory_gb: Annotated[
        float | None,
        typer.Option(min=1, help="Memory of a GPU in GB. Default: of the GPUs of this machine."),
    ] = None,
    gpu_tflops: Annotated[
        float | None,
        typer.Option(min=0.1, help="Peak TFLOP/s of a GPU in trainer.dtype. Default: by its name."),
    ] = None,
    mfu: Annotated[
        float | None,
        typer.Option(min=0.01, max=1, help="Share of the GPUs' peak that training reaches."),
    ] = None,
    decode_tokens_per_s: Annotated[
        float | None,
        typer.Option(min=0.1, help="Tokens that one engine generates per second, all requests."),
    ] = None,
    tokens_per_rollout: Annotated[
        int | None,
        typer.Option(min=1, help="Average tokens of a rollout. Default: half of max_context."),
    ] = None,
    turns_per_rollout: Annotated[
        int | None,
        typer.Option(min=1, help="Average turns of a rollout. Default: half of step_limit."),
    ] = None,
    action_share: Annotated[
        float | None,
        typer.Option(min=0.01, max=1, help="Share of a rollout's tokens that the policy writes."),
    ] = None,
    command_s: Annotated[
        float | None, typer.Option(min=0, help="Average seconds of an agent's command.")
    ] = None,
    disk_gb_per_s: Annotated[
        float | None,
        typer.Option(min=0.001, help="Speed of the disk or folder that holds checkpoints, GB/s."),
    ] = None,
    set_fields: SetFields = None,
    dump: Dump = False,
    as_json: Json = False,
) -> None:
    """Plan a campaign: memory, demand and time of a step, from its file alone.

    Needs the model's config.json, and no service, torch or GPU. Starts nothing. Exit code 2 if the
    file or the model is refused, 4 if a rank does not fit a GPU.
    """
    from cli.operations.runs import campaign_plan
    from cli.train.train import dump_campaign
    from mainspring.planning.assumptions import Given

    if dump:
        return dump_campaign(file, set_fields, as_json=as_json)
    given = Given(
        tokens_per_rollout=tokens_per_rollout,
        turns_per_rollout=turns_per_rollout,
        action_share=action_share,
        command_s=command_s,
        gpu_tflops=gpu_tflops,
        mfu=mfu,
        decode_tokens_per_s=decode_tokens_per_s,
        disk_gb_per_s=disk_gb_per_s,
    )
    planned = campaign_plan.plan_campaign(file, given, gpu_memory_gb, model, overrides(set_fields))
    if as_json:
        typer.echo(json.dumps(campaign_plan.as_json(planned)))
    else:
        from cli.campaign.plan_screen import print_plan

        print_plan(planned)
    if not planned.fits:
        raise typer.Exit(DOES_NOT_FIT)
