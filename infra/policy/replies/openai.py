"""A client of OpenAI-compatible chat completions: messages in, one reply out.

For evaluations: such endpoints give neither tokens nor weight versions, so nothing of theirs can be
trained on. One call asks each endpoint at most once, and none after a reply, whatever its shape:
replies are paid for. Waiting and asking again is the caller's, who does it durably and with a
bound. Invariant: the API key stands in no error. Used by `text_policy`, and to check an endpoint
before a run.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import structlog
from pydantic import SecretStr

from infra.policy.engines.balancer import Balancer, EngineMember
from infra.policy.engines.wire import CONNECT_TIMEOUT_S
from infra.policy.protocol import WHOLE_DISTRIBUTION, MalformedReply
from infra.policy.replies import chat_refusal, chat_reply
from infra.policy.replies.chat_refusal import EndpointRefusalKind, RefusedRequest
from infra.policy.replies.chat_reply import ChatReply
from infra.policy.replies.endpoint_errors import (
    NO_REPLY,
    ContentFiltered,
    EndpointBusy,
    EndpointFailing,
    EndpointRefusing,
    EndpointUnreachable,
    NoReply,
    PolicyRefused,
    PromptNotTaken,
    ReplyCut,
    RequestNotTaken,
    StrayRefusal,
    of_all,
)
from mainspring.config.policy import PolicyConfig
from mainspring.config.sampling import SamplingConfig
from mainspring.errors import EngineError

MAX_RETRY_AFTER_S = 3600.0
"""Longer waits that an endpoint asks for are cut to this."""
SAID_CHARS = 200
"""Characters kept of an endpoint's error text."""
PATH = "/chat/completions"
_OPTIONAL = ("temperature", "seed")
"""Fields of a request that some models refuse, and that an endpoint chooses where none is sent."""
_NOT_REACHED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)
_log = structlog.get_logger(__name__)


