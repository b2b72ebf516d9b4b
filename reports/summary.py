"""Files of a report for scripts: the summary, and the metrics line by line.

Invariant: a reader never sees half a file; each is written beside its place and moved there.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mainspring.status import Sampling
from reports import metrics
from reports.data import HELDOUT_TEMPLATES, ReportData
from reports.whole_file import write_whole

REPORT_FILE = "report.html"
"""First page of a run's report (view.frozen)."""
SUMMARY_FILE = "summary.json"
EVENTS_SUMMED = 20
"""Newest events in the summary."""
METRICS_FILE = "metrics.jsonl"


def summary(data: ReportData, report: Path | None = None) -> dict[str, Any]:
    """The headline numbers; None where nothing was measured."""
    solve_before, solve_after = data.before_after(data.main_split, Sampling.SAMPLED)
    greedy_before, greedy_after = data.before_after(data.main_split, Sampling.GREEDY)
    templates_before, templates_after = data.before_after(HELDOUT_TEMPLATES, Sampling.SAMPLED)
    return {
        "campaign": data.campaign,
        "status": data.status.value,
        "seed": data.seed,
        "solve_rate_before": solve_before,
        "solve_rate_after": solve_after,
        "greedy_before": greedy_before,
        "greedy_after": greedy_after,
        "heldout_templates_before": templates_before,
        "heldout_templates_after": templates_after,
        "evaluations": _evaluations(data),
        "num_steps": data.totals.num_steps,
        "num_rollouts": data.totals.num_rollouts,
        "num_turns": data.totals.num_turns,
        "verdicts": data.verdicts,
        "stop_reasons": data.stop_reasons,
        "faults": data.faults,
        "agents": {each.agent: asdict(each) for each in data.agents},
        "sources": [asdict(each) for each in data.sets],
        "num_groups_masked": data.totals.num_groups_masked,
        "num_groups_flat": data.totals.num_groups_flat,
        "replaced_turns_share": data.totals.replaced_turns_share,
        "num_suspicious": data.totals.num_suspicious,
        "suspicions": data.suspicions,
        "bundles": data.bundles,
        "reward_parts": data.compositions[-1].parts if data.compositions else {},
        "wall_s": data.totals.wall_s,
        "max_logprob_gap": data.totals.max_logprob_gap,
        "weights_sha256": data.fingerprint.weights if data.fingerprint else None,
        "not_reproducible_from": data.fingerprint.not_reproducible_from
        if data.fingerprint
        else None,
        "retrained_from": data.parent.campaign if data.parent and data.parent.order else None,
        "parent": None if data.parent is None else asdict(data.parent),
        "changes": [change.as_dict() for change in data.changes],
        "judge_warnings": list(data.judge_warnings),
        "events": [event.as_dict() for event in data.events[-EVENTS_SUMMED:]],
        "supervised": _supervised(data),
        "temporal_ui": data.temporal_ui,
        "report": str(report) if report else None,
    }


def _evaluations(data: ReportData) -> dict[str, Any]:
    """Solve rates by label (a split, or the name of a source) and sampling."""
    found: dict[str, Any] = {}
    for label, sampling in dict.fromkeys((each.split, each.sampling) for each in data.evaluations):
        before, after = data.before_after(label, sampling)
        found.setdefault(label, {})[sampling.value] = {"before": before, "after": after}
    return found


def _supervised(data: ReportData) -> dict[str, Any] | None:
    run = data.supervised
    if run is None:
        return None
    losses = [step.metrics.get("loss") for step in data.steps]
    return {
        "num_steps_planned": run.num_steps,
        "num_samples": run.data.num_samples,
        "num_tokens": run.data.num_tokens,
        "num_trained_tokens": run.data.num_trained_tokens,
        "num_skipped": run.data.num_skipped,
        "data_sha256": run.data.digest,
        "loss_first": losses[0] if losses else None,
        "loss_last": losses[-1] if losses else None,
        "model": run.model,
    }


def write(data: ReportData, directory: Path, report: Path | None = None) -> Path:
    """Write summary.json and metrics.jsonl into `directory`; gives the path of the first. `report`:
    the page for people."""
    directory.mkdir(parents=True, exist_ok=True)
    summary_file = directory / SUMMARY_FILE
    write_whole(
        directory / METRICS_FILE,
        "".join(json.dumps(line, allow_nan=False) + "\n" for line in metrics.lines(data)),
    )
    write_whole(summary_file, json.dumps(summary(data, report), indent=2, allow_nan=False) + "\n")
    return summary_file
