"""How campaigns look in a terminal: the list, and one campaign with its steps.

Ids stand whole at any width; every number is written as `mainspring.words.figures` writes it.
"""

import json
from typing import Any

from mainspring.status import Verdict
from mainspring.words.ends import status_words
from mainspring.words.events import lines
from mainspring.words.figures import duration, number, percent, share_of
from mainspring.words.wait import WaitKind

NUM_EVENTS = 5
"""Newest events that are shown."""
NUM_STEPS = 10
"""Newest steps that are shown; --json has all."""
OFF_POLICY = {
    "gap": "logprob_gap_max",
    "gap KL": "logprob_gap_k3",
    "ratio": "ratio_mean",
    "KL": "kl",
}
"""Columns of a retrained campaign, each with its figure (docs/metrics.md)."""
MAX_NAME = 32
"""Characters of the longest name that stands in one line at 80 columns."""


def print_list(rows: list[dict[str, Any]]) -> None:
    from cli.tables import Screen, Table

    console = Screen()
    if not rows:
        console.print("no campaign is stored; start one: `mainspring quickstart`")
        return
    table = Table("name", "kind", "status", "done", "resolved", "created")
    for column in (3, 4):
        table.columns[column].justify = "right"
    # A name is copied into the next command: dates and words fold before it does.
    table.columns[0].no_wrap = max(len(row["name"]) for row in rows) <= MAX_NAME
    for row in rows:
        steps = row["num_steps"]
        done = f"{row['num_rollouts_done']} rollouts"
        if steps is not None:
            done = f"step {row['num_steps_done']} of {steps}"
        # Of a training campaign the evaluations tell; of a verification half should fail.
        has_share = row["kind"] in ("eval", "regrade") and row["num_scored"]
        share = percent(row["num_resolved"] / row["num_scored"]) if has_share else ""
        created = row["created_at"].replace("T", " ")[:16]
        status = status_words(row["status"])
        kind = "retrain" if row["retrained_from"] else row["kind"]
        table.add_row(row["name"], kind, status, done, share, created)
    console.print(table)
    for row in rows:
        if row["error"]:
            console.print(f"{row['name']}: {row['error']}", soft_wrap=True)


