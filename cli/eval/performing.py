"""Shared by the commands that play an evaluation: what it takes for granted, and the run itself.

Invariant: what is wrong with the options is told before any service is asked. Imported by the
commands beside this file.
"""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from cli.terminal_text import echo
from mainspring.status import PolicyApi


def stored_run(name: str, raw: dict[str, Any]) -> Callable[[Any], Any]:
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
        config = await stored(run.db, name, EvaluationConfig, run.settings.home)
        values = {key: raw[key] for key in ("tasks", "policy", "agent", "prices") if raw.get(key)}
        values |= raw["evaluation"] | raw["run"]
        return changed(config, values, "eval run")

    return config_of


def complete(raw: dict[str, Any], name: str | None, what: str | None = None) -> None:
    """Fill in what an evaluation takes for granted, its name of `what` (default: task set and
    model). Raises UsageError."""
    from mainspring.config.section import BUNDLED, bundled_is_no_folder
    from mainspring.errors import UsageError
    from mainspring.ids import campaign_id_at

    tasks, policy = raw["tasks"], raw["policy"]
    for section, key in ((tasks, "source"), (policy, "model")):
        if key not in section:
            raise UsageError(
                f"an evaluation needs --{key}", remedy="give it, or a campaign file that has it"
            )
    if policy.get("api", PolicyApi.SGLANG) in (PolicyApi.SGLANG, PolicyApi.VLLM):
        if policy["model"] == BUNDLED:
            raise bundled_is_no_folder("--model")
        # Workers have a working directory of their own.
        model = Path(policy["model"]).absolute()
        if "/" not in policy["model"] and not model.exists():
            raise UsageError(
                f"model directory {model}: no such directory",
                remedy="with --api sglang or vllm --model is a directory; for an OpenAI-compatible "
                "endpoint add --api openai",
            )
        policy["model"] = str(model)
        if raw["run"].get("serve") is True:
            _fit_context(policy, model, has_preset="preset" in raw.get("agent", {}))
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
        raw["name"] = campaign_id_at("eval", what or f"{tasks['source']}-{model}", datetime.now())


def _fit_context(policy: dict[str, Any], model: Path, *, has_preset: bool) -> None:
    """Give a served model no more context than its own, where the file leaves it open. Raises
    ModelError for a folder without a config."""
    from infra.policy.model.model_files import read_facts
    from mainspring.config.policy import PolicyConfig

    own = read_facts(model).max_context
    usual = PolicyConfig()
    if has_preset or own is None or own >= usual.max_context or "max_context" in policy:
        return
    policy["max_context"] = own
    policy.setdefault("max_new_tokens", min(usual.max_new_tokens, own // 2))


def check_model(checked: Any) -> None:
    """Raises UsageError for a model that the run is to serve and cannot, before anything starts."""
    if checked.run.serve:
        from cli.operations.machine.evaluation_engine import check_served

        check_served(checked.policy)


def perform(
    config_of: Callable[[Any], Any],
    output: Path | None,
    retry: bool,
    workers: bool,
    home: Path | None,
    as_json: bool,
    *,
    of_one: bool = False,
    follow: bool = False,
) -> None:
    """`config_of` gives the configuration, once services are up. `of_one`: the end tells of each
    rollout; `follow`: and so does every turn. Raises MainspringErrors."""
    import asyncio

    from cli.eval import eval_screen
    from cli.operations.runs.run_launch import conductor
    from cli.operations.runs.stored_run import resuming
    from cli.operations.runs.turn_watch import TurnWatch
    from cli.operations.runs.watch import RunWatch
    from cli.progress import counting
    from infra.db.rollouts import rollouts
    from mainspring.artifacts.layout import report
    from mainspring.config.files.leftovers import unused_judges
    from mainspring.errors import WorkFailed
    from reports.export.evaluation import write_evaluation
    from reports.one_rollout import read

    seen: list[Any] = []

    def say(text: str) -> None:
        echo(text, dim=True, err=as_json)

    async def go() -> tuple[dict[str, Any], Path, str, str]:
        async with conductor(home, say, own_workers=workers, for_a_program=as_json) as run:
            config = await config_of(run)
            for line in unused_judges(config.judges, config.reward):
                say(line)
            watching = TurnWatch if follow else RunWatch
            record = await run.perform(config, retry=retry, watching=watching)
            directory = output or report(run.settings.home, record.id)
            with counting("writing") as progress:
                summary = await write_evaluation(run.db, record.id, directory, progress)
            if of_one:
                ended = await rollouts.list_rollouts(run.db, campaign=record.id)
                seen.extend([await read(run.db, each.id) for each in ended])
            again = resuming(record.kind, record.id, home)
            return summary, directory, run.settings.temporal_link, again

    summary, directory, ui, again = asyncio.run(go())
    if as_json:
        typer.echo(json.dumps({**summary, "directory": str(directory)}))
    elif of_one:
        eval_screen.print_ends(summary, seen, directory)
    else:
        eval_screen.print_summary(summary, directory, ui)
    if summary["errors"]:
        raise WorkFailed(
            f"{summary['errors']} of {summary['total']} rollouts of {summary['campaign']} could "
            "not be scored",
            remedy=f"`mainspring rollout list {summary['campaign']} --masked` names their faults; "
            f"`{again} --retry` retries them",
        )
