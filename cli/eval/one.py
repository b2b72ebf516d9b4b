"""`mainspring eval one`: one task, played with every turn on the screen."""

import re
from typing import Annotated, Any

import typer

from cli.eval import eval_options
from cli.eval.performing import check_model, complete, perform
from cli.options import Home, Json, OneSplit, SetFields, Workers

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="Id of the task.")]
Follow = Annotated[
    bool,
    typer.Option("--follow", help="Print every reply, command and output as they come."),
]
RunName = Annotated[
    str | None,
    typer.Option(help="Name of the run. Reuse it to resume. Default: task and time."),
]


def one(
    task: TaskName,
    file: eval_options.File = None,
    follow: Follow = False,
    source: eval_options.Source = None,
    split: OneSplit = None,
    agent: eval_options.AgentKind = None,
    unverified: Annotated[
        eval_options.Unverified | None,
        typer.Option(help="Skip or use a task that `tasks verify` has not passed (default: use)."),
    ] = None,
    model: eval_options.Model = None,
    serve: eval_options.Serve = None,
    api: eval_options.Api = None,
    base_url: eval_options.BaseUrl = None,
    samples: eval_options.Samples = None,
    temperature: eval_options.Temperature = None,
    step_limit: eval_options.StepLimit = None,
    preset: eval_options.Limits = None,
    given: SetFields = None,
    name: RunName = None,
    output: eval_options.Output = None,
    retry: eval_options.Retry = False,
    workers: Workers = True,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Play one task: its verdict, patch, tests and cost; with --follow every turn as it happens.

    It is an evaluation of one task, stored as any other: `rollout show`, `rollout retry` and
    `eval run --name` work on it. Of a FILE its name, slice, shuffle and limit do not count.
    """
    from mainspring.agents.choice import check_agent
    from mainspring.config.files.reading import check_evaluation_file
    from mainspring.config.section import BUNDLED
    from mainspring.errors import UsageError

    if follow and as_json:
        raise UsageError("--follow and --json exclude each other", remedy="give one of them")
    options = {
        "tasks": {"source": source, "unverified": unverified},
        "policy": {
            **eval_options.of_model(model, api, base_url, serve),
            "temperature": eval_options.number_or_text(temperature),
        },
        "agent": {"kind": agent, "step_limit": step_limit, "preset": preset},
        "evaluation": {},
        "run": {"split": split, "samples": samples, "serve": serve is not None or None},
    }
    asked = eval_options.asked(file, given, options, "eval one")
    raw, named, where = asked.raw, asked.named, asked.where
    has_sections = all(isinstance(raw.get(each), dict) for each in ("tasks", "policy", "run"))
    if has_sections:
        # TASK stands for what the file chooses, and the file's name is that of the whole run.
        raw.pop("name", None)
        for field in ("slice", "shuffle", "limit"):
            raw["run"].pop(field, None)
        raw["run"]["task"] = f"^{re.escape(task)}$"
        raw["tasks"].setdefault("unverified", "use")
        is_open = "source" not in raw["tasks"]
        raw["tasks"].setdefault("source", BUNDLED)  # until the store tells it
        complete(raw, name, what=task)
        if is_open:
            del raw["tasks"]["source"]
    checked = check_evaluation_file(raw, where, named)  # before any service is asked
    if agent is not None:
        check_agent(checked.agent)
    check_model(checked)

    async def config_of(run: Any) -> Any:
        await _place(run, raw, task, split)
        return check_evaluation_file(raw, where, named).config()

    perform(config_of, output, retry, workers, home, as_json, of_one=True, follow=follow)


async def _place(run: Any, raw: dict[str, Any], task: str, split: str | None) -> None:
    """Write the task's source and split into the table. Raises UsageError."""
    from infra.db.naming import task_named
    from mainspring.config.section import BUNDLED
    from mainspring.errors import UsageError

    section, part = raw["tasks"], raw["run"]
    if section.get("source") == BUNDLED:  # made when a run is stored
        part["split"] = await run.split_of(raw, part.get("split"))
        return
    stored = await task_named(run.db, task, section.get("source"))
    if split is not None and split != stored.split:
        raise UsageError(
            f"task {task} is in the split {stored.split!r}, not in {split!r}",
            remedy="leave --split out",
        )
    section["source"], part["split"] = stored.source, stored.split