def print_one(seen: Any, view: str | None = None) -> None:
    """`seen` is a `cli.operations.runs.campaign_view.CampaignView`."""
    from cli.tables import Screen

    console = Screen()

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, soft_wrap=True)

    record, data = seen.record, seen.data
    what = "campaign" if record.kind.value == "train" else record.kind.value
    spent = duration(data.totals.wall_s)
    say(f"{what} {record.id}: {status_words(record.status)}, {spent}", "bold")
    if record.error:
        say(f"error      {record.error}", "red")
    for sentence in seen.doing:
        say(f"doing      {sentence}")
    for wait in seen.waits:
        style = "yellow" if wait.kind is WaitKind.BLOCKED else ""
        say(f"{wait.kind.value:10} {wait.line(data.made_at)}", style)
    for whose, sentence in seen.clocks.items():
        say(f"clock      {whose}: {sentence}", "yellow")
    for line in lines(data.events)[-NUM_EVENTS:]:
        say(f"event      {line.told()}")
    if len(data.events) > NUM_EVENTS:
        say(f"           all: `mainspring events {record.id}`", "dim")
    say("")
    if data.supervised is not None:
        return _print_supervised(console, say, seen, view)
    if record.kind.value == "train":
        _print_results(console, data)
        if data.steps:
            console.print(_steps(data, record.num_steps, retrained=record.is_retrained))
            if text := _speed(data.steps[-1]):
                say(f"speed      {text}")
            for warning in data.warnings:
                say(f"warning    {warning}", "yellow")
    else:
        _print_run(say, data)
    for sentence in data.judge_warnings:
        say(f"warning    {sentence}", "yellow")
    if record.is_retrained:
        _print_retrained(say, record.parent)
    elif record.parent is not None:
        say(f"fork of    {record.parent.campaign}, from its version {record.parent.version} on")
    for each in data.changes:
        say(f"changed    {each.line}")
        say(f"           by {each.changed_by}, {each.changed_at:%Y-%m-%d %H:%M} UTC", "dim")
    totals = data.totals
    say(f"rollouts   {totals.num_rollouts:,}, {totals.num_turns:,} turns")
    for label, counts in (("verdicts", data.verdicts), ("ended by", data.stop_reasons)):
        if counts:
            text = ", ".join(f"{num:,} {word.replace('_', ' ')}" for word, num in counts.items())
            say(f"{label:10} {text}")
    for fault, num in data.faults.items():
        # A fault that ended the campaign stands above.
        if not (record.error and record.error in fault):
            say(f"fault      of {num:,} masked rollouts: {fault}", "yellow")
    for each in data.agents:
        rate = share_of(each.num_resolved, each.num_scored)
        reward = "-" if each.reward_mean is None else f"{each.reward_mean:.2f}"
        say(
            f"agent      {each.agent}: {each.num_rollouts:,} rollouts, {rate} resolved, reward "
            f"{reward}, {each.turns_mean:.1f} turns"
        )
    for each in data.sets:
        rate = share_of(each.num_resolved, each.num_scored)
        reward = "-" if each.reward_mean is None else f"{each.reward_mean:.2f}"
        groups = "1 group" if each.num_groups == 1 else f"{each.num_groups:,} groups"
        say(
            f"{'trained on' if each.kind.value == 'train' else 'measured':10} {each.name}: "
            f"{each.num_rollouts:,} rollouts of {groups}, {rate} resolved, reward {reward}, "
            f"{each.turns_mean:.1f} turns"
        )
    for sha256, num in data.bundles.items():
        say(f"bundle     {sha256}: {num:,} rollouts")
    if totals.num_groups_flat or totals.num_groups_masked:
        flat, masked = totals.num_groups_flat, totals.num_groups_masked
        share = totals.replaced_turns_share
        cost = "" if share is None else f", {share:.0%} of the turns"
        say(f"groups replaced: {flat} with equal rewards, {masked} masked{cost}")
    if totals.num_suspicious:
        command = f"mainspring rollout list {record.id} --suspicious"
        say(f"suspicious {totals.num_suspicious} (`{command}`)")
    if data.fingerprint is not None and data.fingerprint.weights:
        say(f"weights    {data.fingerprint.weights}")
        if (first := data.fingerprint.not_reproducible_from) is not None:
            command = f"mainspring campaign fingerprint {record.id}"
            say(f"           not repeatable from step {first} on (`{command}`)", "yellow")
    if totals.max_logprob_gap is not None:
        say(f"gap        {totals.max_logprob_gap:.1e} largest log-prob gap")
    _print_places(say, seen, view)


def _print_supervised(console: Any, say: Any, seen: Any, view: str | None) -> None:
    from cli.train.supervised_screen import steps_table

    data, run = seen.data, seen.data.supervised
    if data.steps:
        console.print(steps_table(data, run.num_steps))
    skipped = f", {run.data.num_skipped:,} skipped" if run.data.num_skipped else ""
    say(f"data       {run.data.num_samples:,} samples, {run.data.num_tokens:,} tokens{skipped}")
    if run.model:
        say(f"model      {run.model}")
    _print_places(say, seen, view)


def _print_places(say: Any, seen: Any, view: str | None) -> None:
    name = seen.record.id
    if view is not None:
        say(f"view       {view}")
    if seen.report:
        say(f"report     {seen.report.absolute().as_uri()}")
    else:
        say(f"report     `mainspring campaign report {name}` writes it")
    if seen.temporal_link:
        query = f"CampaignId%3D%22{name}%22"
        say(f"Temporal   {seen.temporal_link}?query={query}")
    if seen.data.supervised is None:
        say(f"next       `mainspring rollout list {name}`")


