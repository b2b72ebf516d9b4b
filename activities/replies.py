"""Replies of the policy: ask for the next one and store it as it was served.

Safe to run twice: the first stored reply stands, and both attempts answer from it.
"""

from collections.abc import Sequence

from temporalio import activity

from activities.implements import implements
from infra.db import turns
from infra.db.cache import Known
from infra.db.database import Database
from infra.policy.protocol import ContextFull, NoEngineAnswered, ReplyRequest, Versions
from infra.policy.serving import ServedCampaigns
from infra.temporal.heartbeat import heartbeating
from mainspring.agents.conversation import Conversation
from mainspring.agents.protocol import Agent, FormatError
from mainspring.protocol.activities import GENERATE
from mainspring.protocol.rollout import GenerateInput, GenerateResult, ReplyKind
from mainspring.trajectories.seeds import call_seed
from mainspring.trajectories.tree import path_to
from mainspring.trajectories.turns import Call

SUMMARY_CHARS = 60
"""Commands are cut to this for Temporal's UI (its limit is about 200 bytes)."""
NUM_CLOSED = "closed"
"""What a heartbeat tells the next attempt, wherever it runs: see ReplyRequest.num_closed."""


class ReplyActivities:
    def __init__(self, db: Database, known: Known, served: ServedCampaigns) -> None:
        self._db = db
        self._known = known
        self._served = served

    @implements(GENERATE)
    async def generate(self, ask: GenerateInput) -> GenerateResult:
        async with heartbeating() as beat:
            about = await self._known.rollout(ask.rollout)
            replies, executions = await turns.history(self._db, ask.rollout, ask.epoch)
            agent = await self._known.agent(ask.rollout)
            if ask.turn < len(replies):
                return _result(agent, path_to(replies, ask.turn))
            served = await self._served.of(about.campaign)
            task = await self._known.task(about.task)
            closed = beat.earlier(NUM_CLOSED)
            # Each call extends the one before: the rollout is one branch.
            path = path_to(replies, ask.turn - 1 if ask.turn else None)
            request = ReplyRequest(
                number=ask.turn,
                rollout=ask.rollout,
                request_id=f"{ask.rollout}.e{ask.epoch}.t{ask.turn}.{activity.info().attempt}",
                conversation=Conversation(agent, task, path, executions),
                temperature=about.temperature,
                versions=Versions(ask.min_policy_version, only=served.is_reproducible),
                seed=None if about.seed is None else call_seed(about.seed, ask.turn),
                num_closed=closed if isinstance(closed, int) else 0,
            )
            try:
                reply = await served.policy.complete(request)
            except ContextFull as full:
                activity.logger.info("%s, turn %d: %s", ask.rollout, ask.turn, full)
                return GenerateResult(kind=ReplyKind.CONTEXT_FULL)
            except NoEngineAnswered as away:
                beat.tell(NUM_CLOSED, away.num_closed)
                raise
            stored = await turns.put_call(self._db, ask.rollout, ask.epoch, reply)
            return _result(agent, (*path, stored))


def _result(agent: Agent, path: Sequence[Call]) -> GenerateResult:
    """Of the last call of `path`; its tokens are counted with those before it on its branch."""
    call = path[-1]
    asked = agent.parse(call.text)
    commands = () if isinstance(asked, FormatError) else asked
    in_tokens = bool(call.completion_ids)
    return GenerateResult(
        kind=ReplyKind.COMMAND if commands else ReplyKind.FORMAT_ERROR,
        spent_s=call.latency_s,
        summary=_cut(" ".join(commands[0].command.split())) if commands else "",
        num_commands=len(commands),
        num_prompt_tokens=sum(len(g.prompt_ids) for g in path)
        if in_tokens
        else call.num_prompt_tokens,
        num_completion_tokens=sum(len(g.completion_ids) for g in path)
        if in_tokens
        else call.num_completion_tokens,
    )


def _cut(text: str) -> str:
    """In the middle: what a command begins with and what it ends with tell the most."""
    if len(text) <= SUMMARY_CHARS:
        return text
    kept = SUMMARY_CHARS - 5
    return f"{text[: kept - kept // 2]} ... {text[len(text) - kept // 2 :]}"
