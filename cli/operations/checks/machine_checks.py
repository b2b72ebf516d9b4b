"""Findings of `mainspring doctor`: services, sandbox backends and their limits, disk.

Leaves everything as it was.
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from temporalio.service import RPCError

from cli.own_packages import overwritten
from infra.db.connect import Connections, connections, open_database
from infra.db.database import Database
from infra.db.nodes.clocks import THIS_MACHINE, clocks
from infra.db.store import StoreId, identity
from infra.sandbox.backends import available_backends
from infra.sandbox.bubblewrap import cgroup, command
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable
from infra.temporal.connection import check_owner, connect
from infra.temporal.service import settled
from infra.verdicts import swebench
from mainspring.config.settings import Settings, load_settings
from mainspring.errors import MainspringError
from mainspring.words.figures import clock_told
from workers.polling import ALLOWED_POLLS, BUSY_NODE_POLLS, IDLE_NODE_POLLS

_DELEGATE = "give the worker's service a group of its own (Delegate=yes, DelegateSubgroup=worker)"
MIN_FREE_GB = 2.0
"""A quickstart writes about half of this; Postgres stops dead on a full disk."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    ok: bool
    found: str
    required: bool = True
    """False: worth knowing, not worth a failure."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


async def examine(home: Path | None) -> list[Finding]:
    settings = load_settings(home)
    findings = await _services(settings)
    if changed := overwritten():
        text = (
            f"{len(changed)} files are another distribution's, as {changed[0]}\n"
            "  install Mainspring into an environment of its own"
        )
        findings.append(Finding("packages", False, text))
    backends = await available_backends(settings.home / "sandboxes")
    for name, backend in backends.items():
        works = not isinstance(backend, BackendUnavailable)
        gaps = "; ".join(getattr(backend, "not_enforced", ()))
        text = f"works; not enforced: {gaps}" if works else str(backend)
        findings.append(Finding(f"sandbox {name}", works, text, required=False))
        if isinstance(backend, BwrapBackend):
            findings += group_findings(cgroup.available())
            findings.append(await contents_finding(backend))
    if not backends.working():
        findings.append(Finding("sandbox", False, "no backend works on this machine"))
    judges = swebench.is_installed()
    text = "swebench is installed" if judges else f"pip install 'mainspring[{swebench.EXTRA}]'"
    findings.append(Finding("test logs", judges, text, required=False))
    free_gb = shutil.disk_usage(_existing(settings.home)).free / 1e9
    findings.append(
        Finding("disk", free_gb >= MIN_FREE_GB, f"{free_gb:.1f} GB free at {settings.home}")
    )
    return findings


async def contents_finding(backend: BwrapBackend) -> Finding:
    """Contents of sandboxes of tasks without an image."""
    try:
        contents = await backend.contents()
    except BackendUnavailable as unavailable:
        return Finding("sandbox contents", False, str(unavailable), required=False)
    prefix = command.own_python()
    is_own = contents.is_python_of(prefix)
    text = str(contents)
    if not is_own:
        text += f"\n  not the node's Python at {prefix}: it does not run in sandboxes"
    return Finding("sandbox contents", is_own, text, required=False)


def group_findings(groups: cgroup.Cgroups) -> list[Finding]:
    """Limits of bubblewrap's sandboxes by control groups, for a worker started as we were."""
    findings: list[Finding] = []
    for controller, what in cgroup.CONTROLLERS.items():
        reason = groups.missing.get(controller)
        text = f"enforced: {what}"
        if reason is not None:
            text = f"not enforced: {what}: {reason}\n  {_DELEGATE}"
        findings.append(
            Finding(f"control group {controller}", reason is None, text, required=False)
        )
    return findings


async def _services(settings: Settings) -> list[Finding]:
    try:
        async with open_database(settings, pool_size=1) as db:
            store = await identity(db)
            text = f"{db.name} at the right migration, store {store[:8]}"
            database = Finding("database", True, text)
            services = [database, await _temporal(settings, db, store)]
            off_s = await clocks(db)
            services += [
                clock_finding(whose, seconds)
                for whose, seconds in off_s.items()
                if whose == THIS_MACHINE or clock_told(seconds)
            ]
            if num_nodes := len(off_s) - 1:
                services.append(polls_finding(num_nodes))
            if not db.is_pooled:  # a pooler's clients are its own to count
                services.append(connections_finding(await connections(db)))
            return services
    except MainspringError as error:
        return [Finding("database", False, str(error)), await _temporal(settings)]


async def _temporal(
    settings: Settings, db: Database | None = None, store: StoreId | None = None
) -> Finding:
    """Looks whose the namespace is, and marks nothing."""
    try:
        if db is not None:
            settings = await settled(settings, db)
        client = await connect(settings)
        if store is not None:
            await check_owner(client, settings.temporal_address, store)
    except (MainspringError, RPCError) as error:
        return Finding("temporal", False, str(error))
    return Finding("temporal", True, f"{settings.temporal_address}, namespace {client.namespace}")


def clock_finding(whose: str, off_s: float) -> Finding:
    sentence = clock_told(off_s)
    text = sentence or "as the database's"
    return Finding(f"clock of {whose}", not sentence, text, required=False)


def connections_finding(open_ones: Connections) -> Finding:
    """Connections that our processes may open, beside what the database server allows."""
    needed = open_ones.ours + open_ones.others
    text = (
        f"{open_ones.num_processes} processes may open {open_ones.ours} connections, others have "
        f"{open_ones.others} open, and the server allows {open_ones.allowed}"
    )
    if needed > open_ones.allowed:
        text += (
            f"\n  raise max_connections by {needed - open_ones.allowed} or more, or set "
            "MAINSPRING_DATABASE_POOL=2 for the processes with the largest pools"
        )
    return Finding("database connections", needed <= open_ones.allowed, text, required=False)


def polls_finding(num_nodes: int) -> Finding:
    """Polls of all nodes together, beside the number that a Temporal server allows."""
    idle, busy = num_nodes * IDLE_NODE_POLLS, num_nodes * BUSY_NODE_POLLS
    text = f"{num_nodes} nodes keep {idle} polls open, and up to {busy} while all are busy"
    if busy > ALLOWED_POLLS:
        text += (
            f"\n  a server allows a namespace {ALLOWED_POLLS} by default, and nodes whose polls it "
            f"refuses are taken for dead: set frontend.namespaceCount to {busy} or more in its "
            "dynamic configuration"
        )
    return Finding("temporal polls", busy <= ALLOWED_POLLS, text, required=False)


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