def _print_results(console: Any, data: Any) -> None:
    from cli.tables import Table
    from mainspring.status import Sampling
    from reports.data import HELDOUT_TEMPLATES

    table = Table("resolved", "before", "after")
    for column in (1, 2):
        table.columns[column].justify = "right"
    for label, split, sampling in (
        ("unseen tasks, sampled", data.main_split, Sampling.SAMPLED),
        ("unseen tasks, greedy", data.main_split, Sampling.GREEDY),
        ("unseen bug types", HELDOUT_TEMPLATES, Sampling.SAMPLED),
        *((label, label, Sampling.SAMPLED) for label in data.further),
    ):
        evaluations = data.evaluated(split, sampling)
        if not evaluations:
            continue
        first, last = evaluations[0], evaluations[-1]
        before = _share(first) if first.version == data.first_version else "-"
        after = "-"
        if last.version > data.first_version:
            after = f"{_share(last)}, version {last.version}"
        table.add_row(label, before, after)
    if table.row_count:
        console.print(table)
        console.print()


def _share(evaluation: Any) -> str:
    return share_of(evaluation.num_resolved, evaluation.num_tasks - evaluation.num_masked)


def _print_retrained(say: Any, parent: Any) -> None:
    first = parent.version + 1
    in_order = parent.order == tuple(range(first, first + len(parent.order)))
    steps = f"{first} to {parent.order[-1]}" if in_order else ", ".join(map(str, parent.order))
    of = f"version {parent.version} and the batches of its steps {steps}"
    say(f"retrained from {parent.campaign}: {of}")
    for field, value in parent.given.items():
        say(f"given      {field} = {json.dumps(value)}")


def _steps(data: Any, num_steps: int, *, retrained: bool = False) -> Any:
    """`retrained`: with the columns that tell how far each step is off-policy."""
    from cli.tables import Table

    names = ("step", "reward", "resolved", "mixed groups", "entropy", "grad norm", "time")
    if retrained:
        names = ("step", "reward", *OFF_POLICY, "entropy", "grad norm", "time")
    steps = data.steps[-NUM_STEPS:]
    caption = f"the last {len(steps)} of {len(data.steps)} steps; it ends after step {num_steps}"
    table = Table(*names, caption=caption)
    for column in table.columns:
        column.justify = "right"
    for step in steps:
        mixed = "-" if step.mixed_groups is None else str(step.mixed_groups)
        of_batch = [percent(step.solve_rate), mixed]
        if retrained:
            of_batch = [far(step.metrics.get(name)) for name in OFF_POLICY.values()]
        table.add_row(
            str(step.step),
            number(step.reward_mean),
            *of_batch,
            number(step.entropy),
            number(step.grad_norm),
            duration(step.train_s),
        )
    return table


def far(value: float | None) -> str:
    """A figure of how far a step is off-policy."""
    return "-" if value is None else f"{value:.2g}"


def _speed(step: Any) -> str:
    """Speed of the newest step."""
    metrics = step.metrics
    parts = [
        f"{metrics[name]:,.0f} {unit}"
        for name, unit in (("tokens_per_s", "tokens/s"), ("goodput", "tokens/s trained"))
        if metrics.get(name) is not None
    ]
    if metrics.get("mfu") is not None:
        parts.append(f"MFU {percent(metrics['mfu'])}")
    if metrics.get("trainer_idle_s") is not None:
        parts.append(f"waited {duration(metrics['trainer_idle_s'])}")
    if metrics.get("engine_idle_s") is not None:
        parts.append(f"engines idle {duration(metrics['engine_idle_s'])}")
    if metrics.get("rank_memory_peak_gib") is not None:
        parts.append(f"{metrics['rank_memory_peak_gib']:.1f} GiB a rank")
    return ", ".join(parts)


def _print_run(say: Any, data: Any) -> None:
    verdicts = data.verdicts
    num_scored = sum(num for word, num in verdicts.items() if word != Verdict.FAULT)
    if num_scored:
        num = verdicts.get(Verdict.RESOLVED.value, 0)
        say(f"resolved   {num} of {num_scored}, {share_of(num, num_scored)}")
