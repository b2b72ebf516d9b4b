"""Options of the commands that play an evaluation, and how they stand above a file's values.

Invariant: an option is a field of the file, so a file and `--set` reach it and a stored run keeps
it. Imported by the commands beside this file.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import overrides
from cli.own_packages import import_beside
from mainspring.config.files.presets import Preset
from mainspring.status import PolicyApi, Unverified

File = Annotated[
    Path | None,
    typer.Argument(help="Campaign file (TOML); options override it.", callback=import_beside),
]
Source = Annotated[
    str | None, typer.Option(help="Task set to evaluate on (`tasks list` shows them).")
]
Part = Annotated[
    str | None, typer.Option("--slice", help='Only tasks at these positions, e.g. "0:5".')
]
Matching = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="REGEX",
        help='Only tasks whose id matches this regular expression, e.g. "^django".',
    ),
]
Shuffle = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=2**31 - 1,
        metavar="SEED",
        help="Seed of the order of the tasks (default: listing order).",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum number of tasks, from the start of the order."),
]
AgentKind = Annotated[
    str | None,
    typer.Option("--agent", metavar="KIND", help="Agent that plays, as in agent.kind of a file."),
]
Unchecked = Annotated[
    Unverified | None,
    typer.Option(
        "--unverified",
        help="Skip or use tasks that `tasks verify` has not passed (default: skip).",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Model name at the endpoint (--api openai), or model directory (--api sglang)."
    ),
]
Serve = Annotated[
    Path | None,
    typer.Option(
        metavar="MODEL_DIR",
        help="Model directory to serve with an engine of this run's own, in tokens.",
    ),
]
Api = Annotated[PolicyApi | None, typer.Option(help="API of the endpoint (default: sglang).")]
BaseUrl = Annotated[
    list[str] | None, typer.Option(help="Base URL of the endpoint. Repeat to balance load.")
]
Samples = Annotated[
    int | None,
    typer.Option("--n", min=1, max=250, help="Number of rollouts per task (default: 1)."),
]
Temperature = Annotated[
    str | None,
    typer.Option(
        help='Sampling temperature (default: 0; with --n above 1: 1), or "default" to send '
        "none, for models that refuse it."
    ),
]
StepLimit = Annotated[
    int | None,
    typer.Option(min=1, max=500, help="Maximum number of turns per rollout (default: 20)."),
]
Limits = Annotated[
    Preset | None,
    typer.Option("--preset", help="Limits of another agent program, for comparable scores."),
]
Concurrency = Annotated[
    int | None, typer.Option(min=1, help="Number of rollouts that run at once (default: 32).")
]
Name = Annotated[
    str | None,
    typer.Option(help="Name of the run. Reuse it to resume. Default: task set, model and time."),
]
Output = Annotated[
    Path | None,
    typer.Option(help="Folder for the run's files (default: reports/<name> in the state folder)."),
]
Retry = Annotated[
    bool, typer.Option("--retry", help="In a finished run, retry the masked rollouts.")
]

_NAMES = {
    "engines": "--base-url",
    "kind": "--agent",
    "samples": "--n",
    "step_limit": "--step-limit",
}
"""Options that have another name than their field."""


@dataclass(slots=True)
class Asked:
    """An evaluation as it was asked for: the file's table below, the options above."""

    raw: dict[str, Any]
    named: dict[str, str]
    """Names of fields, where they were given otherwise than in the file."""
    layers: Any
    where: str


def asked(
    file: Path | None, given: list[str] | None, options: dict[str, dict[str, Any]], where: str
) -> Asked:
    """With `options` by section and field; those that are None were not given. Raises
    ConfigError."""
    from mainspring.config.files.reading import named_after, read_layers

    layers = read_layers(file, overrides(given))
    raw, named = layers.table, named_after(layers, file)
    for section, fields in options.items():
        values = {key: value for key, value in fields.items() if value is not None}
        below = raw.get(section, {})
        if not isinstance(below, dict):  # refused later, by its name
            continue
        raw[section] = {**below, **values}
        options_named = {f"{section}.{key}": _NAMES.get(key, f"--{key}") for key in values}
        named |= options_named
        layers.origins |= options_named
    return Asked(raw, named, layers, str(file) if file else where)


def of_model(
    model: str | None, api: PolicyApi | None, base_url: list[str] | None, serve: Path | None
) -> dict[str, Any]:
    """Fields of [policy] that tell who replies. Raises UsageError."""
    from mainspring.errors import UsageError

    if serve is None:
        return {"model": model, "api": api, "engines": base_url or None}
    beside = {"--model": model, "--base-url": base_url, "--api": api is PolicyApi.OPENAI}
    if given := [option for option, value in beside.items() if value]:
        raise UsageError(
            f"--serve and {given[0]} exclude each other: --serve names the model and starts its "
            "engine",
            remedy="give one of them",
        )
    return {"model": str(serve), "api": PolicyApi.SGLANG, "engines": ["http://127.0.0.1:0"]}


def number_or_text(text: str | None) -> float | str | None:
    """Number, or the text: it is refused by name with the other fields."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
