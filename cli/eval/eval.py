"""`mainspring eval ...`: measure a model on a task set, or grade a campaign's patches again."""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.eval import eval_options
from cli.eval.compare import compare
from cli.options import Dump, Home, Json, OneSplit, SetFields, Workers, print_dump
from cli.terminal_text import echo
from mainspring.status import PolicyApi

app = typer.Typer(name="eval", help="Measure a model on a task set.", no_args_is_help=True)
app.command()(compare)


@app.command()
def run(
    file: eval_options.File = None,
    source: eval_options.Source = None,
    split: OneSplit = None,
    part: eval_options.Part = None,
    task: eval_options.Matching = None,
    shuffle: eval_options.Shuffle = None,
    limit: eval_options.Limit = None,
    agent: eval_options.AgentKind = None,
    unverified: eval_options.Unchecked = None,
    model: eval_options.Model = None,
    api: eval_options.Api = None,
    base_url: eval_options.BaseUrl = None,
    samples: eval_options.Samples = None,
    temperature: eval_options.Temperature = None,
    step_limit: eval_options.StepLimit = None,
    preset: eval_options.Limits = None,
    concurrency: eval_options.Concurrency = None,
    given: SetFields = None,
    dump: Dump = False,
    name: eval_options.Name = None,
    output: eval_options.Output = None,
    retry: eval_options.Retry = False,
    workers: Workers = True,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Evaluate a model on a task set and write results and trajectories.

    The endpoint's key is read from MAINSPRING_POLICY_API_KEY. To resume an interrupted run,
    give its --name; nothing else is needed. Starts local workers unless
    MAINSPRING_TEMPORAL_ADDRESS is set; then existing workers are used.
    """
    from mainspring.agents.choice import check_agent
    from mainspring.config.files.presets import with_preset
    from mainspring.config.files.reading import check_evaluation_file

    options = {
        "tasks": {"source": source, "unverified": unverified},
        "policy": {
            "model": model,
            "api": api,
            "engines": base_url or None,
            "temperature": eval_options.number_or_text(temperature),
        },
        "agent": {"kind": agent, "step_limit": step_limit, "preset": preset},
        "evaluation": {"concurrency": concurrency},
        "run": {
            **{"split": split, "slice": part, "task": task, "shuffle": shuffle, "limit": limit},
            "samples": samples,
        },
    }
    asked = eval_options.asked(file, given, options, "eval run")
    raw, named, where = asked.raw, asked.named, asked.where
    if name is not None and not dump and file is None and (source is None or model is None):
        return _perform(_stored_run(name, raw), output, retry, workers, home, as_json)
    if all(isinstance(raw.get(section), dict) for section in ("tasks", "policy", "run")):
        _complete(raw, name)
    checked = check_evaluation_file(raw, where, named)  # before any service is asked
    if agent is not None:
        check_agent(checked.agent)
    if dump:
        return print_dump(checked, with_preset(asked.layers), as_json=as_json)

    async def config_of(run: Any) -> Any:
        raw["run"]["split"] = await run.split_of(raw, raw["run"].get("split"))
        return check_evaluation_file(raw, where, named).config()

    _perform(config_of, output, retry, workers, home, as_json)


@app.command()
def regrade(
    campaign: Annotated[
        str | None, typer.Argument(help="Name of an evaluation or campaign that has ended.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the run. Reuse it to resume. Default: CAMPAIGN and time."),
    ] = None,
    output: eval_options.Output = None,
    retry: eval_options.Retry = False,
    workers: Workers = True,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Grade the stored patches of an evaluation or campaign again, without the model.

    To resume an interrupted run, give its --name; nothing else is needed.
    """
    from mainspring.errors import UsageError
    from mainspring.ids import campaign_id_at

    if campaign is None and name is None:
        raise UsageError(
            "`mainspring eval regrade` needs the name of what to grade again",
            remedy="`mainspring campaign list` lists campaigns and evaluations",
        )
    chosen = name or campaign_id_at("regrade", campaign or "", datetime.now())

    async def config_of(run: Any) -> Any:
        from cli.operations.runs.stored_run import stored
        from mainspring.config.evaluations.regrade import RegradeConfig

        if campaign is None:
            return await stored(run.db, chosen, RegradeConfig)
        return await run.regrade_config(campaign, chosen)

    _perform(config_of, output, retry, workers, home, as_json)


def _stored_run(name: str, raw: dict[str, Any]) -> Callable[[Any], Any]:
    """The stored evaluation of this name, with the options that were given beside it."""

    async def config_of(run: Any) -> Any:
        from cli.operations.runs.stored_run import changed, stored
        from infra.db.runs import campaigns
        from mainspring.config.evaluations.evaluation import EvaluationConfig
        from mainspring.errors import UsageError
        from mainspring.ids import campaign_id

        if await campaigns.find(run.db, campaign_id(name)) is None:
            raise UsageError(
                f"no evaluation {name} is stored, and a new one needs --source and --model",
                remedy="give them, or correct --name (`mainspring campaign list` lists the runs)",
            )
        config = await stored(run.db, name, EvaluationConfig)
        values = {key: raw[key] for key in ("tasks", "policy", "agent") if raw[key]}
        values |= raw["evaluation"] | raw["run"]
        return changed(config, values, "eval run")

    return config_of


def _complete(raw: dict[str, Any], name: str | None) -> None:
    """Fill in what an evaluation takes for granted. Raises UsageError."""
    from mainspring.config.section import BUNDLED, bundled_is_no_folder
    from mainspring.errors import UsageError
    from mainspring.ids import campaign_id_at

    tasks, policy = raw["tasks"], raw["policy"]
    for section, key in ((tasks, "source"), (policy, "model")):
        if key not in section:
            raise UsageError(
                f"an evaluation needs --{key}", remedy="give it, or a campaign file that has it"
            )
    if policy.get("api", PolicyApi.SGLANG) == PolicyApi.SGLANG:
        if policy["model"] == BUNDLED:
            raise bundled_is_no_folder("--model")
        # Workers have a working directory of their own.
        model = Path(policy["model"]).absolute()
        if "/" not in policy["model"] and not model.exists():
            raise UsageError(
                f"model directory {model}: no such directory",
                remedy="with --api sglang --model is a directory; for an OpenAI-compatible "
                "endpoint add --api openai",
            )
        policy["model"] = str(model)
    elif "engines" not in policy:
        raise UsageError(
            "an evaluation with --api openai needs --base-url",
            remedy="give the endpoint's URL, as in --base-url http://127.0.0.1:8000/v1",
        )
    policy.setdefault("temperature", 1.0 if raw["run"].get("samples", 1) > 1 else 0.0)
    if name is not None:
        raw["name"] = name
    if "name" not in raw:
        model = Path(policy["model"]).name
        raw["name"] = campaign_id_at("eval", f"{tasks['source']}-{model}", datetime.now())


def _perform(
    config_of: Callable[[Any], Any],
    output: Path | None,
    retry: bool,
    workers: bool,
    home: Path | None,
    as_json: bool,
) -> None:
    import asyncio

    from cli.eval import eval_screen
    from cli.operations.runs.run_launch import conductor
    from cli.operations.runs.stored_run import resuming
    from cli.progress import counting
    from mainspring.artifacts.layout import report
    from mainspring.config.files.leftovers import unused_judges
    from mainspring.errors import WorkFailed
    from reports.export.evaluation import write_evaluation

    def say(text: str) -> None:
        echo(text, dim=True, err=as_json)

    async def go() -> tuple[dict[str, Any], Path, str, str]:
        async with conductor(home, say, own_workers=workers, for_a_program=as_json) as run:
            config = await config_of(run)
            for line in unused_judges(config.judges, config.reward):
                say(line)
            record = await run.perform(config, retry=retry)
            directory = output or report(run.settings.home, record.id)
            with counting("writing") as progress:
                summary = await write_evaluation(run.db, record.id, directory, progress)
            again = resuming(record.kind, record.id, home)
            return summary, directory, run.settings.temporal_link, again

    summary, directory, ui, again = asyncio.run(go())
    if as_json:
        typer.echo(json.dumps({**summary, "directory": str(directory)}))
    else:
        eval_screen.print_summary(summary, directory, ui)
    if summary["errors"]:
        raise WorkFailed(
            f"{summary['errors']} of {summary['total']} rollouts of {summary['campaign']} could "
            "not be scored",
            remedy=f"`mainspring rollout list {summary['campaign']} --masked` names their faults; "
            f"`{again} --retry` retries them",
        )
