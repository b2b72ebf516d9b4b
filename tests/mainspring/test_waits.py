"""From what was seen of a campaign to the sentences about what it waits for."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from mainspring.status import CampaignKind, CampaignStatus, NodeRefusal, NodeStatus
from mainspring.words.waits import (
    Failure,
    Host,
    Pending,
    PendingState,
    Poller,
    Scene,
    Stuck,
    doing,
    waits,
)

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TRAINER = "trainer/x5"
SILENT = "its worker gave no sign in time: dead or overloaded"


def scene(*pending: Pending, **changes: object) -> Scene:
    seen = Scene(
        *("x5", CampaignKind.TRAIN, CampaignStatus.RUNNING, AT, True),
        engines=("http://e:1",),
        pending=pending,
    )
    return replace(seen, **changes)


def pending(
    activity: str = "train_step",
    queue: str = TRAINER,
    *,
    seconds: float = 40,
    started: bool = False,
    attempt: int = 1,
    failure: Failure | None = None,
    of: str = "campaign/x5",
) -> Pending:
    state = PendingState.STARTED if started else PendingState.SCHEDULED
    since = AT - timedelta(seconds=seconds)
    return Pending(of, activity, queue, state, attempt, since, failure, "starting the ranks")


def polled(queue: str, seconds_ago: float) -> dict[str, tuple[Poller, ...]]:
    return {queue: (Poller("7@host", AT - timedelta(seconds=seconds_ago)),)}


def told(seen: Scene) -> list[str]:
    return [wait.line(seen.at) for wait in waits(seen)]


def kinds(seen: Scene) -> list[str]:
    return [wait.kind.value for wait in waits(seen)]


def test_blocked_is_only_what_does_not_move_by_itself() -> None:
    assert kinds(scene(pending())) == ["blocked"]
    assert kinds(scene(status=CampaignStatus.PAUSED)) == ["blocked"]
    assert kinds(scene(is_being_cancelled=True)) == ["ending"]
    hung = pending("generate", "rollout", started=True, seconds=90)
    assert kinds(scene(hung)) == ["slow"]
    silent = Failure("", "activity Heartbeat timeout")
    again = pending("play_turns", "sandbox/a", attempt=2, failure=silent, started=True, seconds=5)
    assert kinds(scene(again)) == ["slow"]
    full = Failure("NodeFull", "node a took nothing new")
    assert kinds(scene(pending("open_sandbox", attempt=2, failure=full, seconds=-1))) == ["queued"]
    broken = Failure("NodeFailed", "Docker does not answer")
    assert kinds(scene(pending("open_sandbox", attempt=2, failure=broken, seconds=-1))) == [
        "blocked"
    ]


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (None, "queued"),
        (NodeRefusal.FULL, "queued"),
        (NodeRefusal.LOW_DISK, "blocked"),
        (NodeRefusal.DRAINING, "blocked"),
    ],
)
def test_rollouts_that_wait_for_a_place_are_queued(refusal: NodeRefusal | None, kind: str) -> None:
    host = Host("vm", NodeStatus.UP, refusal, 128, 128, 1.0)
    opening = pending("open_sandbox", "sandbox")
    seen = scene(opening, hosts=(host,), pollers=polled("sandbox", 1))
    assert kinds(seen) == [kind]
    assert ("vm 128 of 128 open" in told(seen)[0]) is (refusal is None)


def test_a_node_with_room_that_opens_slowly_is_not_told_as_full() -> None:
    host = Host("vm", NodeStatus.UP, None, 7, 128, 1.0)
    seen = scene(pending("open_sandbox", "sandbox"), hosts=(host,), pollers=polled("sandbox", 1))
    assert told(seen) == [
        "rollouts wait until a node opens their sandboxes: vm 7 of 128 open (for 40 s)"
    ]


def test_a_worker_that_stays_silent_points_to_its_machine() -> None:
    silent = Failure("", "activity Heartbeat timeout")
    sentences = [
        told(scene(pending(attempt=attempt, failure=silent, seconds=-9)))[0] for attempt in (3, 4)
    ]
    assert ["overloaded: run fewer" in sentence for sentence in sentences] == [False, True]


def test_nothing_polls_the_trainers_queue() -> None:
    assert told(scene(pending())) == [
        "waiting for a trainer: nothing polls trainer/x5 (for 40 s); "
        "start `mainspring worker trainer --campaign x5`"
    ]
    # A poll that began before the work came would have got it: that worker is gone.
    assert "nothing polls" in told(scene(pending(), pollers=polled(TRAINER, 41)))[0]
    assert "all that poll" in told(scene(pending(), pollers=polled(TRAINER, 3)))[0]


def test_work_that_runs_is_no_wait() -> None:
    seen = scene(pending(started=True, seconds=4000))
    assert told(seen) == []
    assert doing(seen) == ["train step: starting the ranks"]
    assert told(scene(pending(seconds=1))) == []


@pytest.mark.parametrize(
    "status", [CampaignStatus.FINISHED, CampaignStatus.CANCELLED, CampaignStatus.FAILED]
)
def test_what_has_ended_waits_for_nothing(status: CampaignStatus) -> None:
    assert told(scene(pending(), status=status, is_running=False)) == []


def test_nodes_are_named_with_why_they_take_nothing() -> None:
    opening = [pending("open_sandbox", "sandbox", of=f"rollout/x5/{n}") for n in range(3)]
    full = Host("a", NodeStatus.UP, NodeRefusal.FULL, 32, 32, 1.0)
    dead = Host("b", NodeStatus.LOST, None, 4, 32, 130.0)
    [none] = waits(scene(*opening))
    assert none.what == "no sandbox node: nothing polls sandbox"
    assert none.remedy == "start `mainspring worker sandbox`" and len(none.of) == 3
    assert "b silent for 2 min 10 s" in told(scene(*opening, hosts=(dead,)))[0]
    [room] = waits(scene(*opening, hosts=(full, dead)))
    assert room.what == "no sandbox node has room (a: full, 32 of 32 open)"
    own = pending("execute", "sandbox/a", of="rollout/x5/0")
    assert "waiting for sandbox node a" in told(scene(own, hosts=(full,)))[0]


def test_the_newest_failure_and_its_remedy() -> None:
    pull = Failure("SandboxError", "image nope.example/x:1: no such host\n  check the network")
    retry = pending("open_sandbox", "sandbox", attempt=7, failure=pull, seconds=-9)
    [wait] = waits(scene(retry))
    assert wait.what == "retrying open sandbox: image nope.example/x:1: no such host"
    assert "(attempt 7)" in wait.line(AT)
    assert wait.remedy == "check the network" and wait.failure == pull.message
    away = Failure("EngineUnreachable", "no policy engine answered: http://e:1: refused")
    asked = pending("generate", "rollout", attempt=3, failure=away, started=True, seconds=9)
    [wait] = waits(scene(asked))
    assert wait.what.startswith("no engine answers at http://e:1") and "serve" in wait.remedy
    assert wait.engines == ("http://e:1",)
    hung = pending("generate", "rollout", started=True, seconds=90)
    assert "waiting for a reply from http://e:1" in told(scene(hung))[0]
    plays = pending("play_turns", "sandbox/a", started=True, seconds=900)
    assert told(scene(plays)) == []
    asks = replace(plays, asked_at=AT - timedelta(seconds=90))
    assert "waiting for a reply from http://e:1 (for 1 min 30 s)" in told(scene(asks))[0]
    died = Failure("", "activity Heartbeat timeout")
    assert (
        "its worker gave no sign in time: dead or overloaded"
        in told(scene(pending(attempt=2, failure=died, seconds=-9)))[0]
    )


def test_an_engine_that_generates_is_slow_and_not_broken() -> None:
    asks = pending("generate", "rollout", started=True, seconds=90)
    for num_requests, words in (
        (None, "check that the engine works"),
        (0, "check that the engine works"),  # it answers, and owes a reply
        (1, "which generates for 1 request (for"),
        (4, "lower policy.max_new_tokens, or add an engine"),
    ):
        [line] = told(replace(scene(asks), num_requests=num_requests))
        assert words in line and ("curl" in line) == (not num_requests)


def test_what_runs_now_is_told_before_what_failed_earlier() -> None:
    died = Failure("", "activity Heartbeat timeout")
    begun = pending("play_turns", "sandbox/a", attempt=2, failure=died, started=True, seconds=5)
    assert told(scene(begun)) == [f"retrying play turns: {SILENT} (attempt 2, for 5 s)"]
    runs = pending("play_turns", "sandbox/a", attempt=2, failure=died, started=True, seconds=170)
    assert told(scene(runs)) == [
        "play turns runs again: starting the ranks (attempt 2, for 2 min 50 s); the attempt "
        f"before: {SILENT}"
    ]
    asks = replace(runs, asked_at=AT - timedelta(seconds=120))
    assert told(scene(asks)) == [
        "waiting for a reply from http://e:1 (attempt 2, for 2 min 00 s); check that the engine "
        f"works: `curl URL/health`; the attempt before: {SILENT}"
    ]


def test_a_failure_is_one_line_with_its_end_and_without_escape_codes() -> None:
    said = "\x1b[36mray::RankActor\x1b[39m " + "x" * 400 + " ValueError: beta\n  remedy\n  more"
    [wait] = waits(scene(pending(attempt=2, failure=Failure("Unexpected", said), seconds=-1)))
    assert wait.what.startswith("retrying train step: ray::RankActor xxx")
    assert wait.what.endswith("ValueError: beta") and len(wait.what) < 340
    assert wait.remedy == "remedy more"


def test_a_workflow_that_no_worker_runs() -> None:
    since = AT - timedelta(seconds=30)
    [wait] = waits(scene(stuck=(Stuck("campaign/x5", since, 1, False),)))
    assert "nothing polls rollout" in wait.what and "mainspring worker rollout" in wait.remedy
    [wait] = waits(scene(stuck=(Stuck("group/x5/g1", since, 9, False),)))
    assert "group/x5/g1 fails in its own code (attempt 9)" in wait.what


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        (CampaignKind.TRAIN, "campaign start"),
        (CampaignKind.EVAL, "eval run"),
        (CampaignKind.VERIFY, "tasks verify"),
        (CampaignKind.REGRADE, "eval regrade"),
        (CampaignKind.SFT, "sft"),
    ],
)
def test_a_workflow_that_is_not_running_is_told_with_the_command_that_resumes_it(
    kind: CampaignKind, command: str
) -> None:
    assert told(scene(is_running=False, kind=kind)) == [
        f"its workflow is not running; run `mainspring {command} --name x5` to start or resume it"
    ]


def test_a_cancel_comes_first_with_what_holds_it_up() -> None:
    since = AT - timedelta(seconds=30)
    unserved = Stuck("campaign/x5", since, 1, False)
    for status in (CampaignStatus.RUNNING, CampaignStatus.PAUSED):
        seen = scene(stuck=(unserved,), status=status, is_being_cancelled=True)
        cancel, worker = waits(seen)
        assert cancel.what == "being cancelled: it ends when its rollouts have ended"
        assert cancel.remedy == "`mainspring campaign start --name x5` starts it again then"
        assert "nothing polls rollout" in worker.what
    over = scene(status=CampaignStatus.CANCELLED, is_running=False, is_being_cancelled=True)
    assert told(over) == []


def test_a_pause_comes_first() -> None:
    seen = scene(pending(), status=CampaignStatus.PAUSED)
    assert next(wait.what for wait in waits(seen)) == "paused by a person"


def test_sessions_that_no_agent_outside_takes_are_counted() -> None:
    since = AT - timedelta(minutes=10)
    assert told(scene(num_offered=3, offered_since=since)) == [
        "3 sessions not taken by an agent outside (for 10 min 00 s); start your agents; "
        "`mainspring campaign key x5` makes their key"
    ]
    assert told(scene(num_offered=1, offered_since=since))[0].startswith("1 session not taken")
    assert told(scene(num_offered=3, offered_since=AT)) == []


def test_a_judge_is_waited_for_by_name() -> None:
    asked = pending("judge", "judge", of="rollout/x5/g000000/000")
    assert "waiting for a rollout worker: nothing polls judge" in told(scene(asked))[0]
    slow = replace(pending("judge", "judge", started=True, seconds=90), note="judge quality")
    assert told(scene(slow)) == [
        "waiting for votes: judge quality (for 1 min 30 s); no turn waits for them, only the "
        "rollout's end: look at the judge's endpoint"
    ]
    away = Failure("JudgeFailing", "endpoint http://j:1/v1, model m: HTTP 503 later\n  start it")
    [line] = told(scene(pending("judge", "judge", seconds=2, attempt=3, failure=away)))
    assert line.startswith("retrying judge: endpoint http://j:1/v1, model m: HTTP 503 later")
