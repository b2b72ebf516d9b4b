"""`mainspring eval ...`: measure a model on a task set, or grade a campaign's patches again."""

from datetime import datetime
from typing import Annotated, Any

import typer

from cli.eval import eval_options
from cli.eval.compare import compare
from cli.eval.one import one
from cli.eval.performing import check_model, complete, perform, stored_run
from cli.options import Dump, Home, Json, OneSplit, SetFields, View, Workers, print_dump

app = typer.Typer(name="eval", help="Measure a model on a task set.", no_args_is_help=True)
app.command()(one)
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
    serve: eval_options.Serve = None,
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
    view: View = True,
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
            **eval_options.of_model(model, api, base_url, serve),
            "temperature": eval_options.number_or_text(temperature),
        },
        "agent": {"kind": agent, "step_limit": step_limit, "preset": preset},
        "evaluation": {"concurrency": concurrency},
        "run": {
            **{"split": split, "slice": part, "task": task, "shuffle": shuffle, "limit": limit},
            **{"samples": samples, "serve": serve is not None or None},
        },
    }
    asked = eval_options.asked(file, given, options, "eval run")
    raw, named, where = asked.raw, asked.named, asked.where
    is_whole = file is not None or (source is not None and (model or serve) is not None)
    if name is not None and not dump and not is_whole:
        return perform(stored_run(name, raw), output, retry, workers, home, as_json)
    if all(isinstance(raw.get(section), dict) for section in ("tasks", "policy", "run")):
        complete(raw, name)
    checked = check_evaluation_file(raw, where, named)  # before any service is asked
    if agent is not None:
        check_agent(checked.agent)
    if dump:
        return print_dump(checked, with_preset(asked.layers), as_json=as_json)
    check_model(checked)

    async def config_of(run: Any) -> Any:
        raw["run"]["split"] = await run.split_of(raw, raw["run"].get("split"))
        return check_evaluation_file(raw, where, named).config()

    perform(config_of, output, retry, workers, home, as_json)


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
            return await stored(run.db, chosen, RegradeConfig, run.settings.home)
        return await run.regrade_config(campaign, chosen)

    perform(config_of, output, retry, workers, home, as_json)
