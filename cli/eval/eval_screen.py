"""How a finished evaluation looks in a terminal: the result first, then cost, then what to read.

Reads the evaluation's written folder for the rollouts that did not resolve their task.
"""

import json
from pathlib import Path
from typing import Any

from cli.terminal_text import plain
from mainspring.status import is_masked
from mainspring.words.ends import ENDS, VERDICTS, grade_lines
from mainspring.words.figures import dollars, duration, number, percent

NUM_SHOWN = 10
"""Rollouts that did not resolve; the next command lists all."""
NUM_FAULTS = 3
"""Faults of masked rollouts that are shown, each of another kind."""


def print_summary(summary: dict[str, Any], directory: Path, temporal_link: str = "") -> None:
    """`summary` is what `reports.export.evaluation` made of it."""
    from cli.tables import Screen

    console = Screen()

    def say(text: str, style: str = "") -> None:
        console.print(plain(text), style=style, soft_wrap=True)

    name = summary["campaign"]
    say(f"{summary['kind']} {name}: {_result(summary)}", "bold")
    chosen = {each["k"]: each for each in summary.get("chosen_at_n", ())}
    for at_k in summary["pass_at_k"][1:]:
        line = f"pass@{at_k['k']:<5} {_interval(at_k)}"
        if best := chosen.get(at_k["k"]):
            line = f"{line:34} chosen@{best['k']:<4} {_interval(best)}"
        say(line)
    if chosen:
        say(f"chosen     by {summary['chosen_by']}")
    for line in _cross_tests(summary.get("cross_tests")):
        say(line)
    if summary["errors"]:
        say(f"masked     {summary['errors']} of {summary['total']} rollouts could not be scored")
    if summary.get("retried"):
        say(f"retried    {summary['retried']} rollouts were begun more than once")
    if summary["unfinished"]:
        say(f"unfinished {summary['unfinished']} rollouts")
    say(f"cost       {_cost(summary)}")
    if paid := summary.get("cost"):
        say(f"dollars    {_dollars(paid)}")
    for label, key in (
        ("verdicts", "verdicts"),
        ("ended by", "stop_reasons"),
        ("suspicious", "suspicions"),
    ):
        if summary[key]:
            counts = (f"{num} {word.replace('_', ' ')}" for word, num in summary[key].items())
            say(f"{label:10} {', '.join(counts)}")
    if summary["avg_phase_s"]:
        phases = summary["avg_phase_s"].items()
        say(f"time       {', '.join(f'{phase} {duration(phase_s)}' for phase, phase_s in phases)}")
    for sentence in summary["judge_warnings"]:
        say(f"warning    {sentence}", "yellow")
    unresolved = _unresolved(directory)
    if unresolved:
        say("not resolved")
        for row in unresolved[:NUM_SHOWN]:
            rollout = row["rollout"].removeprefix(f"{name}/")
            why = "masked" if row["masked"] else str(row["verdict"]).replace("_", " ")
            say(f"  {rollout}  {row['instance_id']}  ({why})")
        if len(unresolved) > NUM_SHOWN:
            say(f"  and {len(unresolved) - NUM_SHOWN} more: `mainspring rollout list {name}`")
        for fault in _faults(unresolved):
            say(f"fault      {fault}")
    say(f"files      {directory}")
    if temporal_link:
        say(f"Temporal   {temporal_link}?query=CampaignId%3D%22{name}%22")
    if unresolved:
        say(f"next       `mainspring rollout show {unresolved[0]['rollout']}`")
    else:
        say(f"next       `mainspring rollout list {name}`")


def print_ends(summary: dict[str, Any], seen: list[Any], directory: Path) -> None:
    """The end of a run of one task. `seen`: a `reports.one_rollout.RolloutView` of each rollout."""
    from cli.tables import Screen

    console = Screen()

    def say(label: str, text: str, style: str = "") -> None:
        console.print(plain(f"{label:11}{text}"), style=style, soft_wrap=True)

    for rollout in seen:
        record = rollout.record
        if record.fault and is_masked(record.stop_reason, record.verdict):
            say("masked", record.fault, "bold red")
        else:
            say("verdict", VERDICTS.get(record.verdict, "not scored"), "bold")
        say("rollout", record.id)
        say("task", record.task)
        ended = ENDS.get(record.stop_reason, "-")
        say("ended by", f"{ended}, after {record.num_turns} turns, {duration(record.spent_s)}")
        say("patch", _patch(rollout))
        report = rollout.report.model_dump(mode="json") if rollout.report else {}
        for place, line in enumerate(grade_lines(report)):
            say("" if place else "tests", line.removeprefix("  "))
        paid = "" if rollout.cost is None else f", {dollars(rollout.cost)}"
        say("cost", _tokens(rollout.turns) + paid)
    say("files", str(directory))
    say("next", f"`mainspring rollout show {seen[0].record.id}`" if seen else summary["campaign"])


