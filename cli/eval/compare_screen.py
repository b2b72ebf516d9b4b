"""How two evaluations that were compared look in a terminal, and as a document for programs.

Invariant: ids of tasks are never cut. Imported by `mainspring eval compare`.
"""

from dataclasses import asdict
from typing import Any

from cli.tables import Screen
from cli.terminal_text import plain
from mainspring.rewards.paired import NUM_RESAMPLES, Paired, TaskPair, TaskTally
from mainspring.words.figures import percent

WIDTH = 11
"""Columns of the labels at the left."""
LABELS = {
    **{"both": "both", "only_a": "only A", "only_b": "only B", "neither": "neither"},
    **{"better_in_a": "A better", "better_in_b": "B better", "the_same": "the same"},
}


def print_comparison(records: list[Any], found: Paired) -> None:
    """`records`: of A and B, as stored."""
    console = Screen()

    def say(label: str, text: str, style: str = "") -> None:
        console.print(plain(f"{label:{WIDTH}}{text}"), style=style, soft_wrap=True)

    num = len(found.pairs)
    tasks = "1 task" if num == 1 else f"{num} tasks"
    low_high = "no interval: every task differs by as much"
    if (interval := found.interval) is not None:
        low_high = "95 % interval {} to {}".format(*(f"{100 * end:+.1f}" for end in interval))
    difference = f"{100 * found.difference:+.1f}"
    say("B less A", f"{difference} points, {low_high}, over {tasks}", "bold")
    for name, record, rate, tally in zip(
        "AB", records, found.solve_rates, (found.a, found.b), strict=True
    ):
        say(name, f"{percent(rate)} solved  {record.id}{_masked(tally)}")
        say("", f"{record.config.policy.model}, agent {record.config.agent.kind}")
    for label, number in _counts(found).items():
        say(LABELS[label], str(number))
    if (p := found.p_value) is not None:
        differing = len(found.better_in_a) + len(found.better_in_b)
        # An exact p of many tasks may be smaller than any that is worth reading.
        shown = f"{p:.3f}" if p >= 0.001 else "below 0.001"
        say("McNemar", f"p = {shown}, exact, of {differing} tasks that differ")
    else:
        say("interval", f"bootstrap over tasks, {NUM_RESAMPLES} draws: tasks have several rollouts")
    if found.unscored:
        say("left out", f"{len(found.unscored)} tasks without a scored rollout in both")
    if found.only_in_a or found.only_in_b:
        say(
            "not common",
            f"{len(found.only_in_a)} tasks are in A alone, {len(found.only_in_b)} in B alone",
        )
    for record in records:
        if record.finished_at is None:
            say("warning", f"{record.id} is {record.status}: only what has ended counts", "yellow")
    for label, pairs in (("A is better", found.better_in_a), ("B is better", found.better_in_b)):
        if pairs:
            console.print(f"{label} in", soft_wrap=True)
        for pair in pairs:
            say("", f"{pair.task}{_each(pair) if found.by_means else ''}")


def as_document(records: list[Any], found: Paired) -> dict[str, Any]:
    """The same for `--json`: shares between 0 and 1."""
    interval = found.interval
    rate_a, rate_b = found.solve_rates
    sides = zip("ab", records, (rate_a, rate_b), (found.a, found.b), strict=True)
    return {
        **{
            name: {
                "campaign": record.id,
                "kind": record.kind,
                "status": record.status,
                "model": record.config.policy.model,
                "agent": record.config.agent.kind,
                "solve_rate": rate,
                **asdict(tally),
            }
            for name, record, rate, tally in sides
        },
        "tasks": len(found.pairs),
        "difference": found.difference,
        "low": None if interval is None else interval[0],
        "high": None if interval is None else interval[1],
        "method": found.method,
        "p_value": found.p_value,
        **_counts(found),
        "unscored": list(found.unscored),
        "only_in_a": list(found.only_in_a),
        "only_in_b": list(found.only_in_b),
        "differing": [
            {
                "task": pair.task,
                "solved_a": pair.a.num_solved,
                "scored_a": pair.a.num_scored,
                "solved_b": pair.b.num_solved,
                "scored_b": pair.b.num_scored,
            }
            for pair in found.pairs
            if pair.difference
        ],
    }


def _counts(found: Paired) -> dict[str, int]:
    """Tasks by who solved them; with several rollouts of a task, by who did so more often."""
    in_a, in_b = len(found.better_in_a), len(found.better_in_b)
    alike = [pair for pair in found.pairs if not pair.difference]
    if found.by_means:
        return {"better_in_a": in_a, "better_in_b": in_b, "the_same": len(alike)}
    both = sum(pair.a.num_solved > 0 for pair in alike)
    return {"both": both, "only_a": in_a, "only_b": in_b, "neither": len(alike) - both}


def _masked(tally: TaskTally) -> str:
    parts = [
        f"{number} {word}"
        for number, word in ((tally.num_masked, "masked"), (tally.num_unfinished, "unfinished"))
        if number
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _each(pair: TaskPair) -> str:
    sides = (("A", pair.a), ("B", pair.b))
    return "".join(f"  {name} {each.num_solved}/{each.num_scored}" for name, each in sides)
