"""A client of OpenAI-compatible chat completions: messages in, one reply out.

For evaluations: such endpoints give neither tokens nor weight versions, so nothing of theirs can be
trained on. One call asks each endpoint at most once, and none after a reply, whatever its shape:
replies are paid for. Waiting and asking again is the caller's, who does it durably and with a
bound. Invariant: the API key stands in no error. Used by `text_policy` and `program_text_policy`,
and to check an endpoint before a run.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from pydantic import SecretStr

from infra.policy import chat_refusal, chat_reply
from infra.policy.balancer import Balancer
from infra.policy.chat_reply import ChatReply
from infra.policy.protocol import ContextFull, MalformedReply
from infra.policy.wire import CONNECT_TIMEOUT_S
from mainspring.config.policy import PolicyConfig
from mainspring.errors import EngineBusy, EngineError, EngineFailing
from mainspring.status import FaultKind

MAX_RETRY_AFTER_S = 3600.0
"""Longer waits that an endpoint asks for are cut to this."""
SAID_CHARS = 200
"""Characters kept of an endpoint's error text."""
_OF_THE_REQUEST = (400, 413, 422)
"""Statuses of what is wrong with one request: another one may be answered."""
_NOT_REACHED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)


class PolicyRefused(EngineError):
    """The endpoint refuses the request for good."""


class RequestNotTaken(PolicyRefused):
    """It refuses what this request holds."""

    def __init__(self, message: str, said: str, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy)
        self.said = said
        """The endpoint's own words."""


