"""ReportData to one self-contained HTML page: no script, no font, no image from anywhere else.

Invariant: everything a model or a command wrote is escaped; it can put nothing into the page.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from infra.db.reading.evaluations import Evaluation
from mainspring.ids import RolloutId, rollout_workflow
from mainspring.rewards.passk import wilson
from mainspring.status import Sampling, Verdict
from mainspring.words.events import lines
from mainspring.words.figures import duration, percent
from reports import plots
from reports.data import (
    HELDOUT_TEMPLATES,
    ReportData,
    ShownTrajectory,
    ShownTurn,
    Supervised,
)

OUTPUT_CHARS = 4000
"""Characters of one reply or output, head and tail together: the store has the rest."""

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
"""Terminal colours and control characters, which HTML cannot show."""


@dataclass(frozen=True, slots=True)
class Headline:
    label: str
    value: str
    before: str | None = None
    """Shown small before the value, with an arrow."""
    note: str = ""
    tone: str = ""
    """"good" or "bad" colours the value."""


def render(data: ReportData) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = _shown
    environment.filters["percent"] = percent
    environment.filters["duration"] = duration
    return environment.get_template("page.html.j2").render(
        data=data,
        happened=lines(data.events),
        headlines=_headlines(data),
        plots=[(title, caption, Markup(svg)) for title, caption, svg in plots.draw(data)],
        workflow_url=lambda rollout: _workflow_url(data, rollout),
        prose=_prose,
        tone=_tone,
    )


def _of_supervised(data: ReportData, run: Supervised) -> list[Headline]:
    losses = [step.metrics.get("loss") for step in data.steps]
    texts = ["-" if loss is None else f"{loss:.3f}" for loss in losses] or ["-"]
    skipped = f", {run.data.num_skipped:,} skipped as too long" if run.data.num_skipped else ""
    return [
        Headline(
            "Loss",
            texts[-1],
            before=texts[0] if len(texts) > 1 else None,
            note=f"nats a trained token, {len(losses):,} of {run.num_steps:,} steps",
        ),
        Headline(
            "Samples",
            f"{run.data.num_samples:,}",
            note=f"{run.data.num_tokens:,} tokens, {run.data.num_trained_tokens:,} of them "
            f"trained{skipped}",
        ),
        Headline(
            "Wall time", duration(data.totals.wall_s), note=f"model: {run.model or 'none yet'}"
        ),
    ]


def _headlines(data: ReportData) -> list[Headline]:
    if data.supervised is not None:
        return _of_supervised(data, data.supervised)
    totals = data.totals
    gap, limit = totals.max_logprob_gap, data.logprob_gap_limit
    rates = [
        ("Resolved", data.main_split, Sampling.SAMPLED, "unseen tasks, sampled"),
        ("Greedy", data.main_split, Sampling.GREEDY, "unseen tasks, temperature 0"),
        ("Unseen bug types", HELDOUT_TEMPLATES, Sampling.SAMPLED, "never trained on"),
        *((label, label, Sampling.SAMPLED, "sampled") for label in data.further),
    ]
    lines = [
        _rate(label, note, *data.before_after(split, sampling), data.evaluated(split, sampling)[-1])
        for label, split, sampling, note in rates
        if data.evaluated(split, sampling)
    ]
    return [
        *lines,
        Headline(
            "Largest log-prob gap",
            "not measured" if gap is None else f"{gap:.1e}",
            note=f"over {totals.num_gap_tokens:,} tokens"
            + (f"; limit {limit:g}" if limit is not None else ""),
            tone="" if gap is None or limit is None else "good" if gap <= limit else "bad",
        ),
        Headline(
            "Rollouts",
            f"{totals.num_rollouts:,}",
            note=f"{totals.num_turns:,} turns, {totals.num_steps:,} optimizer steps",
        ),
        *([_suspects(data)] if totals.num_suspicious else []),
        Headline(
            "Wall time", duration(totals.wall_s), note="warm start, rollouts, steps, evaluations"
        ),
    ]


def _rate(
    label: str, note: str, before: float | None, after: float | None, newest: Evaluation
) -> Headline:
    """With the 95 % interval of the newest evaluation."""
    scored = newest.num_tasks - newest.num_masked
    low, high = wilson(newest.num_resolved / scored, scored)
    note = f"{note}; 95 % interval {100 * low:.0f}-{100 * high:.0f} %, {scored} tasks"
    if before is None or after is None:
        return Headline(label, percent(before if after is None else after), note=note)
    tone = "good" if after > before else "bad" if after < before else ""
    return Headline(label, percent(after), before=percent(before), note=note, tone=tone)


def _suspects(data: ReportData) -> Headline:
    num, of = data.totals.num_suspicious, data.totals.num_rollouts
    return Headline(
        "Suspicious rollouts", f"{num:,}", note=f"{percent(num / max(of, 1))} of all", tone="warn"
    )


def _workflow_url(data: ReportData, rollout: str) -> str:
    workflow = quote(rollout_workflow(RolloutId(rollout)), safe="")
    namespace = quote(data.temporal_namespace, safe="")
    return f"{data.temporal_ui.rstrip('/')}/namespaces/{namespace}/workflows/{workflow}"


def _shown(text: str) -> str:
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    if len(text) <= OUTPUT_CHARS:
        return text
    half = OUTPUT_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - OUTPUT_CHARS:,} characters ...]\n{text[-half:]}"


def _prose(turn: ShownTurn) -> str:
    """The reply without the fenced blocks of its commands, which are shown as commands."""
    reply = turn.reply
    for ran in turn.commands:
        block = re.compile(r"```\w*\n" + re.escape(ran.command.strip("\n")) + r"\s*```")
        reply = block.sub("", reply, count=1).strip()
    return reply


def _tone(trajectory: ShownTrajectory) -> str:
    if trajectory.reward is None:
        return "masked"
    return "good" if trajectory.verdict is Verdict.RESOLVED else "bad"
