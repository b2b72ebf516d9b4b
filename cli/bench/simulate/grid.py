"""A grid of settings, played one after the other on one embedded Postgres. Imported by the command.

Invariant: settings without losses or deadlines come first, as the others are read against them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from cli.bench.simulate.figures import Figures
from cli.bench.simulate.playing import play
from cli.bench.simulate.setting import OnLoss, Setting
from cli.operations.machine.embedded_stack import temporary
from infra.db.database import Database

POOL_SIZE = 16


@dataclass(frozen=True, slots=True)
class Grid:
    """Every combination of these; `base` has the rest."""

    base: Setting
    groups_per_step: Sequence[int]
    train_s: Sequence[float]
    max_staleness: Sequence[int]
    lifetimes_s: Sequence[float | None]
    on_loss: Sequence[OnLoss]
    deadlines_s: Sequence[float | None]
    quorums: Sequence[int | None]

    def settings(self) -> Iterator[Setting]:
        losses = [
            (lifetime_s, on_loss)
            for lifetime_s in self.lifetimes_s
            # Machines that do not die make no difference between the ways.
            for on_loss in (self.on_loss if lifetime_s is not None else (OnLoss.RESUME,))
        ]
        for quorum, deadline_s, (lifetime_s, on_loss), groups, train_s, staleness in product(
            self.quorums,
            self.deadlines_s,
            losses,
            self.groups_per_step,
            self.train_s,
            self.max_staleness,
        ):
            yield replace(
                self.base,
                groups_per_step=groups,
                train_s=train_s,
                max_staleness=staleness,
                lifetime_s=lifetime_s,
                on_loss=on_loss,
                deadline_s=deadline_s,
                quorum=quorum,
            )


async def play_all(grid: Grid, progress: Callable[[int, int], None]) -> list[Figures]:
    """`progress` is told the steps that are done, and of how many."""
    settings = list(grid.settings())
    of_all = sum(setting.num_steps for setting in settings)
    figures: list[Figures] = []
    async with (
        temporary("mainspring-simulate-") as stack,
        Database.open(stack.database_url, pool_size=POOL_SIZE) as db,
    ):
        for number, setting in enumerate(settings):
            before = sum(earlier.num_steps for earlier in settings[:number])

            def tell(step: int, before: int = before) -> None:
                progress(before + step, of_all)

            tell(0)
            figures.append(await play(db, f"simulated-{number:04d}", setting, tell))
    return figures


def gain(figures: Figures, of: Sequence[Figures], *, waits_for_all: bool = False) -> float | None:
    """Steps per hour over those of the same setting without staleness; None where that is not
    there. `waits_for_all`: over those without deadline and quorum as well, which wait for all
    rollouts of a step."""
    synchronous = replace(figures.setting, max_staleness=0)
    if waits_for_all:
        synchronous = replace(synchronous, deadline_s=None, quorum=None)
    base = next((row for row in of if row.setting == synchronous), None)
    if base is None or not base.steps_per_h or figures.steps_per_h is None:
        return None
    return figures.steps_per_h / base.steps_per_h
