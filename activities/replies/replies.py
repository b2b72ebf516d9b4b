"""Replies of the policy: ask for the next one and store it as it was served.

Safe to run twice: the first stored reply stands, and both attempts answer from it. The activity of
several turns asks through `ReplyActivities.reply` as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from temporalio import activity

from activities.implements import implements
from activities.replies import held_replies
from activities.replies.partial_replies import PartialReplies
from infra.db.cache import Known
from infra.db.database import Database
from infra.db.rollouts import turns
from infra.db.rollouts.partial_calls import Kept
from infra.db.rollouts.trajectories import Trajectories, Trajectory
from infra.policy.protocol import ContextFull, NoEngineAnswered, ReplyRequest, Versions
from infra.policy.serving import ServedCampaigns
from infra.temporal.heartbeat import Beat, heartbeating
from mainspring.agents.conversation import Conversation
from mainspring.agents.protocol import Agent, Command, FormatError
from mainspring.protocol.activities import GENERATE
from mainspring.protocol.rollout import GenerateInput, GenerateResult, ReplyKind
from mainspring.trajectories.seeds import call_seed
from mainspring.trajectories.tree import path_to
from mainspring.trajectories.turns import Call, PartialCall

SUMMARY_CHARS = 60
"""Commands are cut to this for Temporal's UI (its limit is about 200 bytes)."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a turn begins with."""

    result: GenerateResult
    commands: tuple[Command, ...] = ()
    """None where the reply has another kind than COMMAND."""


class ReplyActivities:
    def __init__(self, db: Database, known: Known, served: ServedCampaigns) -> None:
        self._db = db
        self._known = known
        self._served = served
        self._partials = PartialReplies(db)
        self.trajectories = Trajectories(db)

    @implements(GENERATE)
    async def generate(self, ask: GenerateInput) -> GenerateResult:
        async with heartbeating() as beat:
            past = await self.trajectories.read(ask.rollout, ask.epoch)
            # It has the turn to itself: only its own attempts before can have begun the reply.
            reply = await self.reply(ask, past, beat, is_first=False)
            self.trajectories.keep(ask.rollout, ask.epoch, past)
            return reply.result

    async def reply(
        self,
        ask: GenerateInput,
        past: Trajectory,
        beat: Beat,
        *,
        is_first: bool,
        num_closed: int = 0,
    ) -> Reply:
        """The reply of a turn: what `past` has of it, or a new one, which is stored and added.
        `is_first`: an activity before this one may have begun it; `num_closed`: what is known of
        its request already."""
        agent = await self._known.agent(ask.rollout)
        if ask.turn < len(past.calls):
            return _reply(agent, path_to(past.calls, ask.turn))
        about = await self._known.rollout(ask.rollout)
        served = await self._served.of(about.campaign)
        task = await self._known.task(about.task)
        closed = beat.earlier(_closed(ask.turn))
        # Each call extends the one before: the rollout is one branch.
        path = path_to(past.calls, ask.turn - 1 if ask.turn else None)
        begun = None
        if is_first or activity.info().attempt > 1:
            begun = await self._partials.get(ask.rollout, ask.epoch, ask.turn)

        def keep(partial: PartialCall) -> None:
            self._partials.keep(Kept(ask.rollout, ask.epoch, ask.turn, partial))

        request = ReplyRequest(
            number=ask.turn,
            rollout=ask.rollout,
            request_id=f"{ask.rollout}.e{ask.epoch}.t{ask.turn}.{activity.info().attempt}",
            conversation=Conversation(agent, task, path, past.executions),
            temperature=about.temperature,
            versions=Versions(ask.min_policy_version, only=served.is_reproducible),
            seed=None if about.seed is None else call_seed(about.seed, ask.turn),
            begun=begun,
            keep=keep,
            num_closed=closed if isinstance(closed, int) else num_closed,
        )
        try:
            reply = await served.policy.complete(request)
        except ContextFull as full:
            activity.logger.info("%s, turn %d: %s", ask.rollout, ask.turn, full)
            return Reply(GenerateResult(kind=ReplyKind.CONTEXT_FULL))
        except NoEngineAnswered as away:
            beat.tell(_closed(ask.turn), away.num_closed)
            raise
        self._partials.forget(ask.rollout, ask.epoch, ask.turn)
        stored = await held_replies.stored(
            lambda: turns.put_call(self._db, ask.rollout, ask.epoch, reply),
            f"turn {ask.turn + 1}",
            beat,
        )
        past.add_call(stored)
        return _reply(agent, (*path, stored))


def _closed(turn: int) -> str:
    """What a heartbeat tells the next attempt, wherever it runs: see ReplyRequest.num_closed."""
    return f"closed {turn}"


def _reply(agent: Agent, path: Sequence[Call]) -> Reply:
    """Of the last call of `path`; its tokens are counted with those before it on its branch."""
    call = path[-1]
    asked = agent.parse(call.text)
    commands = () if isinstance(asked, FormatError) else asked
    in_tokens = bool(call.completion_ids)
    result = GenerateResult(
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
    return Reply(result, commands)


def _cut(text: str) -> str:
    """In the middle: what a command begins with and what it ends with tell the most."""
    if len(text) <= SUMMARY_CHARS:
        return text
    kept = SUMMARY_CHARS - 5
    return f"{text[: kept - kept // 2]} ... {text[len(text) - kept // 2 :]}"
