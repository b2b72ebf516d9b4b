"""Judgements: ask a judge for its votes on a turn or a rollout, and store each as it comes.

Safe to run twice: what is stored is answered from the store, and only votes that are not are asked
for; of two attempts at once the first vote stands. Invariants: no judge is asked without a bound; a
judgement that cannot be had is stored as missing with its reason, and is no number; what a judge of
one's own does wrong ends no worker.
"""

import asyncio
from dataclasses import dataclass

from activities import seen_records
from activities.implements import implements
from infra.db.cache import FactCache, RolloutFacts
from infra.db.database import Database
from infra.db.rollouts import judged_turns, judgements
from infra.db.rollouts.judgements import JudgeQuestion
from infra.db.runs import campaigns, events
from infra.judges.judge import (
    JudgeBusy,
    JudgeFailing,
    JudgeRefused,
    JudgesInUse,
    failure_of_own,
)
from infra.temporal.heartbeat import Beat, heartbeating
from infra.tracking import spans
from mainspring.config.agents.judges import JudgeConfig, QuestionScope
from mainspring.config.run import RunConfig
from mainspring.errors import ConfigError
from mainspring.protocol.activities import JUDGE
from mainspring.protocol.judging import JudgeInput, JudgeResult
from mainspring.rewards.judge_prompts import digest_of, prompt_of
from mainspring.rewards.scoring import RewardBroken
from mainspring.rewards.seen import SeenRecord
from mainspring.rewards.votes import Judgement, Vote, score_of, vote_of
from mainspring.status import EventKind
from mainspring.words.causes import shortened
from mainspring.words.plain_text import plain

MAX_WAIT_S = 60.0
"""Longer waits that an endpoint asks for are cut to this: a rollout's end waits for them."""
REASON_CHARS = 500
"""Characters stored of why a judgement is missing."""
TOLD_CHARS = 200
"""Characters of it that the workflow is told."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One question with all that its votes need."""

    question: JudgeQuestion
    facts: RolloutFacts
    config: JudgeConfig
    prompt: str


