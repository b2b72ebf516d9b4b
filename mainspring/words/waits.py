"""Waits of a campaign, in words: assembled from what was seen of it, nothing is asked here.

Invariants: pure; an ended campaign waits for nothing; work that runs without a failure is no wait;
equal waits of many rollouts are one, with their number. What was seen comes from `seen_waits`;
read by the live display and `mainspring campaign show`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from mainspring.ids import GRADE_QUEUE, JUDGE_QUEUE, ROLLOUT_QUEUE, SANDBOX_QUEUE
from mainspring.protocol.names import AwaitedActivity
from mainspring.protocol.timeouts import POLLER_SILENT_S
from mainspring.status import CampaignKind, CampaignStatus, FaultKind, NodeRefusal, NodeStatus
from mainspring.words.causes import shortened
from mainspring.words.figures import duration
from mainspring.words.plain_text import plain
from mainspring.words.resuming import resumed_by
from mainspring.words.wait import Wait, WaitKind

ENDED = (CampaignStatus.FINISHED, CampaignStatus.CANCELLED, CampaignStatus.FAILED)
GRACE = timedelta(seconds=15)
"""A worker that polls gets its task sooner than this, and one that starts polls sooner."""
SILENT = timedelta(seconds=POLLER_SILENT_S)
SLOW = timedelta(seconds=60)
"""A reply or a task that has waited longer than this is worth telling."""
OVERLOADED_AFTER = 3
"""Attempts in a row whose worker gave no sign: one that dies does not die so often."""
MAX_CHARS = 300
"""Characters of a failure: the rest is in Temporal's UI."""
_OF_ENGINES = {
    FaultKind.ENGINE_UNREACHABLE: "no engine answers at",
    FaultKind.ENGINE_BUSY: "no room now at",
    FaultKind.ENGINE_FAILING: "every try fails at",
    FaultKind.ENDPOINT_REFUSING: "refused by",
}
_CROWDED = (FaultKind.NODE_FULL, FaultKind.CAMPAIGN_FULL, FaultKind.ENGINE_BUSY)
"""Something answers that it has no room now: it moves as soon as there is some."""

REPLIES = (AwaitedActivity.GENERATE, AwaitedActivity.ANSWER_CALL)
"""Activities of one reply."""


class PendingState(StrEnum):
    SCHEDULED = "scheduled"
    """No worker has it."""
    STARTED = "started"
    """A worker has it."""


@dataclass(frozen=True, slots=True)
class Failure:
    kind: str
    """The error's class, or the FaultKind it was raised as."""
    message: str
    """May have a second line: the remedy."""


@dataclass(frozen=True, slots=True)
class Pending:
    """One activity that a workflow waits for."""

    of: str
    """The workflow's id."""
    activity: str
    queue: str
    state: PendingState
    attempt: int
    since: datetime
    """When this attempt was scheduled, is due, or began."""
    failure: Failure | None = None
    """Failure of the attempt before."""
    note: str = ""
    """Words of its last heartbeat."""
    asked_at: datetime | None = None
    """When an activity of several turns asked for the reply that it waits for."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A workflow whose next task no worker has finished."""

    of: str
    since: datetime
    attempt: int
    is_started: bool


@dataclass(frozen=True, slots=True)
class Poller:
    identity: str
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class Host:
    """A sandbox node."""

    id: str
    status: NodeStatus
    refusal: NodeRefusal | None
    num_open: int
    capacity: int
    seen_s: float


