"""The steps of a supervised run in a terminal."""

from typing import Any

from mainspring.words.figures import duration, number

NUM_STEPS = 10
"""Newest steps that are shown; --json has all."""


def steps_table(data: Any, num_steps: int) -> Any:
    from cli.tables import Table

    names = ("step", "loss", "grad norm", "learning rate", "tokens/s", "time")
    steps = data.steps[-NUM_STEPS:]
    caption = f"the last {len(steps)} of {len(data.steps)} steps; {num_steps} are planned"
    table = Table(*names, caption=caption)
    for column in table.columns:
        column.justify = "right"
    for step in steps:
        metrics = step.metrics
        table.add_row(
            str(step.step),
            number(metrics.get("loss")),
            number(metrics.get("grad_norm")),
            f"{metrics.get('lr') or 0.0:.2g}",
            f"{metrics.get('tokens_per_s') or 0.0:,.0f}",
            duration(step.train_s),
        )
    return table