class JudgeActivities:
    def __init__(self, db: Database, cache: FactCache, judges: JudgesInUse) -> None:
        self._db = db
        self._cache = cache
        self._judges = judges

    @implements(JUDGE)
    async def judge(self, ask: JudgeInput) -> JudgeResult:
        question = JudgeQuestion(ask.rollout, ask.epoch, ask.judge, QuestionScope(ask.of), ask.call)
        async with heartbeating(f"judge {ask.judge}", asks=True) as beat:
            stands = await judgements.get(self._db, question)
            if stands is not None:
                return _result(stands)
            facts = await self._cache.rollout(ask.rollout)
            config = await self._judge_now(facts, ask.judge)
            record = await self._record(question, facts, config)
            if record is None:
                return JudgeResult(is_judged=False)
            try:
                prompt = prompt_of(config, ask.of, record)
            except ConfigError as broken:
                # Tried with samples before the run was stored: this record differs from them.
                return await self._settle(question, "", 0, {}, f"its prompt: {broken.message}")
            return await self._ask(_Asked(question, facts, config, prompt), beat)

    async def ask(self, question: JudgeQuestion, prompt: str, beat: Beat) -> JudgeResult:
        """A question of a reward function. Raises JudgeFailing while the judge may be asked again,
        and RewardBroken for a judge that the campaign does not have."""
        stands = await judgements.get(self._db, question)
        if stands is not None:
            return _result(stands)
        facts = await self._cache.rollout(question.rollout)
        assert isinstance(facts.config, RunConfig), "supervised runs have no rollouts"
        if question.judge not in facts.config.judges:
            there = ", ".join(facts.config.judges) or "none"
            raise RewardBroken(
                f"the reward of rollout {question.rollout} asks judge {question.judge!r}, which "
                f"has no section [judges.{question.judge}]; there are: {there}",
                remedy="name one of them in the function",
            )
        config = await self._judge_now(facts, question.judge)
        return await self._ask(_Asked(question, facts, config, prompt), beat)

    async def _ask(self, asked: _Asked, beat: Beat) -> JudgeResult:
        """Raises JudgeFailing while the judge may be asked again."""
        given = await judgements.votes(self._db, asked.question)
        wanted = [number for number in range(asked.config.votes) if number not in given]
        answers = await asyncio.gather(
            *(self._vote(asked, number) for number in wanted), return_exceptions=True
        )
        failing: list[JudgeFailing] = []
        refused: list[JudgeRefused] = []
        for answer in answers:
            if isinstance(answer, JudgeFailing):
                failing.append(answer)
            elif isinstance(answer, JudgeRefused):
                refused.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
        if wanted:  # another attempt may have stored votes before this one did
            given = await judgements.votes(self._db, asked.question)
        beat.show(f"judge {asked.question.judge}: {len(given)} of {asked.config.votes} votes")
        missing = refused[0].message if refused else None
        if failing and not refused:
            missing = _given_up(asked, failing, beat)
            judge = asked.question.judge
            event = events.Event(
                EventKind.JUDGE_FAILED, judge, f"judge {judge}: {missing}", asked.facts.campaign
            )
            await events.tell(self._db, event)
        return await self._settle(
            asked.question, digest_of(asked.prompt), asked.config.votes, given, missing
        )

    async def _vote(self, asked: _Asked, number: int) -> None:
        """Ask for one vote and store it. Raises JudgeFailing, JudgeRefused, and what the store
        raises."""
        config, question = asked.config, asked.question
        limit_s = config.request_timeout_s
        async with self._judges.asking(
            asked.facts.campaign, question.judge, config, limit_s
        ) as judge:
            try:
                with self._span(asked, number):
                    async with asyncio.timeout(limit_s):
                        text = await judge.vote(asked.prompt, question.rollout, number)
            except TimeoutError:
                raise JudgeFailing(
                    f"judge {question.judge}: no vote within {limit_s:g} s",
                    remedy=f"raise judges.{question.judge}.request_timeout_s",
                ) from None
            except Exception as error:
                raise failure_of_own(question.judge, error) from error
        if not isinstance(text, str):
            raise JudgeRefused(
                f"judge {question.judge} gave a {type(text).__name__}, expected text"
            )
        vote = Vote(text, vote_of(config, text))
        await judgements.put_vote(self._db, question, number, vote)

    def _span(self, asked: _Asked, number: int) -> spans.AnySpan:
        question = asked.question
        return spans.span(
            "judge vote",
            campaign=asked.facts.campaign,
            rollout=question.rollout,
            epoch=question.epoch,
            judge=question.judge,
            of=question.of,
            call=question.call,
            vote=number,
        )

    async def _judge_now(self, facts: RolloutFacts, name: str) -> JudgeConfig:
        """The judge with the address and the limits that it has by now."""
        config = (await campaigns.get(self._db, facts.campaign)).config
        assert isinstance(config, RunConfig), "supervised runs have no rollouts"
        return config.judges[name]

    async def _settle(
        self,
        question: JudgeQuestion,
        digest: str,
        wanted: int,
        given: dict[int, Vote],
        missing: str | None,
    ) -> JudgeResult:
        votes = [given[number] for number in sorted(given)]
        settled = await judgements.put(
            self._db,
            question,
            prompt_sha256=digest,
            score=score_of(votes, wanted) if wanted else None,
            given=votes,
            missing=None if missing is None else shortened(plain(missing), REASON_CHARS),
        )
        return _result(settled)

    async def _record(
        self, question: JudgeQuestion, facts: RolloutFacts, judge: JudgeConfig
    ) -> SeenRecord | None:
        """None: a turn that ran nothing."""
        key = (question.rollout, question.epoch)
        if question.of is QuestionScope.TURNS:
            turns, num_before = await judged_turns.up_to(self._db, *key, question.call, judge.steps)
            return SeenRecord(facts.task.issue, turns, num_before) if turns else None
        return await seen_records.whole(self._db, facts, *key)


def _given_up(asked: _Asked, failing: list[JudgeFailing], beat: Beat) -> str:
    """Why no vote is asked for again. Raises the failure while one is."""
    worst = next((each for each in failing if not isinstance(each, JudgeBusy)), failing[0])
    waits = [each.retry_after_s for each in failing if each.retry_after_s is not None]
    wait_s = max(waits, default=None)
    worst.retry_after_s = None if wait_s is None else min(wait_s, MAX_WAIT_S)
    if isinstance(worst, JudgeBusy):
        raise worst
    told = f"failed {asked.question.judge} {asked.question.call}"
    earlier = beat.earlier(told)
    num_failed = (earlier if isinstance(earlier, int) else 0) + 1
    if num_failed <= asked.config.retries:
        # Temporal's own count has attempts that a drained or killed worker did not finish.
        beat.tell(told, num_failed)
        raise worst
    tries = "1 try" if num_failed == 1 else f"{num_failed} tries"
    return f"after {tries}: {worst.message}"


def _result(judgement: Judgement) -> JudgeResult:
    missing = judgement.missing
    return JudgeResult(
        score=judgement.score,
        num_votes=judgement.num_votes,
        num_valid=judgement.num_valid,
        missing=None if missing is None else shortened(missing, TOLD_CHARS),
    )
