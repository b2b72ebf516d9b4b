"""A client of SGLang's native HTTP API: completions over several engines, weights to each.

Implements infra.policy.protocol.Engines. Invariants: a completion cut off by
an abort resumes from its partial tokens with what is left of its budget; an engine whose weights
are not the campaign's, or were discarded, is reported as UnknownWeights, never trained on (an
evaluation, which trains nothing, takes any weights), nor asked for tokens once it may have been
started again with others; what would kill an engine is not sent: ids it
has no embedding for, a request that closed two connections. Weights are `engine_weights`' matter.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from infra.db.nodes.engines import EngineLook
from infra.policy.engines.adapter_loading import AdapterLoading, loaded_at, of_adapter, under
from infra.policy.engines.balancer import Balancer, EngineMember
from infra.policy.engines.device_turn import SINCE_CUT_S, DeviceTurn
from infra.policy.engines.dialects.protocol import EngineDialect
from infra.policy.engines.dialects.sglang import SGLangDialect
from infra.policy.engines.engine_look import look
from infra.policy.engines.engine_weights import EngineWeights, IsKnown, served_label
from infra.policy.engines.loading import Loading, WholeModel
from infra.policy.engines.partial import (
    WHOLE,
    KeptParts,
    Partial,
    UnknownWeights,
    cut_off,
    weight_label,
)
from infra.policy.engines.pulse import Pulse
from infra.policy.engines.sampling_params import sampling_params
from infra.policy.engines.wire import Closed, GivenUp, Wire
from infra.policy.protocol import (
    ANY,
    ClosesConnections,
    Completion,
    Keep,
    MalformedReply,
    NoEngineAnswered,
    SamplingParams,
    TokenOutOfVocabulary,
    Versions,
)
from infra.policy.weight_label import WeightLabel
from mainspring.errors import EngineError, EngineFailing, EngineUnreachable
from mainspring.trajectories.turns import PartialCall

MAX_RESUMES = 64
"""Aborts of one completion before the caller has to retry; a publish costs at most one."""
MAX_CLOSED = 5
"""Connections that may close in a row under a request that gets no further. Engines that are killed
from outside close several, and a rollout must not be masked for it: with 2, a schedule of random
kills masked two rollouts of 1,424, and so changed a reproducible campaign's weights."""
RESUME_DELAY_S = SINCE_CUT_S
"""Between an abort and the rest: an operator aborting in a loop must not become a busy one."""
RETURN_S = 10.0
"""How long a request waits for an engine that is started again, before its caller has to retry:
the waits between a caller's retries soon double."""
RETURN_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class _Answered:
    engine: str
    answer: dict[str, Any]
    silent_s: float
    """For so long it answered nothing meanwhile."""


@dataclass(frozen=True, slots=True)
class _Request:
    body: dict[str, Any]
    sticky: str
    home: str
    name: str
    """For messages."""
    versions: Versions
    kept_parts: KeptParts | None


