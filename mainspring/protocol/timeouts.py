"""Seconds that relate to each other across files: what must end before what else gives up.

Invariant: `tests/mainspring/test_timeouts.py` holds the inequalities, each with its reason. What is
used in one file and relates to nothing stands there. Imported by every room.
"""

# One attempt of an activity.
STORE_TIMEOUT_S = 20.0
"""One attempt of a database call."""
SHORT_S = 60.0
"""Work on a sandbox whose length no command decides."""
COLLECT_TIMEOUT_S = 120.0
"""A patch is made, what it lacks is listed, and the sandbox is closed."""
SHELL_GRACE_S = 30.0
"""A command's timeout is enforced by its sandbox; this is what that may take on top."""
OPEN_TIMEOUT_S = 1800.0
"""One attempt at opening a sandbox, an image pull included."""
GRADE_GRACE_S = 600.0
"""Opening a sandbox, applying patches, the canary and closing, on top of the tests' own timeout.
Also a pull of the image, where another node played the rollout."""

# Inside a sandbox: what its shell is given for one answer.
ANSWER_GRACE_S = 20.0
"""Beyond a command's own timeout: a loaded machine answers late, a wedged shell never."""
FILES_TIMEOUT_S = 120.0
"""Files are written, or a snapshot is unpacked."""
PATCH_TIMEOUT_S = 60.0
"""The working tree is compared with the base commit."""
PACK_CPU_S = 10
"""The processor's time of a snapshot; when it runs out, the snapshot is lost, not the sandbox."""
PACK_TIMEOUT_S = 60.0
"""A snapshot is packed in what a turn has left when its command took all its time."""
UNPACK_CPU_S = 30
"""The processor's time of unpacking a snapshot."""
DOCKER_BOOT_TIMEOUT_S = 120.0
"""The image's login profile runs, and a big working tree is compared with its index."""
BWRAP_BOOT_TIMEOUT_S = 30.0
"""A prepared repository is copied; no image's own files run."""

# Grading, within GRADE_GRACE_S.
APPLY_TIMEOUT_S = 60.0
"""The patch, or the tests' patch, is applied."""
CANARY_TIMEOUT_S = 45.0
"""Tests that must fail are run after a pass; a run that takes longer has not passed."""
MAX_TEST_RUNS = 6
"""Test runs of one grading: the patch's own, the one with files that are only named like tests, and
where a pass is in doubt, those that settle it, as long as the first at most."""

# Heartbeats of activities.
ACTIVITY_BEAT_S = 4.0
"""Between two beats of an activity that works."""
HEARTBEAT_THROTTLE_S = 2.0
"""Cancellation waits for the next heartbeat that is not throttled; the default allows 60 s."""
HEARTBEAT_TIMEOUT_S = 15.0
"""A worker killed without a word is noticed after this."""
REPLY_BEAT_S = 15.0
"""Between two beats of a reply that is waited for, where a process has REPLIES_AT_ONCE or more:
each beat costs the server a write. Fewer beat more often, so that a cancel reaches them soon."""
REPLIES_AT_ONCE = 50
REPLY_HEARTBEAT_TIMEOUT_S = 50.0
"""A reply that a killed worker waited for is asked again after this, unless a process of its name
or of its machine starts before and ends the attempt."""

# A node's death.
PREFER_TIMEOUT_S = 3.0
"""A node that has the image but does not take the open by then is not worth waiting for."""
NODE_BEAT_S = 5.0
"""Between two reports of a node to the database."""
NODE_LOST_AFTER_S = 45.0
"""A node that has not reported for this long is listed as lost."""
DEAD_NODE_TIMEOUT_S = 45.0
"""A node's own queue has no poller for this long: the node is dead and its sandboxes with it."""
REAP_EVERY_S = 30.0
"""The reaper looks for sandboxes without an owner, and tells those in use that their node lives."""
TEND_EVERY_S = 60.0
"""Sandboxes kept ready are told that their node lives, and the disk is looked at."""
ORPHAN_S = 600
"""A sandbox that hears nothing for this long ends itself: its node is gone. Nodes send `stay`."""
LEASE_GONE_AFTER_S = 600.0
"""Leases of a node that has not reported for this long are closed by another process."""

# Workflows.
WORKFLOW_TASK_TIMEOUT_S = 5.0
"""A worker that was killed in the middle of a workflow's task holds it until then, and a training
step waits for the last of its rollouts. Of 8,700 tasks on two busy cores none took more than 2.2 s;
Temporal's default is 10 s."""
STICKY_TIMEOUT_S = 5.0
"""After a kill a workflow that this process had cached waits so long for it, until the next worker
begins and frees it. The SDK would wait 10 s, those for Go and Java wait 5. On two busy cores
workers took a task up to 4.6 s after it was put there."""

# Clocks. No process decides by its own about another's time; people read them in logs.
CLOCK_OFF_S = 5.0
"""A machine whose clock differs by more from the database's is named."""

# Workers.
LEASE_RENEW_S = 4.0
"""Between two renewals of a lease: of a campaign's trainer, of weights being loaded, of a sweep."""
LEASE_SILENT_S = 20.0
"""Without a renewal for this long a holder counts as gone, and another process takes over."""
SILENT_WORKER_S = 5.0
"""A process that is asked for its extensions and does not take the question by then is left out."""
EXTENSIONS_TIMEOUT_S = 30.0
"""Importing a run's extensions in one process; one that imports torch takes seconds."""
POLLER_SILENT_S = 75.0
"""A worker that has not polled for this long has left: a poll ends after a minute at the latest."""

# Connections to Postgres: what holds a lock and stands still.
FROZEN_TRANSACTION_S = 45.0
"""A transaction that asks nothing for this long is a frozen process's: the server ends its session,
which frees its locks. Then the process that wakes up is refused."""
PROBE_IDLE_S = 15.0
"""A connection that is silent for this long is probed by TCP, from both ends."""
PROBE_EVERY_S = 10.0
"""Between two probes."""
PROBES_LOST = 3
"""Probes without an answer after which the peer's machine is gone."""
SILENT_PEER_S = 45.0
"""Bytes that are sent and not acknowledged for this long end the connection, and so does a full
window: a frozen process's kernel takes no more of a long answer."""