class PromptNotTaken(ContextFull):
    """It tells that the prompt is too long, or leaves no room for `max_tokens`."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(message, remedy="is policy.max_new_tokens below the model's context?")
        self.said = said


class EndpointFailing(EngineFailing):
    """It took the request and gave no reply: HTTP 500, a timeout, a connection closed. Asked again,
    it may answer or never do so, and a reply that was lost was paid for."""


class EndpointBusy(EngineBusy):
    """No endpoint answered now: ask again, after `retry_after_s` where one said so."""

    def __init__(self, message: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EndpointUnreachable(EndpointBusy):
    """No connection: nothing listens there, or the network is down."""

    fault = FaultKind.ENGINE_UNREACHABLE


class OpenAIClient:
    """One per process and campaign; safe for concurrent calls on one event loop."""

    def __init__(self, policy: PolicyConfig, api_key: SecretStr | None = None) -> None:
        self._model = policy.model
        self._key = api_key.get_secret_value() if api_key else ""
        self._limit_name = "max_tokens"
        self._balancer = Balancer(policy.engines)
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
    ) -> ChatReply:
        """The reply of the first endpoint that gives one; `sticky` prefers the one that has the
        conversation cached. Raises EndpointBusy, EndpointFailing, MalformedReply, PromptNotTaken,
        PolicyRefused."""
        body: dict[str, Any] = {"model": self._model, "messages": list(messages)}
        body["temperature"] = temperature
        if tools:
            body["tools"] = list(tools)
        if seed is not None:
            body["seed"] = seed
        failures: list[EndpointBusy | EndpointFailing] = []
        for endpoint in self._balancer.candidates(sticky):
            with self._balancer.sending(endpoint, sticky):
                try:
                    reply = await self._ask(endpoint, body, max_tokens)
                except (EndpointBusy, EndpointFailing) as failure:  # no reply was given
                    self._balancer.did_not_answer(endpoint)
                    failures.append(failure)
                    continue
            self._balancer.answered(endpoint)
            return reply
        said = "; ".join(failure.message for failure in failures)
        waits = [each.retry_after_s for each in failures if each.retry_after_s is not None]
        if all(isinstance(failure, EndpointFailing) for failure in failures):
            raise _failing(said)
        if all(isinstance(failure, EndpointUnreachable) for failure in failures):
            raise EndpointUnreachable(said, None)
        raise EndpointBusy(said, min(waits, default=None))

    async def check(self, policy: PolicyConfig) -> None:
        """Ask every endpoint for one reply, before hundreds of rollouts do. Raises EngineError."""
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": "Reply with: ok"}],
            "temperature": policy.temperature,
        }
        for endpoint in policy.engines:
            try:
                await self._ask(endpoint, body, policy.max_new_tokens)
            except EndpointBusy as busy:
                if busy.retry_after_s is not None:
                    continue  # it is there, and will have time
                raise EngineError(
                    f"no reply from {busy.message}", remedy="is it up, and is --base-url right?"
                ) from None

    async def _ask(self, endpoint: str, body: dict[str, Any], max_tokens: int) -> ChatReply:
        started = time.monotonic()
        answer = await self._post(endpoint, body | {self._limit_name: max_tokens})
        if answer.status_code == 400 and "max_completion_tokens" in answer.text:
            # OpenAI's newer models know the limit by another name, other servers by the old one.
            # An error may repeat words of the prompt: only a reply shows that the name is right.
            other = "max_completion_tokens"
            answer = await self._post(endpoint, body | {other: max_tokens})
            if answer.status_code == 200:
                self._limit_name = other
        if answer.status_code != 200:
            raise self._failure(endpoint, answer)
        reply = self._read(endpoint, answer)
        return replace(reply, latency_s=time.monotonic() - started)

    def _read(self, endpoint: str, answer: httpx.Response) -> ChatReply:
        """Raises MalformedReply: a proxy's page, a reply cut on its way, or no such API."""
        try:
            return chat_reply.read(answer.json())
        except chat_reply.OTHER_SHAPE as error:
            raise MalformedReply(
                f"endpoint {endpoint}, model {self._model}: HTTP 200 that is not a chat completion "
                f"({type(error).__name__}: {str(error)[:SAID_CHARS]}): {self._said(answer)}",
                remedy="if every reply is like this, the base URL is wrong: it must be the one in "
                "front of /chat/completions (most often it ends in /v1)",
            ) from error

    async def _post(self, endpoint: str, body: dict[str, Any]) -> httpx.Response:
        try:
            return await self._http.post(f"{endpoint}/chat/completions", json=body)
        except _NOT_REACHED as error:
            text = f"{endpoint}: {type(error).__name__} {error}"
            raise EndpointUnreachable(text, None) from error
        except httpx.PoolTimeout as error:
            raise EndpointBusy(f"{endpoint}: {type(error).__name__} {error}", None) from error
        except httpx.TransportError as error:
            raise _failing(f"{endpoint}: {type(error).__name__} {error}") from error
        except httpx.DecodingError as error:
            raise MalformedReply(f"endpoint {endpoint}: {error}") from error

    def _failure(self, endpoint: str, answer: httpx.Response) -> Exception:
        status, said = answer.status_code, self._said(answer)
        words = chat_refusal.words_of(self._without_key(answer))
        where = f"endpoint {endpoint}, model {self._model}: HTTP {status} {said}"
        if status == 429 and "insufficient_quota" in said:
            return PolicyRefused(where, remedy="the account's quota is used up: raise it")
        if status == 500:
            return _failing(where)
        if status in (408, 409, 429) or status > 500:
            return EndpointBusy(where, _retry_after_s(answer))
        if status in _OF_THE_REQUEST and chat_refusal.is_context_full(said):
            return PromptNotTaken(where, words)
        remedy = {
            401: "put the endpoint's key into MAINSPRING_POLICY_API_KEY of the rollout workers "
            "(and of the nodes, where rollout.turns_per_activity is above 1)",
            403: "may this key (MAINSPRING_POLICY_API_KEY) use the model?",
            404: "is policy.model the endpoint's name for it, and does the base URL end as the "
            "endpoint's documentation shows (most often in /v1)?",
        }.get(status, "does the endpoint take these policy.temperature and max_new_tokens?")
        if status in _OF_THE_REQUEST:
            return RequestNotTaken(where, words, remedy=remedy)
        return PolicyRefused(where, remedy=remedy)

    def _said(self, answer: httpx.Response) -> str:
        return " ".join(self._without_key(answer).split())[:SAID_CHARS]

    def _without_key(self, answer: httpx.Response) -> str:
        return answer.text.replace(self._key, "***") if self._key else answer.text


def _failing(message: str) -> EndpointFailing:
    return EndpointFailing(message, remedy="look at the endpoint's log; is it overloaded?")


def _retry_after_s(answer: httpx.Response) -> float | None:
    """Seconds to wait by the Retry-After header, which has seconds or a date."""
    value = answer.headers.get("retry-after", "")
    try:
        wait_s = float(value)
    except ValueError:
        try:
            wait_s = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return min(max(0.0, wait_s), MAX_RETRY_AFTER_S)
