"""A campaign on other people's services: Postgres with TLS behind PgBouncer in transaction mode,
and Temporal that asks for a client's certificate. A SIGKILL of each node and rollout worker changes
nothing.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.machine.fleet import Member
from infra.db.connect import open_database
from infra.temporal.connection import connect
from mainspring.config.settings import Settings, load_settings
from tests.certificates import Authority
from tests.chaos.small_run import (
    NUM_STEPS,
    TIMEOUT_S,
    check_everything_happened_once,
    small_campaign,
    small_run,
)
from tests.infra.db.other_servers import (
    needs_pgbouncer,
    pgbouncer,
    readable_by_server,
    speaking_tls,
)
from tests.tls_front import speaking_grpc_over_tls

SECOND = ("rollout", "sandbox")


@needs_pgbouncer
@pytest.mark.chaos
@pytest.mark.timeout(3 * TIMEOUT_S)
async def test_a_campaign_on_other_peoples_services(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    authority = Authority(shared)
    server = authority.certificate("server", "127.0.0.1")
    client = authority.certificate("client")
    proxy = replace(server, key=Path(shutil.copy(server.key, shared / "pgbouncer.key")))
    readable_by_server(shared, proxy.key)
    lines = (
        *("client_tls_sslmode = require", f"client_tls_cert_file = {proxy.cert}"),
        *(f"client_tls_key_file = {proxy.key}", "server_tls_sslmode = verify-full"),
        *(f"server_tls_ca_file = {authority.file}", "default_pool_size = 6"),
    )
    verified = f"?sslmode=verify-full&sslrootcert={authority.file}"
    async with (
        speaking_tls(stack.database_url, server) as postgres,
        pgbouncer(shared, postgres.url, "transaction", *lines) as pooled,
        speaking_grpc_over_tls(stack.temporal_address, server, authority.file) as temporal,
    ):
        for name, value in {
            "MAINSPRING_HOME": tmp_path / "home",
            "MAINSPRING_DATABASE_URL": pooled + verified,
            "MAINSPRING_DATABASE_DIRECT_URL": postgres.url + verified,
            "MAINSPRING_TEMPORAL_ADDRESS": temporal,
            "MAINSPRING_TEMPORAL_NAMESPACE": stack.temporal_namespace,
            "MAINSPRING_NODE_MIN_FREE_MEMORY_MB": 0,
            "TEMPORAL_TLS_SERVER_CA_CERT_PATH": authority.file,
            "TEMPORAL_TLS_CLIENT_CERT_PATH": client.cert,
            "TEMPORAL_TLS_CLIENT_KEY_PATH": client.key,
        }.items():
            monkeypatch.setenv(name, str(value))
        settings = load_settings()
        settings.home.mkdir()
        await _run(settings, tmp_path)
        assert {told.partition(" ")[0] for told in postgres.seen} == {"TLSv1.3"}


async def _run(settings: Settings, folder: Path) -> None:
    async with open_database(settings) as db:
        assert db.is_pooled
        client = await connect(settings, db)
        config = small_campaign().model_copy(update={"name": "elsewhere"})

        def doubled(processes: Sequence[Member]) -> list[Member]:
            return [*processes, *(_second(m, folder) for m in processes if m.name in SECOND)]

        async with small_run(db, client, settings, config, folder, doubled) as run:
            for number in range(1, NUM_STEPS):
                await run.step_done(number)
                await run.rollouts_running()
                for name in SECOND:
                    run.kill(name if number == 1 else f"{name}-2")
        assert set(run.restarted) >= {"rollout", "rollout-2", "sandbox", "sandbox-2"}
        await check_everything_happened_once(db, run.campaign)
        async with db.statement() as connection:
            shown = await connection.scalar(text("SHOW synchronous_commit"))
        assert shown == "on"


def _second(member: Member, folder: Path) -> Member:
    """Another one of it; a node has a folder and a name of its own."""
    environment = dict(member.environment)
    arguments = list(member.arguments)
    if member.name == "sandbox":
        environment["MAINSPRING_NODE_ID"] = "second"
        arguments[arguments.index("--home") + 1] = str(folder / "second")
        (folder / "second").mkdir()
    return replace(member, name=f"{member.name}-2", arguments=arguments, environment=environment)
