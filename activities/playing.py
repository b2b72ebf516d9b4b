"""Several turns in one activity, on the node that holds the sandbox: reply, commands, next reply.

Invariants: every reply and every command is stored as if it were an activity of its own (see
`replies` and `sandbox`), so an attempt resumes from the store wherever the one before it was cut
off; what ends the turns is `mainspring.trajectories.tally`'s to decide. A turn that fails after
others of the same activity ends it with those, so that the attempts at a turn are counted for that
turn alone; so does a node that stops, and a turn that would not end within the attempt's time.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from temporalio import activity

from activities.implements import implements
from activities.replies.replies import ReplyActivities, TurnBegin
from activities.sandbox import SandboxActivities
from infra.db.cache import FactCache
from infra.db.rollouts.call_cache import PlayedCalls
from infra.policy.protocol import NoEngineAnswered
from infra.temporal.faults import kind_of, wait_before_retry_s
from infra.temporal.heartbeat import Beat
from mainspring.agents.protocol import Agent, Command
from mainspring.errors import EngineUnreachable, ModelError, SandboxError
from mainspring.ids import NodeId, RolloutId
from mainspring.protocol.activities import (
    COLLECT_PATCH,
    PLAY_TURNS,
    command_s,
    reply_s,
)
from mainspring.protocol.rollout import (
    ExecuteInput,
    GenerateInput,
    PlayInput,
    PlayResult,
    ReplyKind,
)
from mainspring.status import FaultKind, StopReason
from mainspring.trajectories.tally import Tally
from mainspring.trajectories.turns import Execution
from node.held_sandboxes import HeldSandboxes


@dataclass(slots=True)
class Play:
    """One attempt under way."""

    ask: PlayInput
    past: PlayedCalls
    beat: Beat
    result: PlayResult
    """Result of the turns that are over."""
    started: float = field(default_factory=time.monotonic)
    num_steps: int = 0

    def may_begin(self, step_s: float) -> bool:
        """A step that may take `step_s`: not on a node that stops, and not when it may outlast the
        attempt, unless it is the first: what is stored is no step, so every attempt has one."""
        self.num_steps += 1
        if activity.is_worker_shutdown():
            return False
        limit = activity.info().start_to_close_timeout
        if limit is None or self.num_steps == 1:
            return True
        return time.monotonic() - self.started + step_s < limit.total_seconds()


class PlayingActivities:
    def __init__(
        self,
        cache: FactCache,
        node: NodeId,
        held: HeldSandboxes,
        replies: ReplyActivities,
        sandboxes: SandboxActivities,
    ) -> None:
        self._cache = cache
        self._node = node
        self._held = held
        self._replies = replies
        self._sandboxes = sandboxes

    @implements(PLAY_TURNS)
    async def play_turns(self, ask: PlayInput) -> PlayResult:
        async with self._held.working("beginning", ask.rollout, ask.sandbox) as beat:
            past = await self._replies.calls.played(ask.rollout, ask.epoch)
            play = Play(ask, past, beat, PlayResult(tally=ask.tally))
            try:
                await self._play(play)
            except Exception as error:
                retry_s = wait_before_retry_s(error)
                if play.result.tally.num_turns == ask.tally.num_turns or retry_s is None:
                    raise
                activity.logger.warning(
                    "%s, turn %d is tried again: %s",
                    ask.rollout,
                    play.result.tally.num_turns + 1,
                    error,
                    exc_info=kind_of(error) is FaultKind.UNEXPECTED,
                )
                play.result.retry_s = retry_s
                if isinstance(error, NoEngineAnswered):
                    play.result.num_closed = error.num_closed
            if play.result.tally.stop is not None:
                self._replies.calls.forget(ask.rollout, ask.epoch)
            else:
                self._replies.calls.keep(ask.rollout, ask.epoch, past)
            return play.result

    async def _play(self, play: Play) -> None:
        end = play.ask.tally.num_turns + play.ask.num_turns
        while play.result.tally.stop is None and play.result.tally.num_turns < end:
            tally = play.result.tally.model_copy()
            if not await self._play_turn(play, tally):
                return
            play.result.tally = tally
        if play.result.tally.stop is not None:
            await self._collect(play)

    async def _collect(self, play: Play) -> None:
        """Also where the rollout ends without a submission, whose command did it."""
        is_done = play.result.tally.stop is StopReason.SUBMITTED
        if not is_done and play.may_begin(COLLECT_PATCH.timeout_s):
            started = time.monotonic()
            play.beat.note = "diff"
            await self._sandboxes.collect(play.ask.rollout, play.ask.epoch, play.ask.sandbox)
            play.result.collect_s = time.monotonic() - started
            is_done = True
        play.result.is_closed = is_done

    async def _play_turn(self, play: Play, tally: Tally) -> bool:
        """Whether it was played to its end."""
        ask, turn = play.ask, tally.num_turns
        is_stored = turn < len(play.past.calls)
        if not is_stored and not play.may_begin(reply_s(ask.request_timeout_s)):
            return False
        reply = await self._reply(play, turn)
        if reply.result.kind is ReplyKind.CONTEXT_FULL:
            tally.context_is_full()
            return True
        counted = (reply.result.num_prompt_tokens, reply.result.num_completion_tokens)
        play.result.num_tokens = None if None in counted else sum(n or 0 for n in counted)
        in_format = reply.result.kind is not ReplyKind.FORMAT_ERROR
        tally.replied(reply.result.spent_s, in_format=in_format, cost=reply.result.cost)
        agent = (await self._cache.rollout(ask.rollout)).agent
        play.beat.note = f"turn {turn + 1}: {reply.result.summary}"
        num_stored = len(play.past.record.ran(turn))
        for index in range(len(reply.commands)):
            is_stored = index < num_stored
            if not is_stored and not play.may_begin(command_s(ask.command_timeout_s)):
                return False
            started = time.monotonic()
            done, submitted = await self._run(play, turn, index, agent, reply.commands)
            play.result.returncode = done.returncode
            play.result.execute_s += time.monotonic() - started
            tally.ran(done.wall_s, submitted=submitted)
            if tally.stop is not None:
                return True
        tally.end_turn()
        return True

    async def _reply(self, play: Play, turn: int) -> TurnBegin:
        ask = play.ask
        play.beat.note = f"turn {turn + 1}: reply"
        limit_s = reply_s(ask.request_timeout_s)
        try:
            with play.beat.asking():
                async with self._naming_node(ask.rollout), asyncio.timeout(limit_s):
                    return await self._replies.reply(
                        GenerateInput(
                            rollout=ask.rollout,
                            epoch=ask.epoch,
                            turn=turn,
                            min_policy_version=ask.min_policy_version,
                        ),
                        play.past,
                        play.beat,
                        is_first=turn == ask.tally.num_turns,
                        num_closed=ask.num_closed if turn == ask.tally.num_turns else 0,
                    )
        except TimeoutError:
            raise EngineUnreachable(
                f"rollout {ask.rollout}, turn {turn + 1}: no reply within {limit_s:g} s"
            ) from None

    async def _run(
        self, play: Play, turn: int, index: int, agent: Agent, commands: Sequence[Command]
    ) -> tuple[Execution, bool]:
        ask = play.ask
        limit_s = command_s(ask.command_timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                done, submitted = await self._sandboxes.run(
                    ExecuteInput(
                        rollout=ask.rollout,
                        epoch=ask.epoch,
                        turn=turn,
                        index=index,
                        sandbox=ask.sandbox,
                        timeout_s=ask.command_timeout_s,
                    ),
                    agent,
                    commands,
                )
        except TimeoutError:
            raise SandboxError(
                f"rollout {ask.rollout}, turn {turn + 1}: its command did not end within "
                f"{limit_s:g} s, though its own timeout is shorter"
            ) from None
        if done not in play.past.record.ran(turn):
            play.past.add_execution(done)
        return done, submitted

    @asynccontextmanager
    async def _naming_node(self, rollout: RolloutId) -> AsyncIterator[None]:
        """Name the node in a ModelError: it may lack what a rollout worker can read."""
        try:
            yield
        except ModelError as error:
            campaign = (await self._cache.rollout(rollout)).campaign
            raise ModelError(
                f"node {self._node} cannot ask the policy of campaign {campaign} itself: "
                f"{error.message}",
                remedy="make the model's directories readable on every node under the same paths, "
                "or set rollout.turns_per_activity = 1, for which nodes need no model",
            ) from error