@dataclass(frozen=True, slots=True)
class Scene:
    """View of a campaign at one time."""

    campaign: str
    kind: CampaignKind
    status: CampaignStatus
    at: datetime
    is_running: bool
    """Its workflow runs."""
    workflow_queue: str = ROLLOUT_QUEUE
    """Queue of the workers that run its workflows."""
    retrained_from: str | None = None
    """The campaign whose batches it trains again; None: it trains its own, or none."""
    engines: tuple[str, ...] = ()
    num_requests: int | None = None
    """Requests that its engines have, all of which answered a moment ago; None: one did not."""
    pending: tuple[Pending, ...] = ()
    """Activities of its workflow, and of its oldest groups and rollouts."""
    stuck: tuple[Stuck, ...] = ()
    pollers: dict[str, tuple[Poller, ...]] | None = None
    """By queue, of the queues that are asked for something."""
    hosts: tuple[Host, ...] = ()
    num_offered: int = 0
    """Sessions that no agent outside has taken."""
    offered_since: datetime | None = None
    processes: tuple[Wait, ...] = ()
    """Waits for a process that holds the others up: an engine that stays paused for new weights, a
    trainer that is silent."""
    is_being_cancelled: bool = False
    """The order to end its workflow is recorded, and that one still runs."""
    notice: str = ""
    """Sentence of its workflow on how it came here."""


def waits(scene: Scene) -> list[Wait]:
    """Waits of a campaign, what blocks most first; empty when everything moves or has ended."""
    if scene.status in ENDED:
        return []
    if not scene.is_running:
        again = f"`{resumed_by(scene.kind, scene.campaign, scene.retrained_from)}`"
        return [Wait("its workflow is not running", f"run {again} to start or resume it")]
    unmerged = [
        *(wait for stuck in scene.stuck for wait in _of_stuck(scene, stuck)),
        *(wait for pending in scene.pending for wait in _of_pending(scene, pending)),
        *scene.processes,
    ]
    # Agents that are all busy take the next one sooner.
    if scene.num_offered and scene.at - (scene.offered_since or scene.at) > GRACE:
        unmerged.append(_of_offered(scene))
    if scene.is_being_cancelled:
        again = f"`{resumed_by(scene.kind, scene.campaign, scene.retrained_from)}`"
        what = "being cancelled: it ends when its rollouts have ended"
        then = f"{again} starts it again then"
        unmerged.append(Wait(what, then, rank=-1, kind=WaitKind.ENDING))
    elif scene.status is CampaignStatus.PAUSED:
        # A pause is why nothing new starts, whatever else is missing.
        resume = f"run `mainspring campaign resume {scene.campaign}`"
        unmerged.append(Wait("paused by a person", resume, rank=-1))
    return sorted(_merged(unmerged), key=lambda wait: (wait.rank, wait.since or scene.at))


def doing(scene: Scene) -> list[str]:
    """The notice of the campaign's own workflow, and its activities under way, each with the
    progress it last told."""
    own = f"campaign/{scene.campaign}"
    notices = [scene.notice] if scene.notice else []
    return notices + [
        _words(activity.activity) + (f": {activity.note}" if activity.note else "")
        for activity in scene.pending
        if activity.of == own and activity.state is PendingState.STARTED
    ]


def _of_offered(scene: Scene) -> Wait:
    noun = "session" if scene.num_offered == 1 else "sessions"
    return Wait(
        f"{scene.num_offered} {noun} not taken by an agent outside",
        f"start your agents; `mainspring campaign key {scene.campaign}` makes their key",
        scene.offered_since,
        rank=2,
    )


def _of_stuck(scene: Scene, stuck: Stuck) -> Iterator[Wait]:
    if stuck.attempt > 1 and stuck.is_started:
        return
    if stuck.attempt > 2:
        yield Wait(
            f"workflow {stuck.of} fails in its own code (attempt {stuck.attempt})",
            "see its worker's log; a fixed worker resumes it",
            stuck.since,
            scene.workflow_queue,
            of=(stuck.of,),
        )
    elif not stuck.is_started and scene.at - stuck.since > GRACE:
        yield _no_poller(scene, scene.workflow_queue, stuck.since, stuck.of)


