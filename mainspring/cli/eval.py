"""`mainspring eval ...`: measure a model on a task set, or grade a campaign's patches again."""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from mainspring.cli.options import Home, Json, Workers
from mainspring.config import PolicyApi, Unverified

Name = Annotated[
    str | None, typer.Option(help="Of the run; the same again goes on. Default: what and when.")
]
Output = Annotated[
    Path | None, typer.Option(help="Folder of its files (default: <home>/evaluations/<name>).")
]
Retry = Annotated[
    bool, typer.Option("--retry", help="Of a finished run, play again what ended in a fault.")
]
Concurrency = Annotated[int | None, typer.Option(min=1, help="Rollouts in flight at once.")]


def register(app: typer.Typer) -> None:
    evaluation = typer.Typer(help="Measure a policy on a task set.", no_args_is_help=True)
    app.add_typer(evaluation, name="eval")

    @evaluation.command()
    def run(
        file: Annotated[
            Path | None, typer.Argument(help="A campaign file (TOML); options change it.")
        ] = None,
        source: Annotated[str | None, typer.Option(help="Source of the tasks.")] = None,
        split: Annotated[
            str | None, typer.Option(help="Split of the tasks (default: test).")
        ] = None,
        part: Annotated[
            str | None, typer.Option("--slice", help='Only these tasks, as "0:5".')
        ] = None,
        unverified: Annotated[
            Unverified | None,
            typer.Option(help="What to do with those not verified (default: skip)."),
        ] = None,
        model: Annotated[
            str | None, typer.Option(help="Its name there; with SGLang's API its directory.")
        ] = None,
        api: Annotated[
            PolicyApi | None, typer.Option(help="What it speaks (default: sglang).")
        ] = None,
        base_url: Annotated[
            list[str] | None, typer.Option(help="Of the endpoint or engine; repeatable.")
        ] = None,
        samples: Annotated[
            int | None,
            typer.Option("--n", min=1, max=250, help="Rollouts of each task (default: 1)."),
        ] = None,
        temperature: Annotated[
            float | None, typer.Option(min=0, max=2, help="(default: 0; with --n above 1: 1)")
        ] = None,
        step_limit: Annotated[
            int | None, typer.Option(min=1, max=500, help="Turns a rollout may take (default: 20).")
        ] = None,
        concurrency: Concurrency = None,
        name: Name = None,
        output: Output = None,
        retry: Retry = False,
        workers: Workers = True,
        home: Home = None,
        as_json: Json = False,
    ) -> None:
        """Let a model work on tasks, grade what it did, write results and trajectories.

        The key of an endpoint is MAINSPRING_POLICY_API_KEY. Interrupt it and run it again under its
        name: it goes on. Where MAINSPRING_TEMPORAL_ADDRESS is set, the team's own workers do it.
        """
        from mainspring.config import check_campaign, read_toml
        from mainspring.status import CampaignKind

        raw = read_toml(file) if file else {}
        for section, options in {
            "tasks": {"source": source, "unverified": unverified},
            "policy": {
                "model": model,
                "api": api,
                "engines": base_url or None,
                "temperature": temperature,
            },
            "agent": {"step_limit": step_limit},
            "evaluation": {"concurrency": concurrency},
            "run": {"split": split, "slice": part, "samples": samples},
        }.items():
            given = {key: value for key, value in options.items() if value is not None}
            raw[section] = {**raw.get(section, {}), **given}
        _complete(raw, name)
        config = check_campaign(raw, str(file) if file else "eval run")

        async def known(run: Any) -> Any:
            return config

        _perform(known, CampaignKind.EVAL, output, retry, workers, home, as_json)

    @evaluation.command()
    def regrade(
        campaign: Annotated[str, typer.Argument(help="The evaluation or campaign that ended.")],
        name: Name = None,
        output: Output = None,
        retry: Retry = False,
        workers: Workers = True,
        home: Home = None,
        as_json: Json = False,
    ) -> None:
        """Grade the stored patches of a campaign again, without asking any model."""
        from mainspring.ids import campaign_id_at
        from mainspring.status import CampaignKind

        chosen = name or campaign_id_at("regrade", campaign, datetime.now())

        async def known(run: Any) -> Any:
            return await run.regrade_config(campaign, chosen)

        _perform(known, CampaignKind.REGRADE, output, retry, workers, home, as_json)


def _complete(raw: dict[str, Any], name: str | None) -> None:
    """Fill in what an evaluation takes for granted. Raises UsageError."""
    from mainspring.errors import UsageError
    from mainspring.ids import campaign_id_at

    tasks, policy = raw["tasks"], raw["policy"]
    for section, key in ((tasks, "source"), (policy, "model")):
        if key not in section:
            raise UsageError(
                f"an evaluation needs --{key}", remedy="give it, or a campaign file that says it"
            )
    if policy.get("api", PolicyApi.SGLANG) == PolicyApi.SGLANG:
        # Workers have a working directory of their own.
        policy["model"] = str(Path(policy["model"]).absolute())
    policy.setdefault("temperature", 1.0 if raw["run"].get("samples", 1) > 1 else 0.0)
    if name is not None:
        raw["name"] = name
    if "name" not in raw:
        model = Path(policy["model"]).name
        raw["name"] = campaign_id_at("eval", f"{tasks['source']}-{model}", datetime.now())


def _perform(
    config_of: Callable[[Any], Any],
    kind: Any,
    output: Path | None,
    retry: bool,
    workers: bool,
    home: Path | None,
    as_json: bool,
) -> None:
    import asyncio

    from infra.export.evaluation import write_evaluation
    from mainspring.cli.progress import counting
    from workers.runs import conductor

    def say(text: str) -> None:
        typer.secho(text, dim=True, err=as_json)

    async def go() -> tuple[dict[str, Any], Path]:
        async with conductor(home, say, own_workers=workers, for_a_program=as_json) as run:
            config = await config_of(run)
            hint = f"{kind} {config.name}: interrupted, the same with --name {config.name} goes on"
            record = await run.perform(config, kind, hint, retry=retry)
            directory = output or run.settings.home / "evaluations" / record.id
            with counting("writing") as progress:
                return await write_evaluation(run.db, record.id, directory, progress), directory

    summary, directory = asyncio.run(go())
    if as_json:
        typer.echo(json.dumps({**summary, "directory": str(directory)}))
    else:
        _print(summary, directory)


def _print(summary: dict[str, Any], directory: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "", show_header=False)
    for key, value in summary.items():
        if key == "pass_at_k":
            for each in value:
                interval = f"{each['low']:.1%} to {each['high']:.1%}"
                table.add_row(f"pass@{each['k']}", f"{each['value']:.1%} (95 %: {interval})")
        else:
            table.add_row(key.replace("_", " "), _figure(value))
    console = Console()
    console.print(table)
    console.print(f"files  {directory}", highlight=False, soft_wrap=True)


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_figure(each)}" for key, each in value.items()) or "-"
    return "-" if value is None else str(value)
