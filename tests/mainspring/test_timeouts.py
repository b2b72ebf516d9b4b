"""What must end before what else gives up: each inequality with its reason."""

import pytest

from infra.db.nodes.sandboxes import GONE_AFTER
from mainspring.protocol import timeouts as t
from mainspring.protocol.activities import (
    ANSWER_CALL,
    CLOSE_SANDBOX,
    COLLECT_PATCH,
    EXECUTE,
    GENERATE,
    GRADE,
    OPEN_SANDBOX,
    PLAY_TURNS,
    command_s,
    play_s,
    reply_s,
)
from workers.polling import HEARTBEAT_THROTTLE
from workflows import activity_calls

COLLECTING_S = t.PATCH_TIMEOUT_S + 2 * t.ANSWER_GRACE_S
"""The patch, the list of what it lacks, and the end of the sandbox."""
R, C = 600.0, 60.0
RULES = (
    # A turn, beyond its command's own timeout.
    (t.ANSWER_GRACE_S < t.SHELL_GRACE_S, "a wedged shell is noticed before the attempt ends"),
    (
        EXECUTE.timeout_s >= 2 * t.ANSWER_GRACE_S + t.PACK_TIMEOUT_S,
        "a snapshot is packed after an answer and an end of long output that are both late",
    ),
    (
        EXECUTE.timeout_s >= 2 * t.ANSWER_GRACE_S + COLLECTING_S,
        "a submission's patch is collected after an answer that is late",
    ),
    (t.PACK_CPU_S < t.PACK_TIMEOUT_S, "too long a snapshot costs itself and not the sandbox"),
    (t.UNPACK_CPU_S < t.FILES_TIMEOUT_S, "a snapshot that is too long is refused by its limit"),
    (COLLECT_PATCH.timeout_s > COLLECTING_S, "a slow diff is refused as such"),
    (CLOSE_SANDBOX.timeout_s > t.ANSWER_GRACE_S, "a sandbox that answers late can be closed"),
    # Several turns in one activity: a reply of R seconds and a command of C.
    (
        reply_s(R) == GENERATE.timeout_s + R and command_s(C) == EXECUTE.timeout_s + C,
        "a reply and a command have as long as when each is an activity of its own",
    ),
    (
        PLAY_TURNS.timeout_s + play_s(5, R, C) > 5 * (reply_s(R) + command_s(C)),
        "an engine or a sandbox that hangs is noticed as such before the attempt ends",
    ),
    # Opening and grading.
    (
        max(t.DOCKER_BOOT_TIMEOUT_S, t.BWRAP_BOOT_TIMEOUT_S) + t.FILES_TIMEOUT_S
        < OPEN_SANDBOX.timeout_s,
        "a start that hangs is reported as such, and leaves time for a pull",
    ),
    (
        GRADE.timeout_s
        > t.DOCKER_BOOT_TIMEOUT_S + 3 * t.APPLY_TIMEOUT_S + t.CANARY_TIMEOUT_S + t.FILES_TIMEOUT_S,
        "a slow start, three patches that apply slowly and the canary end within one attempt",
    ),
    # Heartbeats.
    (3 * t.ACTIVITY_BEAT_S < t.HEARTBEAT_TIMEOUT_S, "two lost beats are no dead worker"),
    (3 * t.REPLY_BEAT_S < t.REPLY_HEARTBEAT_TIMEOUT_S, "two lost beats are no dead worker, either"),
    (t.ACTIVITY_BEAT_S < t.REPLY_BEAT_S, "replies beat less often than what is short"),
    (
        5000 / t.REPLY_BEAT_S < 400,
        "5,000 replies in flight leave the server its writes for other things",
    ),
    (t.HEARTBEAT_THROTTLE_S < t.ACTIVITY_BEAT_S, "the SDK passes on every beat"),
    (
        t.HEARTBEAT_TIMEOUT_S < t.DEAD_NODE_TIMEOUT_S,
        "a killed worker's activity is tried again before its node counts as dead",
    ),
    # A node's death.
    (t.PREFER_TIMEOUT_S < t.HEARTBEAT_TIMEOUT_S, "a preferred node costs less than a dead one"),
    (
        t.NODE_LOST_AFTER_S == t.DEAD_NODE_TIMEOUT_S,
        "a node is listed as lost when workflows rebuild its sandboxes elsewhere",
    ),
    (9 * t.NODE_BEAT_S <= t.NODE_LOST_AFTER_S, "a database that is slow for a while loses no node"),
    (
        10 * max(t.REAP_EVERY_S, t.TEND_EVERY_S) <= t.ORPHAN_S,
        "a busy node's sandboxes hear of it in time",
    ),
    (
        t.ORPHAN_S > t.NODE_LOST_AFTER_S,
        "a node that returns finds the sandboxes that workflows still wait for",
    ),
    (
        t.LEASE_GONE_AFTER_S >= t.ORPHAN_S,
        "when a dead node's leases are closed, its sandboxes have ended themselves",
    ),
    # Workflows.
    (
        max(t.WORKFLOW_TASK_TIMEOUT_S, t.STICKY_TIMEOUT_S) < t.HEARTBEAT_TIMEOUT_S,
        "a killed worker's workflows are resumed before its activities are tried again",
    ),
    # Workers.
    (5 * t.LEASE_RENEW_S <= t.LEASE_SILENT_S, "four lost renewals are no dead trainer"),
    (t.POLLER_SILENT_S > 60, "a poll of Temporal's lasts up to a minute"),
    (activity_calls.OUTAGE.total_seconds() > t.STORE_TIMEOUT_S, "an attempt ends within an outage"),
    # Connections to Postgres.
    (
        t.STORE_TIMEOUT_S < t.FROZEN_TRANSACTION_S < 60,
        "a slow attempt keeps its transaction, and a frozen one its locks for a minute at most",
    ),
    (
        t.PROBE_IDLE_S + t.PROBES_LOST * t.PROBE_EVERY_S <= t.SILENT_PEER_S < 60,
        "a machine that is gone frees its locks within a minute",
    ),
)


@pytest.mark.parametrize(("holds", "why"), RULES, ids=[why for _, why in RULES])
def test_what_must_end_first_does(holds: bool, why: str) -> None:
    assert holds, why


def test_what_enforces_them_reads_the_table() -> None:
    short = {each.heartbeat_timeout_s for each in (EXECUTE, GRADE, OPEN_SANDBOX)}
    assert short == {t.HEARTBEAT_TIMEOUT_S}
    replies = {each.heartbeat_timeout_s for each in (GENERATE, ANSWER_CALL, PLAY_TURNS)}
    assert replies == {t.REPLY_HEARTBEAT_TIMEOUT_S}
    assert activity_calls.DEAD_NODE_TIMEOUT.total_seconds() == t.DEAD_NODE_TIMEOUT_S
    assert activity_calls.PREFER_TIMEOUT.total_seconds() == t.PREFER_TIMEOUT_S
    assert HEARTBEAT_THROTTLE.total_seconds() == t.HEARTBEAT_THROTTLE_S
    assert GONE_AFTER.total_seconds() == t.LEASE_GONE_AFTER_S