def _of_pending(scene: Scene, pending: Pending) -> Iterator[Wait]:
    age = scene.at - pending.since
    unserved = pending.state is PendingState.SCHEDULED and age > GRACE
    if unserved and (pending.failure is None or not _alive(scene, pending.queue, pending.since)):
        yield _no_poller(scene, pending.queue, pending.since, pending.of)
        return
    failure = pending.failure if pending.attempt > 1 else None
    asked_at = pending.since if pending.activity in REPLIES else pending.asked_at
    # An attempt that has run for a while has got past what the one before it failed with.
    if failure is not None and not (pending.state is PendingState.STARTED and age > GRACE):
        yield _retrying(scene, pending, failure)
    elif (
        pending.activity == AwaitedActivity.JUDGE
        and pending.state is PendingState.STARTED
        and age > SLOW
    ):
        yield Wait(
            f"waiting for votes: {pending.note or 'of a judge'}",
            "no turn waits for them, only the rollout's end: look at the judge's endpoint",
            pending.since,
            failure=failure.message if failure else "",
            of=(pending.of,),
            attempt=pending.attempt,
            rank=3,
            before=_reason(failure) if failure else "",
            kind=WaitKind.SLOW,
        )
    elif asked_at is not None and scene.at - asked_at > SLOW:
        what, then = _slow_reply(scene)
        yield Wait(
            what,
            then,
            asked_at,
            failure=failure.message if failure else "",
            of=(pending.of,),
            attempt=pending.attempt,
            rank=2,
            before=_reason(failure) if failure else "",
            kind=WaitKind.SLOW,
        )
    elif failure is not None:
        note = f": {pending.note}" if pending.note else ""
        yield Wait(
            f"{_words(pending.activity)} runs again{note}",
            "",
            pending.since,
            pending.queue,
            failure=failure.message,
            of=(pending.of,),
            attempt=pending.attempt,
            rank=3,
            before=_reason(failure),
            kind=WaitKind.SLOW,
        )


def _slow_reply(scene: Scene) -> tuple[str, str]:
    """The wait for a reply, and what to do."""
    what = f"waiting for a reply from {_listed(scene.engines)}"
    if not scene.num_requests:
        return what, "check that the engine works: `curl URL/health`"
    which = "which generates" if len(scene.engines) == 1 else "which generate"
    requests = "1 request" if scene.num_requests == 1 else f"{scene.num_requests} requests"
    return (
        f"{what}, {which} for {requests}",
        "replies are long or engines slow: lower policy.max_new_tokens, or add an engine",
    )


def _retrying(scene: Scene, pending: Pending, failure: Failure) -> Wait:
    remedy = failure.message.partition("\n")[2]
    remedy = shortened(" ".join(plain(remedy).split()), MAX_CHARS)
    what = f"retrying {_words(pending.activity)}: {_reason(failure)}"
    kind = WaitKind.QUEUED if failure.kind in _CROWDED else WaitKind.BLOCKED
    if _is_silence(failure):
        kind = WaitKind.SLOW
        if pending.attempt > OVERLOADED_AFTER:
            remedy = "its machine may be overloaded: run fewer rollouts at once"
    if failure.kind in _OF_ENGINES:
        begin = f"{_OF_ENGINES[FaultKind(failure.kind)]} {_listed(scene.engines)}"
        what = f"{begin}: {_reason(failure)}"
        remedy = remedy or "start it (`mainspring serve --model DIR`), or correct policy.engines"
    return Wait(
        what,
        remedy,
        pending.since,
        pending.queue,
        failure=failure.message,
        of=(pending.of,),
        engines=scene.engines if failure.kind == FaultKind.ENGINE_UNREACHABLE else (),
        attempt=pending.attempt,
        rank=2 if failure.kind in _CROWDED else 1,
        kind=kind,
    )


def _is_silence(failure: Failure) -> bool:
    return "heartbeat timeout" in failure.message.lower()


