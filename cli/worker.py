"""`mainspring worker rollout | sandbox | trainer | gateway`: the processes that do the work."""

from pathlib import Path
from typing import Annotated

import typer

from cli.options import Home
from mainspring.errors import UsageError


def register(app: typer.Typer) -> None:
    worker = typer.Typer(help="Run Mainspring's worker processes.", no_args_is_help=True)
    app.add_typer(worker, name="worker")

    @worker.command("rollout")
    def rollout(home: Home = None) -> None:
        """Run workflows and model calls. Stateless; start as many as you need."""
        from workers.rollout import main

        main(home)

    @worker.command("sandbox")
    def sandbox(
        home: Home = None,
        capacity: Annotated[
            int, typer.Option(min=1, help="Maximum number of open sandboxes.")
        ] = 32,
        warm: Annotated[
            int, typer.Option(min=0, help="Number of sandboxes kept ready for the next rollouts.")
        ] = 0,
        leave_sandboxes: Annotated[
            bool,
            typer.Option(
                "--leave-sandboxes",
                help="On shutdown, keep sandboxes open for the next process on this node.",
            ),
        ] = False,
    ) -> None:
        """Run a sandbox node: it opens sandboxes and runs the agents' commands in them."""
        from workers.sandbox import main

        main(home, capacity, warm, leave_sandboxes)

    @worker.command("trainer")
    def trainer(
        campaign: Annotated[str, typer.Option(help="Name of the campaign to train.")],
        home: Home = None,
        standby: Annotated[
            bool,
            typer.Option(
                "--standby",
                help="While another trainer works, start Ray and import what the ranks need.",
            ),
        ] = False,
    ) -> None:
        """Train one campaign with Ray and Megatron-core."""
        from workers.trainer import main

        main(home, campaign, standby=standby)

    @worker.command("gateway")
    def gateway(
        home: Home = None,
        host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
        port: Annotated[int, typer.Option(min=0, help="Port to listen at; 0: a free one.")] = 0,
        tls_cert: Annotated[
            Path | None, typer.Option(help="Certificate file (PEM); with --tls-key.")
        ] = None,
        tls_key: Annotated[Path | None, typer.Option(help="Key file of the certificate.")] = None,
    ) -> None:
        """Run a gateway: it answers programs that play rollouts. Stateless; run any number."""
        from gateway.server import Tls
        from workers.gateway import main

        if (tls_cert is None) != (tls_key is None):
            raise UsageError(
                "--tls-cert and --tls-key belong together", remedy="give both, or neither"
            )
        main(home, host, port, Tls(tls_cert, tls_key) if tls_cert and tls_key else None)