def _cross_tests(told: dict[str, int] | None) -> list[str]:
    """Lines on what the tests of rollouts told, and where they told nothing."""
    if told is None:
        return []
    lines = [
        f"tests      {told['reproducing']} fail before a patch and pass with one, "
        f"{told['regression']} pass before, {told['failing']} always fail"
    ]
    if told["not_compared"]:
        lines.append(f"           {told['not_compared']} not compared with all patches: left out")
    if told["without_command"]:
        lines.append(f"           {told['without_command']} files of tests have no known command")
    if num := told["tasks_by_majority"]:
        lines.append(
            f"majority   chose for {num} of {told['tasks']} tasks: their rollouts wrote no test "
            f"that tells something ({told['tasks_without_tests']} have no test)"
        )
    return lines


def _patch(rollout: Any) -> str:
    if rollout.patch is None:
        return rollout.record.patch_note or "none"
    num_files = sum(line.startswith("diff --git ") for line in rollout.patch.splitlines())
    files = "1 file" if num_files == 1 else f"{num_files} files"
    return f"{len(rollout.patch.encode()):,} bytes, {files}"


def _tokens(turns: list[Any]) -> str:
    counts = [(turn.num_prompt_tokens, turn.num_completion_tokens) for turn in turns]
    parts = [f"{len(turns)} calls"]
    for each, noun in zip(zip(*counts, strict=True), ("prompt", "reply"), strict=False):
        known = [count for count in each if count is not None]
        parts.append(f"{sum(known):,} {noun} tokens" if len(known) == len(each) else "not counted")
    return ", ".join(dict.fromkeys(parts))


def _faults(unresolved: list[dict[str, Any]]) -> list[str]:
    """The first of each kind ("run_program: ProgramSilent"): many rollouts are masked for one."""
    by_kind: dict[str, str] = {}
    for row in unresolved:
        if row["masked"] and row["error"]:
            kind = ":".join(row["error"].split(":")[:2])
            by_kind.setdefault(kind, row["error"])
    return list(by_kind.values())[:NUM_FAULTS]


def _result(summary: dict[str, Any]) -> str:
    scored = summary["scored"]
    if not scored:
        return "no rollout could be scored"
    # Its interval is over tasks: samples of one task are not independent.
    return f"{summary['resolved']} of {scored} resolved, {_interval(summary['pass_at_k'][0])}"


def _interval(at_k: dict[str, Any]) -> str:
    low, high = (f"{100 * at_k[end]:.0f}" for end in ("low", "high"))
    return f"{percent(at_k['value'])} ({low}-{high} %)"


def _cost(summary: dict[str, Any]) -> str:
    parts = [
        # What was paid for: also calls of branches that a client gave up.
        f"{number(summary['avg_steps'], 1)} calls",
        duration(summary["avg_elapsed_s"]),
    ]
    for key, noun in (("avg_prompt_tokens", "prompt"), ("avg_completion_tokens", "reply")):
        if summary[key]:
            parts.append(f"{summary[key]:,.0f} {noun} tokens")
    return f"{', '.join(parts)} (mean of a rollout)"


def _dollars(paid: dict[str, float | None]) -> str:
    if paid["total"] is None:
        return "not known: the endpoint did not count all tokens"
    parts = [f"{dollars(paid['total'])} in total", f"{dollars(paid['per_rollout'])} a rollout"]
    if paid["per_solved_task"] is not None:
        parts.append(f"{dollars(paid['per_solved_task'])} a solved task")
    return ", ".join(parts)


def _unresolved(directory: Path) -> list[dict[str, Any]]:
    with (directory / "results.jsonl").open(newline="\n") as lines:
        return [row for row in map(json.loads, lines) if not row["resolved"]]