class OpenAIClient:
    """One per process and campaign; safe for concurrent calls on one event loop."""

    def __init__(self, policy: PolicyConfig, api_key: SecretStr | None = None) -> None:
        self._model = policy.model
        self._key = api_key.get_secret_value() if api_key else ""
        self._limit_name = "max_tokens"
        self._max_context = policy.max_context
        self._left_out = frozenset(() if policy.temperature is not None else ("temperature",))
        """Names in _OPTIONAL that are not sent."""
        self._taken: set[str] = set()
        """Names in _OPTIONAL that an endpoint has taken: its refusal means something else."""
        self._tell_ends: set[str] = set()
        """Endpoints that have told a reply's finish reason: one without is cut off there."""
        self._balancer = Balancer([EngineMember.at(url) for url in policy.engines])
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else None,
            timeout=httpx.Timeout(policy.request_timeout_s, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        temperature: float,
        sticky: str,
        tools: Sequence[Mapping[str, Any]] = (),
        seed: int | None = None,
        top_p: float | None = None,
        num_taken: int = 0,
        sampling: SamplingConfig = WHOLE_DISTRIBUTION,
    ) -> ChatReply:
        """The reply of the first endpoint that gives one; `sticky` prefers the one that has the
        conversation cached; `num_taken`: requests of the same shape that this one continues.
        Raises EndpointBusy, EndpointFailing, EndpointRefusing, MalformedReply, PromptNotTaken,
        PolicyRefused."""
        body: dict[str, Any] = {"model": self._model, "messages": list(messages)}
        body["temperature"] = temperature
        body |= sampling_fields(sampling)
        if tools:
            body["tools"] = list(tools)
        if seed is not None:
            body["seed"] = seed
        if top_p is not None:
            body["top_p"] = top_p
        request = RefusedRequest(num_taken, self._max_context, tuple(sampling.given))
        failures: list[NoReply] = []
        for endpoint in self._balancer.candidates(sticky):
            with self._balancer.sending(endpoint, sticky):
                try:
                    reply = await self._ask(endpoint, body, max_tokens, request)
                except NO_REPLY as failure:
                    self._balancer.did_not_answer(endpoint)
                    failures.append(failure)
                    continue
            self._balancer.answered(endpoint)
            return reply
        raise of_all(failures)

    async def check(self, policy: PolicyConfig) -> tuple[str, ...]:
        """Ask every endpoint for one reply, before hundreds of rollouts do. Returns sentences on
        what requests leave out, because the model refuses it. Raises EngineError."""
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": "Reply with: ok"}],
            "temperature": policy.temperature,
            **sampling_fields(policy.sampling),
        }
        request = RefusedRequest(sampling=tuple(policy.sampling.given))
        for endpoint in policy.engines:
            try:
                await self._ask(endpoint, body, policy.max_new_tokens, request)
            except EndpointBusy as busy:
                if busy.retry_after_s is not None:
                    continue  # it is there, and will have time
                raise EngineError(
                    f"no reply from {busy.message}", remedy="is it up, and is --base-url right?"
                ) from None
        reserved = {name: body[name] for name in self._left_out if body.get(name) is not None}
        return tuple(
            f"model {self._model} refuses {name}: requests leave it out, and the endpoint's own "
            f"value counts (configured: {value:g}; to say so in the file: policy.{name} = "
            '"default")'
            for name, value in sorted(reserved.items())
        )

    async def _ask(
        self, endpoint: str, body: dict[str, Any], max_tokens: int, request: RefusedRequest
    ) -> ChatReply:
        started = time.monotonic()
        limit_name, left_out = self._limit_name, frozenset(self._left_out)
        answer = await self._post(endpoint, _without(body, left_out) | {limit_name: max_tokens})
        while answer.status_code in (400, 422):
            # OpenAI's newer models know the limit by another name, and take no temperature. An
            # error may repeat words of the prompt: only a reply shows what the model refuses.
            refused = self._refused_field(answer, body, limit_name, left_out)
            if refused is None:
                break
            if refused == limit_name:
                limit_name = "max_completion_tokens"
            else:
                left_out |= {refused}
            answer = await self._post(endpoint, _without(body, left_out) | {limit_name: max_tokens})
        if answer.status_code != 200:
            raise self._failure(endpoint, answer, request)
        for name in sorted(left_out - self._left_out):
            _log.warning("the model refuses a field: requests leave it out", field=name)
        self._limit_name, self._left_out = limit_name, self._left_out | left_out
        self._taken |= body.keys() & set(_OPTIONAL) - left_out
        reply = self._read(endpoint, answer, request)
        return replace(reply, latency_s=time.monotonic() - started)

    def _refused_field(
        self,
        answer: httpx.Response,
        body: Mapping[str, Any],
        limit_name: str,
        left_out: frozenset[str],
    ) -> str | None:
        """A field of the request that its refusal names, and that can be sent otherwise."""
        if limit_name == "max_tokens" and "max_completion_tokens" in answer.text:
            return limit_name
        open_ones = [name for name in _OPTIONAL if name in body and name not in left_out]
        fields = chat_refusal.fields_in(answer.text)
        return next(
            (field for field in open_ones if field in fields and field not in self._taken), None
        )

    def _read(self, endpoint: str, answer: httpx.Response, request: RefusedRequest) -> ChatReply:
        """Raises what `_refusal` makes of an error in the place of a reply, ReplyCut,
        ContentFiltered, and MalformedReply: a proxy's page, a reply cut on its way, or no such
        API."""
        where = f"endpoint {endpoint}, model {self._model}: HTTP 200"
        try:
            body = answer.json()
            error = chat_refusal.error_in(body)
            if error is not None:
                status = chat_refusal.status_of(error)
                text = f"{where} with an error in the place of a reply: {self._said(answer)}"
                raise self._refusal(text, status, error, request, answer)
            reply = chat_reply.read(body)
        except chat_reply.NotWhole as broken:
            text = f'{where} with a reply that ended by "{broken.finish_reason}"'
            if broken.filtered:
                raise ContentFiltered(text, broken.finish_reason) from None
            raise ReplyCut(text) from None
        except chat_reply.OTHER_SHAPE as error:
            raise MalformedReply(
                f"{where} that is not a chat completion "
                f"({type(error).__name__}: {str(error)[:SAID_CHARS]}): {self._said(answer)}",
                remedy="if every reply is like this, the base URL is wrong: it must be the one in "
                "front of /chat/completions (most often it ends in /v1)",
            ) from error
        if reply.finish_reason:
            self._tell_ends.add(endpoint)
        elif reply.is_empty or endpoint in self._tell_ends:
            raise ReplyCut(f"{where} with a reply that has no finish reason: it was cut off")
        return replace(reply, finish_reason=reply.finish_reason or "stop")

    async def _post(self, endpoint: str, body: dict[str, Any]) -> httpx.Response:
        try:
            return await self._http.post(endpoint + PATH, json=body)
        except _NOT_REACHED as error:
            text = f"{endpoint}: {type(error).__name__} {error}"
            raise EndpointUnreachable(text, None) from error
        except httpx.PoolTimeout as error:
            raise EndpointBusy(f"{endpoint}: {type(error).__name__} {error}", None) from error
        except httpx.TransportError as error:
            raise EndpointFailing(f"{endpoint}: {type(error).__name__} {error}") from error
        except httpx.DecodingError as error:
            raise MalformedReply(f"endpoint {endpoint}: {error}") from error

    def _failure(self, endpoint: str, answer: httpx.Response, request: RefusedRequest) -> Exception:
        status = answer.status_code
        where = f"endpoint {endpoint}, model {self._model}: HTTP {status} {self._said(answer)}"
        return self._refusal(where, status, self._without_key(answer), request, answer)

    def _refusal(
        self, where: str, status: int, body: object, request: RefusedRequest, answer: httpx.Response
    ) -> Exception:
        words = chat_refusal.words_of(body)
        match chat_refusal.judge(status, body, request):
            case EndpointRefusalKind.FULL:
                return PromptNotTaken(where, words)
            case EndpointRefusalKind.FILTERED:
                return ContentFiltered(where, words)
            case EndpointRefusalKind.CLOSED:
                return EndpointRefusing(where, remedy=_remedy(status, answer))
            case EndpointRefusalKind.STRAY:
                of_request = status in chat_refusal.OF_THE_REQUEST
                return StrayRefusal(where, words, of_request=of_request)
            case EndpointRefusalKind.BUSY:
                return EndpointBusy(where, _retry_after_s(answer))
            case EndpointRefusalKind.FAILING:
                return EndpointFailing(where)
            case EndpointRefusalKind.REQUEST:
                remedy = _of_fields(request.sampling, chat_refusal.fields_in(answer.text))
                if status in chat_refusal.OF_THE_REQUEST:
                    return RequestNotTaken(where, words, remedy=remedy)
                return PolicyRefused(where, remedy=remedy)

    def _said(self, answer: httpx.Response) -> str:
        return " ".join(self._without_key(answer).split())[:SAID_CHARS]

    def _without_key(self, answer: httpx.Response) -> str:
        return answer.text.replace(self._key, "***") if self._key else answer.text


