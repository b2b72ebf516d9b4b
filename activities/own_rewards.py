"""Rewards of functions of one's own: computed before the end of a rollout is written.

Safe to run twice: a function is called again, and what it asked judges is answered from the store.
Invariants: a function runs in a thread and is given `reward.timeout_s`, without the time that its
judges take; whatever it does wrong is RewardBroken, which ends the campaign; a judge that gives no
vote now fails the attempt, which is retried.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Mapping
from typing import Any

from activities.implements import implements
from activities.judging import JudgeActivities
from activities.scoring import score_rollout
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.rollouts.judgements import JudgeQuestion
from infra.temporal.heartbeat import Beat, heartbeating
from mainspring.config.agents.judges import QuestionScope
from mainspring.ids import RolloutId
from mainspring.protocol.activities import SCORE
from mainspring.protocol.scoring import ScoreInput, ScoreResult
from mainspring.rewards.scoring import Outcome, Part, RewardBroken, Scored, score


class RewardActivities:
    def __init__(self, db: Database, cache: FactCache, judging: JudgeActivities) -> None:
        self._db = db
        self._cache = cache
        self._judging = judging

    @implements(SCORE)
    async def score(self, ask: ScoreInput) -> ScoreResult:
        async with heartbeating("reward functions") as beat:
            config = (await self._cache.rollout(ask.rollout)).config
            limit_s = config.reward.timeout_s

            async def run(outcome: Outcome) -> Scored:
                asks = _Asks(self._judging, ask.rollout, ask.epoch, beat)
                return await _within(_Run(config.reward.parts, outcome, asks), limit_s)

            scored, _, _ = await score_rollout(
                self._db,
                self._cache,
                ask.rollout,
                ask.epoch,
                stop_reason=ask.stop_reason,
                verdict=ask.verdict,
                num_turns=ask.num_turns,
                run=run,
            )
            turns = None if scored.turns is None else scored.turns.stored()
            return ScoreResult(reward=scored.reward, parts=scored.parts, turns=turns)


class _Asks:
    """Implements `scoring.RewardJudges`, for a function that runs in another thread."""

    def __init__(
        self, judging: JudgeActivities, rollout: RolloutId, epoch: int, beat: Beat
    ) -> None:
        self._judging = judging
        self._rollout, self._epoch = rollout, epoch
        self._beat = beat
        self._loop = asyncio.get_running_loop()
        self._num_asked = 0
        self._num_open = 0
        self._open_since = 0.0
        self._waited_s = 0.0

    @property
    def waited_s(self) -> float:
        """Seconds in which it waited for judges, up to now."""
        open_s = time.monotonic() - self._open_since if self._num_open else 0.0
        return self._waited_s + open_s

    async def ask(self, judge: str, prompt: str) -> float | None:
        number = self._num_asked
        self._num_asked += 1
        question = JudgeQuestion(self._rollout, self._epoch, judge, QuestionScope.REWARD, number)
        asked = asyncio.run_coroutine_threadsafe(self._ask(question, prompt), self._loop)
        return await asyncio.wrap_future(asked)

    async def _ask(self, question: JudgeQuestion, prompt: str) -> float | None:
        if not self._num_open:
            self._open_since = time.monotonic()
        self._num_open += 1
        try:
            return (await self._judging.ask(question, prompt, self._beat)).score
        finally:
            self._num_open -= 1
            if not self._num_open:
                self._waited_s += time.monotonic() - self._open_since


class _Run:
    """A call of `score` in a thread."""

    def __init__(self, parts: Any, outcome: Outcome, asks: _Asks) -> None:
        self.parts = parts
        self.outcome = outcome
        self.asks = asks
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[object]] | None = None

    def __call__(self) -> Scored:
        return score(self.parts, self.outcome, self._call)

    def _call(self, part: Part, outcome: Outcome, arguments: Mapping[str, Any]) -> object:
        takes_judges = "judges" in inspect.signature(part).parameters
        extra = {"judges": self.asks} if takes_judges else {}
        value = part(outcome, **arguments, **extra)
        if not inspect.isawaitable(value):
            return value
        with asyncio.Runner() as runner:
            return runner.run(self._awaited(value))

    async def _awaited(self, value: Awaitable[object]) -> object:
        task = asyncio.current_task()
        assert task is not None
        self._running = asyncio.get_running_loop(), task
        try:
            return await value
        finally:
            self._running = None

    def cancel(self) -> None:
        """A function that awaits; another one runs on in its thread."""
        if self._running is not None:
            loop, task = self._running
            loop.call_soon_threadsafe(task.cancel)


async def _within(run: _Run, limit_s: float) -> Scored:
    """Raises RewardBroken when it takes longer."""
    began = time.monotonic()
    scoring = asyncio.create_task(asyncio.to_thread(run))
    try:
        while not scoring.done():
            left_s = limit_s + run.asks.waited_s - (time.monotonic() - began)
            if left_s <= 0:
                names = ", ".join(part.label for part in run.parts)
                raise RewardBroken(
                    f"the reward of rollout {run.outcome.rollout} ({names}) took longer than "
                    f"{limit_s:g} s",
                    remedy="raise reward.timeout_s, or mend what the function waits for",
                )
            await asyncio.wait({scoring}, timeout=max(left_s, 0.01))
        return scoring.result()
    finally:
        if not scoring.done():
            run.cancel()
            scoring.cancel()
