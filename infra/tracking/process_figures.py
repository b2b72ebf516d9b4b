"""Figures of one process for Prometheus, beside the metrics of Temporal's SDK.

Invariants: a name is `mainspring_`, what it counts, and its unit; labels have few values, so ids of
rollouts, tasks and sessions are none. Counters count what this process did: what an attempt
repeats is counted again, and a process begins at 0. Where a process has no address for them, they
cost nothing. Imported by activities, node and gateway.
"""

from temporalio.common import MetricMeter

from infra.db.nodes.nodes import NodeBeat
from mainspring.status import StopReason, Verdict
from mainspring.trajectories.turns import Call

REPLIES = "mainspring_replies"
REPLY_SECONDS = "mainspring_reply_seconds"
REPLY_TOKENS = "mainspring_reply_tokens"
ROLLOUTS_ENDED = "mainspring_rollouts_ended"
SANDBOXES_OPEN = "mainspring_node_sandboxes_open"
CAPACITY = "mainspring_node_sandboxes_capacity"
REFUSING = "mainspring_node_refusing"
DRAINING = "mainspring_node_draining"
DISK_FREE = "mainspring_node_disk_free_megabytes"
MEMORY_FREE = "mainspring_node_memory_free_megabytes"
REQUESTS = "mainspring_gateway_requests"
REQUESTS_OPEN = "mainspring_gateway_requests_open"
NONE = "none"
"""Label of what there is not."""


def reply_stored(meter: MetricMeter, call: Call) -> None:
    """Counts a reply of the policy, once it is stored."""
    labels = {"engine": call.engine or NONE}
    meter.create_counter(REPLIES, "Replies stored, by engine.").add(1, labels)
    seconds = meter.create_histogram_float(REPLY_SECONDS, "Seconds of a reply.", "s")
    seconds.record(call.latency_s, labels)
    tokens = call.num_completion_tokens or len(call.completion_ids)
    meter.create_counter(REPLY_TOKENS, "Tokens of replies.").add(tokens, labels)


def rollout_ended(meter: MetricMeter, stop: StopReason, verdict: Verdict | None) -> None:
    """Counts a rollout that ended, by how."""
    labels = {"stop_reason": stop.value, "verdict": NONE if verdict is None else verdict.value}
    meter.create_counter(ROLLOUTS_ENDED, "Rollouts that ended.").add(1, labels)


def node_state(meter: MetricMeter, beat: NodeBeat, *, draining: bool) -> None:
    """Tells what a node holds."""
    labels = {"node": beat.id}
    gauges = {
        SANDBOXES_OPEN: ("Sandboxes that are open.", beat.num_open),
        CAPACITY: ("Sandboxes that may be open.", beat.capacity),
        DRAINING: ("1 while the node takes nothing new, because a person drained it.", draining),
        DISK_FREE: ("Free megabytes of the disk of sandboxes.", beat.disk_free_mb),
        MEMORY_FREE: ("Free megabytes of memory.", beat.memory_free_mb),
        REFUSING: ("1 while the node takes nothing new by itself.", beat.refusal is not None),
    }
    for name, (told, value) in gauges.items():
        meter.create_gauge(name, told).set(int(value), labels)
