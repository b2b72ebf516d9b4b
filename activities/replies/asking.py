"""One reply of the policy: asked for, kept while it comes, and stored as it was served.

The only way to the policy, for agents and programs. Safe to run twice: each attempt asks for the
same under the same seed and policy versions, continues what an earlier one had of the reply, and
answers from the first one that is stored. A reply is held while the store does not answer: another
attempt would generate it again. Used by the activities `replies` and `answers`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from temporalio import activity

from activities.replies.partial_replies import PartialReplies, ReplyUnderWay
from infra.db.cache import FactCache, RolloutFacts
from infra.db.database import Database
from infra.db.rollouts.partial_calls import CallKey
from infra.policy.protocol import MadeReply, NoEngineAnswered, Policy, ReplyRequest, Versions
from infra.policy.replies.endpoint_errors import EndpointRefusing, StrayRefusal
from infra.policy.serving import ServedCampaigns
from infra.temporal.heartbeat import Beat
from infra.tracking import process_figures, spans
from mainspring.errors import ConfigError, DatabaseError, EngineBusy
from mainspring.programs.matching import StoredCall
from mainspring.programs.request import ModelRequest
from mainspring.protocol.timeouts import STORE_TIMEOUT_S
from mainspring.trajectories.costs import cost, num_completion_tokens, num_prompt_tokens
from mainspring.trajectories.seeds import call_seed
from mainspring.trajectories.turns import Call, ReplyPart

HOLD_S = STORE_TIMEOUT_S - 5.0
"""How long a reply waits for the store: an attempt has STORE_TIMEOUT_S beside the reply's time."""
HOLD_WAIT_S = 0.5
"""Between two tries to store a reply."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request and where its reply belongs."""

    key: CallKey
    name: str
    """Name of the turn or call, for people."""
    request: ModelRequest
    stored: Sequence[StoredCall]
    """See protocol.ReplyRequest."""
    min_version: int
    put: Callable[[MadeReply], Awaitable[Call]]
    """Stores the reply; the one that stands."""
    digests: Sequence[str] | None = None
    apart: bool = True
    may_have_begun: bool = False
    """An activity before this one may have some of the reply."""
    num_closed: int = 0
    """See protocol.ReplyRequest; what an attempt at this activity told counts before it."""
    count_sent: Callable[[int], Awaitable[None]] | None = None
    """Where replies cannot be resumed: counts how often an endpoint is asked (1), or has not taken
    the request (-1)."""


class Asking:
    def __init__(self, db: Database, cache: FactCache, served: ServedCampaigns) -> None:
        self._cache = cache
        self._served = served
        self._partials = PartialReplies(db)

    async def sample_and_store(self, question: Question, beat: Beat) -> Call:
        """The reply that stands. Raises what protocol.Policy.complete raises, DatabaseError when an
        outage of the store lasts, Fenced."""
        rollout, epoch, number = question.key
        facts = await self._cache.rollout(rollout)
        served = await self._served.of(facts.campaign)
        attempt = activity.info().attempt
        begun = None
        if question.may_have_begun or attempt > 1:
            begun = await self._partials.get(*question.key)
        # What a heartbeat tells the next attempt, wherever it runs.
        closed = f"closed {number}"
        earlier = beat.earlier(closed)

        under_way = ReplyUnderWay(question.key)

        def keep(part: ReplyPart) -> None:
            self._partials.keep(under_way, part)

        request = ReplyRequest(
            number=number,
            request=question.request,
            stored=question.stored,
            rollout=rollout,
            request_id=f"{rollout}.e{epoch}.c{number}.{attempt}",
            temperature=facts.temperature,
            versions=Versions(question.min_version, only=served.is_reproducible),
            seed=None if facts.seed is None else call_seed(facts.seed, number),
            begun=begun,
            keep=keep,
            num_closed=earlier if isinstance(earlier, int) else question.num_closed,
            digests=question.digests,
            apart=question.apart,
            sampling=facts.sampling,
        )
        try:
            policy = served.policy_for(facts.agent_config)
            with spans.span(
                "chat",
                operation="chat",
                model=facts.config.policy.model,
                temperature=facts.temperature,
                campaign=facts.campaign,
                rollout=rollout,
                epoch=epoch,
                call=number,
            ) as asked:
                reply = await _complete(policy, request, question.count_sent)
                made = reply.call
                asked.tell(
                    input_tokens=num_prompt_tokens(made),
                    output_tokens=num_completion_tokens(made),
                    finish_reason=made.finish_reason,
                    engine=made.engine or None,
                    policy_version=max(made.versions, default=None),
                )
        except NoEngineAnswered as away:
            beat.tell(closed, away.num_closed)
            raise
        finally:
            self._partials.release(under_way)
        self._partials.forget(under_way)
        return await _stored(question, reply, beat)


async def _complete(
    policy: Policy,
    request: ReplyRequest,
    count_sent: Callable[[int], Awaitable[None]] | None,
) -> MadeReply:
    """Counted before it is sent: what was under way when this process died stays counted, as an
    endpoint may have charged for it."""
    if policy.resumes or count_sent is None:
        return await policy.complete(request)
    await count_sent(1)
    try:
        return await policy.complete(request)
    except (EngineBusy, EndpointRefusing, StrayRefusal):  # nothing was charged
        await count_sent(-1)
        raise


async def _stored(question: Question, reply: MadeReply, beat: Beat) -> Call:
    until = time.monotonic() + HOLD_S
    while True:
        try:
            call = await question.put(reply)
            process_figures.reply_stored(activity.metric_meter(), call)
            return call
        except DatabaseError as error:
            if time.monotonic() + HOLD_WAIT_S > until:
                raise
            beat.note = f"{question.name}: holding its reply, {error.message}"
            await asyncio.sleep(HOLD_WAIT_S)


def limited_cost(facts: RolloutFacts, call: Call, parent: Call | None) -> float:
    """Dollars of the call, which extends `parent`; 0 without a limit. Raises ConfigError where its
    tokens were not counted."""
    if facts.agent_config.cost_limit is None:
        return 0.0
    price = facts.config.price
    dollars = None if price is None else cost(call, parent, price)
    if dollars is None:
        model = facts.config.policy.model
        raise ConfigError(
            f"agent.cost_limit is set, and the endpoint of {model} does not count the tokens of "
            "its replies (`usage`): their cost is not known",
            remedy="leave agent.cost_limit out, or use an endpoint that counts",
        )
    return dollars
