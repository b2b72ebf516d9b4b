"""A campaign's versions on their way into its engines.

Invariant: where engines share devices with the trainer's ranks, each activity of the trainer leaves
them without memory, so a version is published after it, also one that they had, and also when the
campaign fails or is cancelled.
"""

import asyncio
from contextlib import suppress

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from mainspring.ids import ROLLOUT_QUEUE, trainer_queue
    from mainspring.protocol.activities import PUBLISH_POLICY, PUBLISH_TIMEOUT_S, SEND_POLICY
    from mainspring.protocol.campaign import CampaignState, PolicyRef
    from mainspring.status import Publish
    from workflows import activity_calls
    from workflows.waiting import Waits

LAST_S = 300.0
"""For engines to take their memory again when a campaign fails or is cancelled."""


async def publish(state: CampaignState, version: int, waits: Waits, far: str) -> None:
    """`far`: how far the campaign is, in words."""
    ref = PolicyRef(campaign=state.campaign, version=version)
    if state.plan.publish is Publish.COLLECTIVE and version > 0:
        queue, what = trainer_queue(state.campaign), f"sending policy version {version}"
        with waits.on(what, queue=queue, timeout_s=PUBLISH_TIMEOUT_S, far=far):
            await activity_calls.anywhere(
                SEND_POLICY, ref, summary=f"policy version {version} over a process group"
            )
    # Of engines that have it, this is a look.
    what = f"publishing policy version {version}"
    with waits.on(what, queue=ROLLOUT_QUEUE, timeout_s=PUBLISH_TIMEOUT_S, far=far):
        await activity_calls.anywhere(PUBLISH_POLICY, ref, summary=f"policy version {version}")
    state.published_version = version


def left_without_memory(state: CampaignState) -> None:
    """An activity of the trainer has ended, whatever its end."""
    if state.plan.colocate:
        state.published_version = -1


async def publish_at_the_end(state: CampaignState, version: int | None) -> None:
    """Of a campaign that fails or is cancelled: `version` into engines that may lack memory. What
    cannot be done in LAST_S is left to the next campaign that publishes to them."""
    if not state.plan.colocate or version is None:
        return
    ref = PolicyRef(campaign=state.campaign, version=version)
    with suppress(FailureError, TimeoutError):
        await asyncio.wait_for(
            activity_calls.anywhere(PUBLISH_POLICY, ref, summary="engines take their memory again"),
            LAST_S,
        )
