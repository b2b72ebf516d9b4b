"""`mainspring model convert`: a model between Hugging Face's form and Megatron's."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.terminal_text import echo


class Form(StrEnum):
    HUGGINGFACE = "huggingface"
    """A folder with config.json, tokenizer and safetensors."""
    TORCH_DIST = "torch-dist"
    """A distributed checkpoint of Megatron-core, loaded under any parallel sizes."""


app = typer.Typer(name="model", help="Convert models between formats.", no_args_is_help=True)


@app.command("convert")
def convert(
    source: Annotated[Path, typer.Argument(help="Folder of the model.")],
    destination: Annotated[Path, typer.Argument(help="Folder to make.")],
    to: Annotated[Form, typer.Option(help="Format of the folder to make.")],
    like: Annotated[
        Path | None,
        typer.Option(
            help="Hugging Face folder whose config and tokenizer the result gets (needed for "
            "huggingface)."
        ),
    ] = None,
) -> None:
    """Convert a model between a Hugging Face folder and Megatron's torch_dist format.

    Weights alone are converted, without an optimizer. To torch-dist needs a GPU. The folder
    to make appears when it is complete.
    """
    from cli.operations.checks.model_convert import convert_model

    path = convert_model(source, destination, is_to_torch_dist=to is Form.TORCH_DIST, like=like)
    echo(str(path))