def _reason(failure: Failure) -> str:
    """The failure in one line."""
    message = plain(failure.message).partition("\n")[0]
    if _is_silence(failure):
        return "its worker gave no sign in time: dead or overloaded"
    return shortened(message, MAX_CHARS)


def _no_poller(scene: Scene, queue: str, since: datetime, of: str) -> Wait:
    """Nothing takes what waits in `queue`: who should, and how to start it."""
    alive = _alive(scene, queue, since)
    if queue in (SANDBOX_QUEUE, GRADE_QUEUE):
        return _no_node(scene, queue, since, of, alive)
    if alive:
        what = f"waiting for a free worker: all that poll {queue} are busy"
        return Wait(what, "", since, queue, alive, of=(of,), rank=3, kind=WaitKind.QUEUED)
    node = queue.removeprefix(f"{SANDBOX_QUEUE}/")
    if node != queue:
        what = f"waiting for sandbox node {node}: nothing polls {queue}"
        return Wait(
            what,
            "start it again; after 45 s its rollouts move to another node",
            since,
            queue,
            of=(of,),
        )
    if queue in (ROLLOUT_QUEUE, JUDGE_QUEUE):
        noun, command = "a rollout worker", "mainspring worker rollout"
    else:
        noun, command = "a trainer", f"mainspring worker trainer --campaign {scene.campaign}"
    what = f"waiting for {noun}: nothing polls {queue}"
    return Wait(what, f"start `{command}`", since, queue, of=(of,))


def _no_node(scene: Scene, queue: str, since: datetime, of: str, alive: tuple[str, ...]) -> Wait:
    up = [host for host in scene.hosts if host.status is NodeStatus.UP]
    start = "start `mainspring worker sandbox`"
    if not up:
        what = f"no sandbox node: nothing polls {queue}"
        if scene.hosts:
            states = (f"{host.id} {_state(host)}" for host in scene.hosts)
            what += f" ({', '.join(states)})"
        return Wait(what, start, since, queue, of=(of,))
    if all(host.refusal for host in up):
        states = (f"{h.id}: {h.refusal}, {h.num_open} of {h.capacity} open" for h in up)
        what = f"no sandbox node has room ({'; '.join(states)})"
        is_full = all(host.refusal is NodeRefusal.FULL for host in up)
        kind = WaitKind.QUEUED if is_full else WaitKind.BLOCKED
        remedy = f"wait, or {start} on another machine"
        return Wait(what, remedy, since, queue, alive, of=(of,), kind=kind)
    states = (f"{host.id} {host.num_open} of {host.capacity} open" for host in up)
    what = f"rollouts wait until a node opens their sandboxes: {_listed(states)}"
    return Wait(what, "", since, queue, alive, of=(of,), rank=3, kind=WaitKind.QUEUED)


def _state(host: Host) -> str:
    return f"silent for {duration(host.seen_s)}" if host.status is NodeStatus.LOST else host.status


def _alive(scene: Scene, queue: str, since: datetime) -> tuple[str, ...]:
    """Who polled the queue since work waits there. One that polled only before would have it."""
    due = max(scene.at - SILENT, min(since, scene.at - GRACE))
    seen = (scene.pollers or {}).get(queue, ())
    return tuple(poller.identity for poller in seen if poller.seen_at >= due)


def _merged(all_waits: Iterable[Wait]) -> Iterator[Wait]:
    by_what: dict[tuple[str, str], Wait] = {}
    for wait in all_waits:
        key = (wait.what, wait.remedy)
        earlier = by_what.get(key)
        if earlier is None:
            by_what[key] = wait
            continue
        times = [moment for moment in (earlier.since, wait.since) if moment is not None]
        by_what[key] = replace(
            earlier,
            since=min(times, default=None),
            of=(*earlier.of, *wait.of),
            attempt=max(earlier.attempt, wait.attempt),
        )
    return iter(by_what.values())


def _words(activity: str) -> str:
    return activity.replace("_", " ")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
