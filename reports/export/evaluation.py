"""An evaluation written out: a folder a rollout, results, summary, official predictions.

Owns what the numbers mean: masked rollouts (infrastructure failed) are counted and left out of
every rate. Every file is replaced whole, `summary.json` last; writing again writes the same.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from infra.db.database import Database
from infra.db.plans import run_plans
from infra.db.reading.judge_warnings import warnings_of_all
from infra.db.rollouts import groups
from infra.db.runs import campaigns
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.sft import SftConfig
from mainspring.ids import CampaignId
from mainspring.rewards.passk import pass_at_each_k
from mainspring.status import Verdict
from mainspring.trajectories.costs import total
from reports.export.choices import Ended, choices, read_end
from reports.export.folders import write_folder
from reports.export.trajectory import Progress, Trajectory, attempts, read
from reports.whole_file import write_whole

Result = dict[str, Any]
NOT_GRADED = "not_graded"
"""Counted among the verdicts: rollouts that ended before there was one."""


async def write_evaluation(
    database: Database,
    campaign: CampaignId,
    directory: Path,
    progress: Progress = lambda done, of: None,
) -> dict[str, Any]:
    """Write everything about the campaign's ended rollouts below `directory`; the summary."""
    record = await campaigns.get(database, campaign)
    chosen = await attempts(database, campaign)
    choose = record.config.choose if isinstance(record.config, EvaluationConfig) else None
    results: list[Result] = []
    ended: defaultdict[str, list[Ended]] = defaultdict(list)
    predictions: defaultdict[int, list[dict[str, str]]] = defaultdict(list)
    async for trajectory in read(database, campaign, chosen, progress):
        folder = write_folder(trajectory, directory)
        results.append(_result(trajectory, folder.name))
        predictions[trajectory.attempt.sample].append(_prediction(trajectory))
        if choose is not None and not trajectory.attempt.is_masked:
            ended[trajectory.instance_id].append(await read_end(database, trajectory, choose))
    if isinstance(record.config, CampaignConfig | SftConfig):
        num_planned = sum(group.size for group in await groups.list_groups(database, campaign))
    else:
        num_planned = await run_plans.total(database, record.config)
    summary = {
        "campaign": campaign,
        "kind": record.kind,
        "status": record.status,
        "model": record.config.policy.model,
        "data": record.config.task_source,
        **summarise(results, num_unfinished=max(0, num_planned - len(chosen))),
        "cost": _costs(results) if record.config.price else None,
        "judge_warnings": await warnings_of_all(database, campaign, record.config, is_over=True),
    }
    if choose is not None:
        summary |= choices([*ended.values()], choose)
    for sample, lines in predictions.items():
        name = f"predictions-{sample}.jsonl" if sample else "predictions.jsonl"
        write_whole(directory / name, _jsonl(lines))
    write_whole(directory / "results.jsonl", _jsonl(results))
    write_whole(directory / "summary.json", json.dumps(summary, indent=1) + "\n")
    return summary


def summarise(results: list[Result], *, num_unfinished: int = 0) -> dict[str, Any]:
    """The numbers of an evaluation, from the lines of its `results.jsonl`."""
    scored = [result for result in results if not result["masked"]]
    num_resolved = sum(result["resolved"] for result in scored)
    by_task: defaultdict[str, list[bool]] = defaultdict(list)
    for result in scored:
        by_task[result["instance_id"]].append(result["resolved"])
    counts = [(len(outcomes), sum(outcomes)) for outcomes in by_task.values()]
    phases: defaultdict[str, list[float]] = defaultdict(list)
    for result in results:
        for phase, seconds in result["phase_s"].items():
            phases[phase].append(seconds)
    return {
        "total": len(results),
        "unfinished": num_unfinished,
        "tasks": len({result["instance_id"] for result in results}),
        "scored": len(scored),
        "resolved": num_resolved,
        "resolve_rate": num_resolved / len(scored) if scored else None,
        "pass_at_k": [asdict(estimate) for estimate in pass_at_each_k(counts)],
        "errors": len(results) - len(scored),
        "no_patch": sum(result["verdict"] == Verdict.NO_PATCH for result in results),
        "retried": sum(result.get("n_attempts", 1) > 1 for result in results),
        "suspicious": sum(bool(result["suspicions"]) for result in results),
        "verdicts": _counts(result["verdict"] or NOT_GRADED for result in results),
        "stop_reasons": _counts(result["stop_reason"] for result in results),
        "suspicions": _counts(
            suspicion for result in results for suspicion in result["suspicions"]
        ),
        "avg_steps": _mean(result["n_steps"] for result in scored),
        "avg_elapsed_s": _mean(result["elapsed_s"] for result in scored),
        "avg_prompt_tokens": _mean(result["n_prompt_tokens"] for result in scored),
        "avg_completion_tokens": _mean(result["n_completion_tokens"] for result in scored),
        "avg_phase_s": {
            phase: round(fmean(phase_s), 3) for phase, phase_s in sorted(phases.items())
        },
    }


def _costs(results: list[Result]) -> dict[str, float | None]:
    """Dollars, also of masked rollouts; None where a rollout's tokens were not counted."""
    dollars = total(result["cost"] for result in results)
    solved = {result["instance_id"] for result in results if result["resolved"]}
    known = dollars is not None
    return {
        "total": dollars,
        "per_rollout": dollars / len(results) if known and results else None,
        "per_solved_task": dollars / len(solved) if known and solved else None,
    }


def _result(trajectory: Trajectory, folder: str) -> Result:
    return trajectory.outcome() | {
        "elapsed_s": trajectory.rollout.spent_s,
        "n_attempts": trajectory.rollout.attempts,
        "phase_s": {k: v for k, v in trajectory.rollout.phase_s.items() if v is not None},
        "patch_bytes": len(trajectory.patch),
        "n_prompt_tokens": trajectory.num_prompt_tokens,
        "n_completion_tokens": trajectory.num_completion_tokens,
        "cost": trajectory.cost,
        "folder": folder,
    }


def _prediction(trajectory: Trajectory) -> dict[str, str]:
    return {
        "instance_id": trajectory.instance_id,
        "model_name_or_path": trajectory.model,
        "model_patch": trajectory.patch.decode(errors="replace"),
    }


def _counts(words: Iterable[str | None]) -> dict[str, int]:
    return dict(sorted(Counter(str(word) for word in words if word is not None).items()))


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return round(fmean(numbers), 3) if numbers else None


def _jsonl(lines: Iterable[object]) -> str:
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
