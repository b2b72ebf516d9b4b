"""Replies of the policy: build the prompt, ask an engine, store what was served.

Invariant 4: a prompt in tokens is what was stored for the turns before plus the tokens of the one
new message; nothing sampled is ever tokenised again. An OpenAI-compatible endpoint gets the same
turns as messages and gives text, which is never trained on. Safe to run twice: the first stored
reply wins and both attempts answer from it.
"""

import asyncio
from pathlib import Path

from temporalio import activity

from activities.heartbeat import Beat, heartbeating
from activities.implements import implements
from activities.known import Known
from activities.served import Serve, Served, ServedChat, serve_over_http
from infra.db import policies, turns
from infra.db.database import Database
from infra.db.policies import PolicyRecord
from infra.policy.openai import ContextFull
from infra.policy.partial import UnknownWeights
from infra.policy.protocol import Completion, NoEngineAnswered, SamplingParams
from infra.policy.weight_label import WeightLabel
from mainspring.agent.action import Command, parse_action
from mainspring.agent.conversation import message_after, messages_before_reply
from mainspring.agent.prompt import system_prompt, task_prompt
from mainspring.ids import CampaignId
from mainspring.protocol.activities import GENERATE, PUBLISH_POLICY
from mainspring.protocol.campaign import PolicyRef
from mainspring.protocol.rollout import GenerateInput, GenerateResult, ReplyKind
from mainspring.tasks import Task
from mainspring.turns import Execution, Generation

SUMMARY_CHARS = 60
"""Commands are cut to this for Temporal's UI (its limit is about 200 bytes)."""
NUM_CLOSED = "closed"
"""What a heartbeat tells the next attempt: see infra.policy.protocol.PolicyClient.generate."""
MIN_REPLY_TOKENS = 8
"""Less room than this for a reply ends the rollout: no command fits."""


class PolicyActivities:
    def __init__(self, db: Database, known: Known, serve: Serve | None = None) -> None:
        self._db = db
        self._known = known
        self._serve = serve or serve_over_http
        self._served: dict[CampaignId, asyncio.Task[Served | ServedChat]] = {}

    async def close(self) -> None:
        for serving in self._served.values():
            if serving.done() and serving.exception() is None:
                await serving.result().client.aclose()

    @implements(GENERATE)
    async def generate(self, ask: GenerateInput) -> GenerateResult:
        async with heartbeating() as beat:
            about = await self._known.rollout(ask.rollout)
            generations, executions = await turns.history(self._db, ask.rollout, ask.epoch)
            if ask.turn < len(generations):
                return _result(generations[ask.turn], generations)
            served = await self._serving(about.campaign)
            task = await self._known.task(about.task)
            if isinstance(served, ServedChat):
                reply = await _chat(served, ask, task, about.temperature, generations, executions)
            else:
                reply = await self._continue(
                    served, ask, task, about.temperature, generations, executions, beat
                )
            if reply is None:
                return GenerateResult(kind=ReplyKind.CONTEXT_FULL)
            stored = await turns.put_generation(self._db, ask.rollout, ask.epoch, reply)
            return _result(stored, [*generations, stored])

    @implements(PUBLISH_POLICY)
    async def publish_policy(self, ref: PolicyRef) -> PolicyRef:
        """Load the version into every engine; an engine that is away catches up when asked."""
        async with heartbeating() as beat:
            served = await self._serving(ref.campaign)
            assert isinstance(served, Served), "nobody trains what gives no tokens"
            # Not always the version asked for: a campaign that was reset asks for an older one.
            newest = await policies.latest_policy(self._db, ref.campaign)
            policy = newest or await policies.get_policy(self._db, ref.campaign, ref.version)
            for engine in served.config.policy.engines:
                beat.note = engine
                try:
                    await served.client.publish(engine, Path(policy.path), _label(policy))
                except ConnectionError as error:
                    # No reason to hold up the campaign: `generate` brings the engine up to date
                    # before its first reply, because it asks for a minimum version.
                    activity.logger.warning("%s is away: %s", engine, error)
        return ref

    async def _continue(
        self,
        served: Served,
        ask: GenerateInput,
        task: Task,
        temperature: float,
        generations: list[Generation],
        executions: list[Execution],
        beat: Beat,
    ) -> Generation | None:
        """The next reply in tokens; None: there is no room for one."""
        new_ids = _new_prompt_ids(served, task, generations, executions)
        start = generations[-1].end if generations else 0
        room = served.config.policy.max_context - start - len(new_ids)
        if room < MIN_REPLY_TOKENS:
            return None
        context = [i for g in generations for i in (*g.prompt_ids, *g.completion_ids)]
        max_new_tokens = min(room, served.config.policy.max_new_tokens)
        completion = await self._complete(
            served, ask, context + new_ids, max_new_tokens, temperature, beat
        )
        return Generation(
            turn=ask.turn,
            prompt_start=start,
            prompt_ids=tuple(new_ids),
            completion_ids=completion.output_ids,
            logprobs=completion.logprobs,
            spans=completion.spans,
            text=served.tokenizer.decode(completion.output_ids),
            finish_reason=completion.finish_reason,
            latency_s=completion.latency_s,
        )

    async def _complete(
        self,
        served: Served,
        ask: GenerateInput,
        input_ids: list[int],
        max_new_tokens: int,
        temperature: float,
        beat: Beat,
    ) -> Completion:
        """One completion under the asked-for version or later; stale engines are updated first.
        A request that closed connections is counted over attempts, wherever they run."""
        closed = beat.earlier(NUM_CLOSED)
        params = SamplingParams(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            stop_token_ids=served.tokenizer.stop_token_ids,
        )
        while True:
            try:
                return await served.client.generate(
                    input_ids,
                    params,
                    request_id=f"{ask.rollout}.e{ask.epoch}.t{ask.turn}.{activity.info().attempt}",
                    sticky=ask.rollout,
                    min_version=ask.min_policy_version,
                    num_closed=closed if isinstance(closed, int) else 0,
                )
            except NoEngineAnswered as away:
                beat.tell(NUM_CLOSED, away.num_closed)
                raise
            except UnknownWeights as stale:
                about = await self._known.rollout(ask.rollout)
                newest = await policies.latest_policy(self._db, about.campaign)
                assert newest is not None, "rollouts start after version 0 is stored"
                await served.client.reconcile(stale.engine, Path(newest.path), _label(newest))

    async def _serving(self, campaign: CampaignId) -> Served | ServedChat:
        """Made once a process, also when many rollouts ask at once; again after a failure."""
        serving = self._served.get(campaign)
        if serving is None or (serving.done() and serving.exception() is not None):
            serving = asyncio.create_task(self._serve(self._db, campaign))
            self._served[campaign] = serving
        return await asyncio.shield(serving)