class EngineClient:
    """One per process; safe for any number of concurrent calls on one event loop."""

    def __init__(
        self,
        engines: Sequence[str],
        *,
        timeout_s: float = 600.0,
        api_key: str = "",
        any_weights: bool = False,
        vocab_size: int | None = None,
        model: Path | None = None,
        is_known: IsKnown | None = None,
        reproducible: bool = False,
        alone: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        adapters: bool = False,
        dialect: EngineDialect | None = None,
        reloaded: Callable[[str, WeightLabel], Awaitable[None]] | None = None,
        turn: DeviceTurn | None = None,
    ) -> None:
        """`vocab_size`: of the model, where it is known; `model`: directory of the first version,
        whose weights all later ones must have by name and shape; `is_known`: whether the campaign
        has such weights now, asked for every reply (default: any number is a version of it);
        `reproducible`: engines that are not, or not alike, are refused before they get weights;
        `alone`: entered while weights are loaded, to keep other processes from the same;
        `adapters`: engines keep `model` and load each version's adapters; `dialect`: of the engines
        (default: SGLang's); `reloaded`: told the name of an engine that was found with other
        weights, and the label of those that it was given; `turn`: waited for before a request is
        sent, where engines share their devices with the trainer."""
        self._any_weights = any_weights
        self._adapters = adapters
        self._vocab_size = vocab_size
        self._is_known = is_known
        self._reloaded = reloaded
        self._turn = turn
        self._doubtful: set[str] = set()
        """Engines that did not answer: the process that answers next may be another one."""
        self._balancer = Balancer([EngineMember.at(url.rstrip("/")) for url in engines])
        self._wire = Wire(timeout_s, api_key, dialect or SGLangDialect())
        self._pulse = Pulse(self._wire.answers, self._is_silent)
        self._loading: Loading = WholeModel()
        if adapters:
            assert model is not None, "adapters are those of a model"
            self._loading = AdapterLoading(model, is_known or _any_label)
        self.weights = EngineWeights(
            self._wire,
            model=model,
            is_known=is_known,
            reproducible=reproducible,
            alone=alone,
            loading=self._loading,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._wire.aclose()

    @property
    def engines(self) -> Sequence[str]:
        """Addresses of those that requests go to and that answered when they were last seen."""
        return [
            member.url
            for member in self._balancer.members
            if not (member.is_draining or member.is_lost)
        ]

    @property
    def lost(self) -> Sequence[str]:
        """Addresses of those that did not answer when they were last seen."""
        return [member.url for member in self._balancer.members if member.is_lost]

    def use(self, members: Sequence[EngineMember]) -> None:
        """Ask these engines from now on; requests that are under way end where they are."""
        self._balancer.use(members)

    async def look(self, url: str) -> EngineLook:
        """How the engine at `url` is now."""
        return await look(self._wire, url)

    def _is_silent(self, engine: str) -> bool:
        self._balancer.did_not_answer(engine)
        return len(self._balancer.answering) > 0

    async def generate(
        self,
        input_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        sticky: str,
        versions: Versions = ANY,
        begun: PartialCall | None = None,
        keep: Keep | None = None,
        num_closed: int = 0,
        home: str = "",
    ) -> Completion:
        """See protocol.Engines. Raises UnknownWeights also when the engine serves weights that the
        campaign discarded."""
        self._check_ids(input_ids, request_id)
        if params.sampling.penalties:
            # Engines count the tokens of one request: what another one began counts for nothing,
            # so that such a reply is sampled in one, from its first token.
            begun, keep = None, None
        partial = Partial.continuing(self._any_weights, begun)
        kept_parts = None if keep is None else KeptParts(partial, versions, keep)
        for attempt in range(MAX_RESUMES):
            if len(partial.output_ids) >= params.max_new_tokens:
                return partial.completion("length")
            body = {
                # Unique, as an engine may still hold the request of an attempt that was cut off;
                # unique at its beginning, as SGLang aborts every request that begins with an id.
                "rid": f"{uuid.uuid4().hex[:16]}-{request_id}",
                "input_ids": input_ids + partial.output_ids,
                "sampling_params": sampling_params(params, len(partial.output_ids)),
                "return_logprob": True,
            }
            if self._turn is not None:
                await self._turn.come(anew=attempt > 0)
            before = partial.call()
            try:
                request = _Request(body, sticky, home, request_id, versions, kept_parts)
                served, num_closed = await self._post_or_wait(request, num_closed)
                finish = partial.add(served.engine, served.answer, versions, served.silent_s)
            except UnknownWeights as stale:
                await self._refuse_unknown(stale.engine, partial.labels)
                stale.begun = before if before.completion_ids else None
                stale.num_closed = max(num_closed, stale.num_closed)
                raise
            await self._refuse_unknown(served.engine, partial.labels)
            if finish in WHOLE and not partial.output_ids:
                raise MalformedReply(
                    f"policy engine {served.engine}: a reply without a token that ended by {finish}"
                )
            if finish in WHOLE:
                return partial.completion(finish, self._balancer.name_of(served.engine))
            if params.sampling.penalties:
                partial = Partial(self._any_weights)
            await asyncio.sleep(RESUME_DELAY_S)
        raise NoEngineAnswered(
            f"request {request_id} was aborted {MAX_RESUMES} times in a row", num_closed
        )

    async def _refuse_unknown(self, engine: str, labels: set[WeightLabel]) -> None:
        """Raises UnknownWeights. Asked anew each time: what was known may be discarded by now."""
        if self._is_known is None:
            return
        for label in labels:
            if not await self._is_known(label):
                raise UnknownWeights(engine, str(label), ANY)

    async def _refuse_first_model(self, engine: str, versions: Versions) -> None:
        """Raises UnknownWeights before an engine that was started again samples from the weights it
        was started with: every request that waited for it would have to be sampled again."""
        if self._any_weights or engine not in self._doubtful:
            return
        info = await self.weights.info(engine)
        weight_label(engine, str(info.get("weight_version")), versions)
        self._doubtful.discard(engine)

    def _check_ids(self, input_ids: list[int], request_id: str) -> None:
        size = self._vocab_size
        if size is None or (min(input_ids, default=0) >= 0 and max(input_ids, default=0) < size):
            return
        position, token = next((p, i) for p, i in enumerate(input_ids) if not 0 <= i < size)
        raise TokenOutOfVocabulary(
            f"request {request_id}: id {token} at position {position} of the prompt is outside the "
            f"model's vocabulary of {size}",
            remedy="the tokenizer does not belong to the model: compare the vocab_size of its "
            "config.json with the tokenizer's largest id",
        )

    async def _post_or_wait(self, request: _Request, num_closed: int) -> tuple[_Answered, int]:
        """As `_post_generate`, which is repeated for RETURN_S while no engine answers."""
        until = time.monotonic() + RETURN_S
        while True:
            try:
                return await self._post_generate(request, num_closed)
            except NoEngineAnswered as away:
                if time.monotonic() + RETURN_LOOK_S > until:
                    raise
                num_closed = away.num_closed
            await asyncio.sleep(RETURN_LOOK_S)

    async def _post_generate(self, request: _Request, num_closed: int) -> tuple[_Answered, int]:
        """The answer of the first engine that gives one, and `num_closed` by then. What an engine
        had streamed when its connection closed is an answer that was aborted there."""
        failures: list[EngineUnreachable | EngineFailing] = []
        for engine in self._balancer.candidates(request.sticky, request.home):
            if num_closed >= MAX_CLOSED:
                break
            with self._balancer.sending(engine, request.sticky):
                try:
                    with self._pulse.watching(engine) as watch:
                        answer, failure = await self._attempt(engine, request, watch.limit)
                    if answer is None and request.kept_parts is not None:
                        request.kept_parts.lose()
                except UnknownWeights as stale:
                    stale.num_closed = num_closed
                    raise
                if failure is not None:
                    self._balancer.did_not_answer(engine)
                    self._doubtful.add(engine)
                    self._wire.forget(engine)
                    failures.append(failure)
                    if isinstance(failure, Closed) and not isinstance(failure, GivenUp):
                        # What kills engines never gets further than it was.
                        has_more = answer is not None and bool(answer["output_ids"])
                        num_closed = 0 if has_more else num_closed + 1
                if answer is not None and num_closed < MAX_CLOSED:
                    return _Answered(engine, answer, watch.silent_s), num_closed
        reasons = "; ".join(failure.message for failure in failures)
        if num_closed >= MAX_CLOSED:
            raise ClosesConnections(
                f"request {request.name} of {len(request.body['input_ids'])} tokens closed "
                f"{num_closed} "
                f"connections to policy engines and is not sent again: {reasons}",
                remedy="see the engines' logs: did the request kill them, or were they restarted?",
            )
        if failures and all(isinstance(failure, EngineFailing) for failure in failures):
            raise EngineFailing(reasons)
        reasons = reasons or "the campaign has none that takes requests (`mainspring engine list`)"
        raise NoEngineAnswered(f"no policy engine answered: {reasons}", num_closed)

    async def _attempt(
        self, engine: str, request: _Request, limit: asyncio.Timeout
    ) -> tuple[dict[str, Any] | None, EngineUnreachable | EngineFailing | None]:
        """The engine's answer, and why that is not all."""
        try:
            await self._refuse_first_model(engine, request.versions)
            adapter = await self._adapter(engine, request.versions)
        except (EngineUnreachable, EngineFailing) as error:
            # Not of the request: a connection that closed here is none that it closed.
            return None, EngineUnreachable(error.message)
        body, on_piece = request.body, request.kept_parts and request.kept_parts.take
        if adapter is not None:
            body = body | {"lora_path": adapter}
            on_piece = on_piece and of_adapter(adapter, on_piece)
        try:
            return under(adapter, await self._wire.reply(engine, body, on_piece, limit)), None
        except Closed as closed:
            return closed.so_far and under(adapter, cut_off(closed.so_far)), closed
        except (EngineUnreachable, EngineFailing) as error:
            return None, error
        except EngineError:
            # Another process may have come to its address meanwhile, without the adapter.
            if adapter is not None and adapter != await self._adapter(engine, request.versions):
                raise UnknownWeights(engine, adapter, request.versions) from None
            raise

    async def _adapter(self, engine: str, versions: Versions) -> str | None:
        """Name of the adapter of the version that `engine` serves now, of whatever campaign for an
        evaluation. Raises UnknownWeights."""
        if not (self._adapters or self._any_weights):
            return None
        served = str((await self.weights.info(engine)).get("weight_version"))
        if self._any_weights:
            is_one = WeightLabel.parse(served) and served in await loaded_at(self._wire, engine)
            return served if is_one else None
        label = weight_label(engine, served, versions)
        await self._refuse_unknown(engine, {label})
        return self._loading.adapter(label)

    async def served_version(self, engine: str) -> int | None:
        label = served_label(await self.weights.info(engine))
        return None if label is None else label.version

    async def publish(self, engine: str, weights: Path, label: WeightLabel) -> None:
        """See protocol.Publisher."""
        await self.weights.reconcile(engine, weights, label)

    async def reconcile(self, engine: str, weights: Path, label: WeightLabel) -> bool:
        """See EngineWeights.reconcile."""
        is_loaded = await self.weights.reconcile(engine, weights, label)
        if is_loaded and self._reloaded is not None:
            await self._reloaded(self._balancer.name_of(engine) or engine, label)
        return is_loaded


async def _any_label(label: WeightLabel) -> bool:
    return True