def sampling_fields(sampling: SamplingConfig) -> dict[str, Any]:
    """The fields that are set, by the names of the section: OpenAI's, and for what its API lacks
    those that vLLM and SGLang take beside them."""
    fields = sampling.given
    return fields | ({"stop": list(sampling.stops)} if "stop" in fields else {})


def _of_fields(sent: Sequence[str], refused: frozenset[str]) -> str:
    """`sent`: of [policy.sampling]; `refused`: words that may be names of fields."""
    fields = [f"policy.sampling.{name}" for name in sent]
    if named := [f"policy.sampling.{name}" for name in sent if name in refused]:
        return f"leave out {' and '.join(named)}: the endpoint does not take it"
    asked = ", ".join(["policy.temperature", *fields])
    return f"does the endpoint take these {asked} and max_new_tokens?"


def _without(body: Mapping[str, Any], left_out: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in left_out}


def _remedy(status: int, answer: httpx.Response) -> str:
    """For what the endpoint refuses to all requests alike."""
    if 300 <= status < 400:
        target = str(answer.request.url.join(answer.headers.get("location", "")))
        return f"the address redirects to {target}: write {target.removesuffix(PATH)} in its place"
    return {
        401: "put the endpoint's key into MAINSPRING_POLICY_API_KEY of the rollout workers (and of "
        "the nodes, where rollout.turns_per_activity is above 1)",
        403: "may this key (MAINSPRING_POLICY_API_KEY) use the model? Is a proxy in between?",
        404: "is policy.model the endpoint's name for it, and does the base URL end as the "
        "endpoint's documentation shows (most often in /v1)?",
    }.get(status, "the account's credits or quota are used up: raise them")


def _retry_after_s(answer: httpx.Response) -> float | None:
    """Seconds to wait by the Retry-After header, which has seconds or a date."""
    value = answer.headers.get("retry-after", "")
    try:
        wait_s = float(value)
    except ValueError:
        try:
            # Both by the endpoint's clock, where it tells its time: this machine's may be off.
            date = answer.headers.get("date")
            now = parsedate_to_datetime(date) if date else datetime.now(UTC)
            wait_s = (parsedate_to_datetime(value) - now).total_seconds()
        except (ValueError, TypeError):
            return None
    return min(max(0.0, wait_s), MAX_RETRY_AFTER_S)
