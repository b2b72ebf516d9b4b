"""`mainspring worker rollout | sandbox | trainer | gateway | edge`: the processes that do the
work."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import Home
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from gateway.server import Tls

Host = Annotated[str, typer.Option(help="Address to listen at.")]
Port = Annotated[int, typer.Option(min=0, help="Port to listen at; 0: a free one.")]
TlsCert = Annotated[Path | None, typer.Option(help="Certificate file (PEM); with --tls-key.")]
TlsKey = Annotated[Path | None, typer.Option(help="Key file of the certificate.")]


def _set_metrics_address(given: str | None) -> str | None:
    if given is not None:
        os.environ["MAINSPRING_METRICS_ADDRESS"] = given
    return given


MetricsAddress = Annotated[
    str | None,
    typer.Option(
        metavar="IP:PORT",
        callback=_set_metrics_address,
        help="Address at which this process answers Prometheus, as 127.0.0.1:9464. Default: "
        "MAINSPRING_METRICS_ADDRESS, else nowhere.",
    ),
]

app = typer.Typer(name="worker", help="Run Mainspring's worker processes.", no_args_is_help=True)


@app.command("rollout")
def rollout(home: Home = None, metrics_address: MetricsAddress = None) -> None:
    """Run workflows and model calls. Stateless; start as many as you need."""
    from workers.rollout import main

    main(home)


@app.command("sandbox")
def sandbox(
    home: Home = None,
    capacity: Annotated[int, typer.Option(min=1, help="Maximum number of open sandboxes.")] = 32,
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
    metrics_address: MetricsAddress = None,
) -> None:
    """Run a sandbox node: it opens sandboxes and runs the agents' commands in them."""
    from workers.sandbox import main

    main(home, capacity, warm, leave_sandboxes)


@app.command("trainer")
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
    metrics_address: MetricsAddress = None,
) -> None:
    """Train one campaign with Ray and Megatron-core."""
    from workers.trainer import main

    main(home, campaign, standby=standby)


@app.command("gateway")
def gateway(
    home: Home = None,
    host: Host = "127.0.0.1",
    port: Port = 0,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    edge: Annotated[
        list[str] | None,
        typer.Option(
            help="URL of an edge to dial out to, repeatable; it hands on requests of agents "
            "outside. Its secret is in MAINSPRING_EDGE_SECRET. Default: MAINSPRING_EDGES."
        ),
    ] = None,
    metrics_address: MetricsAddress = None,
) -> None:
    """Run a gateway: it answers programs that play rollouts. Stateless; run any number."""
    from workers.gateway import main

    main(home, host, port, _tls(tls_cert, tls_key), edge or ())


@app.command("edge")
def edge(
    host: Host = "127.0.0.1",
    port: Port = 0,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    public_url: Annotated[
        str,
        typer.Option(
            help="URL at which agents reach this edge, told to them with their sessions. "
            "Default: as their requests name it."
        ),
    ] = "",
) -> None:
    """Run an edge: a public address for gateways that dial out to it. It needs no services.

    Its secret is in MAINSPRING_EDGE_SECRET or MAINSPRING_EDGE_SECRET_FILE.
    """
    from workers.edge import main

    main(host, port, _tls(tls_cert, tls_key), public_url)


def _tls(certificate: Path | None, key: Path | None) -> "Tls | None":
    from gateway.server import Tls

    if (certificate is None) != (key is None):
        raise UsageError("--tls-cert and --tls-key belong together", remedy="give both, or neither")
    return Tls(certificate, key) if certificate and key else None