def _label(policy: PolicyRecord) -> WeightLabel:
    return WeightLabel(policy.version, policy.uid)


def _new_prompt_ids(
    served: Served, task: Task, generations: list[Generation], executions: list[Execution]
) -> list[int]:
    """Tokens of the one message that is new since the last reply."""
    agent = served.config.agent
    if not generations:
        return served.tokenizer.prompt_ids(
            system_prompt(agent.short_prompts),
            task_prompt(task.issue, task.workdir, agent.short_prompts),
        )
    last = generations[-1]
    closed = last.completion_ids[-1] in served.tokenizer.stop_token_ids
    message = message_after(agent, last, executions[-1] if executions else None)
    return served.tokenizer.next_prompt_ids(message, closed=closed)


async def _chat(
    served: ServedChat,
    ask: GenerateInput,
    task: Task,
    temperature: float,
    generations: list[Generation],
    executions: list[Execution],
) -> Generation | None:
    """The next reply in text; None: the endpoint, or its count of tokens, says there is no room."""
    policy = served.config.policy
    room = policy.max_context
    if generations:
        room -= generations[-1].num_prompt_tokens or 0
        room -= generations[-1].num_completion_tokens or 0
    if room < MIN_REPLY_TOKENS:
        return None
    messages = messages_before_reply(served.config.agent, task, generations, executions)
    try:
        reply = await served.client.complete(
            messages,
            max_tokens=min(room, policy.max_new_tokens),
            temperature=temperature,
            sticky=ask.rollout,
        )
    except ContextFull as full:
        activity.logger.info("%s, turn %d: %s", ask.rollout, ask.turn, full)
        return None
    return Generation(
        turn=ask.turn,
        prompt_start=0,
        prompt_ids=(),
        completion_ids=(),
        logprobs=(),
        spans=(),
        text=reply.text,
        finish_reason=reply.finish_reason,
        latency_s=reply.latency_s,
        num_prompt_tokens=reply.num_prompt_tokens,
        num_completion_tokens=reply.num_completion_tokens,
    )


def _result(generation: Generation, history: list[Generation]) -> GenerateResult:
    action = parse_action(generation.text)
    runs = isinstance(action, Command)
    in_tokens = bool(generation.completion_ids)
    return GenerateResult(
        kind=ReplyKind.COMMAND if runs else ReplyKind.FORMAT_ERROR,
        spent_s=generation.latency_s,
        summary=_cut(" ".join(action.command.split())) if runs else "",
        num_prompt_tokens=sum(len(g.prompt_ids) for g in history)
        if in_tokens
        else generation.num_prompt_tokens,
        num_completion_tokens=sum(len(g.completion_ids) for g in history)
        if in_tokens
        else generation.num_completion_tokens,
    )


def _cut(text: str) -> str:
    """In the middle: what a command begins with and what it ends with tell the most."""
    if len(text) <= SUMMARY_CHARS:
        return text
    kept = SUMMARY_CHARS - 5
    return f"{text[: kept - kept // 2]} ... {text[len(text) - kept // 2 :]}"
