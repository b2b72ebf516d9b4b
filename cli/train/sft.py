"""`mainspring sft FILE`: a supervised run on stored or imported trajectories."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cli.options import (
    Dump,
    Home,
    Json,
    SetFields,
    hint,
    overrides,
    print_dump,
    refuse_without_file,
)
from cli.terminal_text import echo

app = typer.Typer()


@app.command()
def sft(
    file: Annotated[Path | None, typer.Argument(help="File of the supervised run (TOML).")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of a stored run to resume, instead of its file.")
    ] = None,
    given: SetFields = None,
    dump: Dump = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Train a model on stored or imported trajectories, and print the folder of the result.

    Trains on replies alone, never on prompts or observations. Starts a rollout worker and a
    trainer unless MAINSPRING_TEMPORAL_ADDRESS is set; then existing workers are used. To
    resume after an interruption, repeat the command, or give --name without the file. Pass the
    printed folder to a campaign as policy.model.
    """
    import asyncio

    from cli.operations.runs.sft_run import train_supervised
    from cli.operations.runs.stored_run import stored_here
    from cli.tables import Screen
    from cli.train.train import refuse_other_name, require_name
    from mainspring.config.files.reading import check_sft_layers, read_sft_layers
    from mainspring.config.sft import SftConfig

    if file is None:
        refuse_without_file(given, dump, "sft")
        config = asyncio.run(stored_here(home, require_name(name, "sft"), SftConfig))
    else:
        layers = read_sft_layers(file, overrides(given))
        checked = check_sft_layers(layers, file)
        if dump:
            return print_dump(checked, layers.origins, as_json=as_json)
        config = checked.config()
        refuse_other_name(name, config.name, file)
    console = Screen(stderr=True)

    def say(text: str) -> None:
        console.print(text, style="dim", soft_wrap=True)

    done = asyncio.run(train_supervised(home, config, say, for_a_program=as_json))
    if as_json:
        summary = {
            "name": done.name,
            "num_steps": done.num_steps,
            "num_samples": done.data.num_samples,
            "num_tokens": done.data.num_tokens,
            "num_trained_tokens": done.data.num_trained_tokens,
            "num_skipped": done.data.num_skipped,
            "data_sha256": done.data.digest,
            "loss_first": done.loss_first,
            "loss_last": done.loss_last,
            "model": str(done.model),
        }
        typer.echo(json.dumps(summary))
        return
    before, after = (_loss(loss) for loss in (done.loss_first, done.loss_last))
    console.print(f"{done.num_steps} steps, loss {before} to {after}")
    echo(str(done.model))
    hint(f"set policy.model to this folder; `mainspring campaign show {done.name}`")


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
