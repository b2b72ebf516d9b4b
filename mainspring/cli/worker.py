"""`mainspring worker rollout | sandbox | trainer`: the processes that do the work."""

from typing import Annotated

import typer

from mainspring.cli.options import Home


def register(app: typer.Typer) -> None:
    worker = typer.Typer(help="Worker processes.", no_args_is_help=True)
    app.add_typer(worker, name="worker")

    @worker.command("rollout")
    def rollout(home: Home = None) -> None:
        """All workflows, replies, bookkeeping. Stateless: run as many as you like."""
        from workers.rollout import main

        main(home)

    @worker.command("sandbox")
    def sandbox(
        home: Home = None,
        capacity: Annotated[int, typer.Option(min=1, help="Sandboxes alive at once.")] = 32,
        warm: Annotated[
            int, typer.Option(min=0, help="Sandboxes kept ready for what campaigns need next.")
        ] = 0,
        leave_sandboxes: Annotated[
            bool,
            typer.Option(
                "--leave-sandboxes",
                help="When stopped, leave sandboxes to the next process on this node.",
            ),
        ] = False,
    ) -> None:
        """A container host: opens sandboxes and runs the agents' commands in them."""
        from workers.sandbox import main

        main(home, capacity, warm, leave_sandboxes)

    @worker.command("trainer")
    def trainer(
        campaign: Annotated[str, typer.Option(help="The campaign to train.")],
        home: Home = None,
    ) -> None:
        """One campaign's trainer: drives the Ray actors that hold the model."""
        from workers.trainer import main

        main(home, campaign)
