"""A client of OpenAI-compatible chat completions: messages in, one reply's text out.

For evaluations: such endpoints give neither tokens nor weight versions, so nothing of theirs can be
trained on. One call asks each endpoint at most once, and none after a reply, whatever its shape:
replies are paid for. Waiting and asking again is the caller's, who does it durably and with a
bound. Invariant: the API key stands in no error. Used by `text_policy`, and to check an endpoint
before a run.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from pydantic import SecretStr

from infra.policy.balancer import Balancer
from infra.policy.protocol import ContextFull, MalformedReply
from infra.policy.wire import CONNECT_TIMEOUT_S
from mainspring.agents.protocol import Message
from mainspring.config.policy import PolicyConfig
from mainspring.errors import EngineBusy, EngineError, EngineFailing
from mainspring.status import FaultKind

MAX_COUNT = 2**31 - 1
"""Of tokens, as the store keeps them."""
MAX_RETRY_AFTER_S = 3600.0
"""Longer waits that an endpoint asks for are cut to this."""
SAID_CHARS = 200
"""Characters kept of an endpoint's error text."""
_OTHER_SHAPE = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
_NOT_REACHED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)
_CONTEXT_FULL = re.compile(
    r"context.?(length|window|size)|(prompt|input) is too long|token count.*exceeds", re.IGNORECASE
)
"""In the message of a 400: OpenAI's code for it is not what the others send."""


class PolicyRefused(EngineError):
    """The endpoint refuses the request for good."""


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


@dataclass(frozen=True, slots=True)
class ChatReply:
    text: str
    finish_reason: str
    latency_s: float
    num_prompt_tokens: int | None
    """As the endpoint counts them; None when it does not report them."""
    num_completion_tokens: int | None


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
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, sticky: str
    ) -> ChatReply:
        """The reply of the first endpoint that gives one; `sticky` prefers the one that has the
        conversation cached. Raises EndpointBusy, EndpointFailing, MalformedReply, ContextFull,
        PolicyRefused."""
        body = {"model": self._model, "messages": list(messages), "temperature": temperature}
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
            self._limit_name = "max_completion_tokens"
            answer = await self._post(endpoint, body | {self._limit_name: max_tokens})
        if answer.status_code != 200:
            raise self._failure(endpoint, answer)
        reply = self._read(endpoint, answer)
        return replace(reply, latency_s=time.monotonic() - started)

    def _read(self, endpoint: str, answer: httpx.Response) -> ChatReply:
        """Raises MalformedReply: a proxy's page, a reply cut on its way, or no such API."""
        try:
            body: Any = answer.json()
            choice = body["choices"][0]
            ended, usage = choice.get("finish_reason"), body.get("usage")
            return ChatReply(
                text=_text(choice["message"].get("content")),
                finish_reason=ended if isinstance(ended, str) and ended.isprintable() else "stop",
                latency_s=0.0,
                num_prompt_tokens=_count(usage, "prompt_tokens"),
                num_completion_tokens=_count(usage, "completion_tokens"),
            )
        except _OTHER_SHAPE as error:
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
        where = f"endpoint {endpoint}, model {self._model}: HTTP {status} {said}"
        if status == 429 and "insufficient_quota" in said:
            return PolicyRefused(where, remedy="the account's quota is used up: raise it")
        if status == 500:
            return _failing(where)
        if status in (408, 409, 429) or status > 500:
            return EndpointBusy(where, _retry_after_s(answer))
        if status in (400, 413, 422) and _CONTEXT_FULL.search(said):
            return ContextFull(where, remedy="is policy.max_new_tokens below the model's context?")
        remedy = {
            401: "put the endpoint's key into MAINSPRING_POLICY_API_KEY of the rollout workers "
            "(and of the nodes, where rollout.turns_per_activity is above 1)",
            403: "may this key (MAINSPRING_POLICY_API_KEY) use the model?",
            404: "is policy.model the endpoint's name for it, and does the base URL end as the "
            "endpoint's documentation shows (most often in /v1)?",
        }.get(status, "does the endpoint take these policy.temperature and max_new_tokens?")
        return PolicyRefused(where, remedy=remedy)

    def _said(self, answer: httpx.Response) -> str:
        text = answer.text.replace(self._key, "***") if self._key else answer.text
        return " ".join(text.split())[:SAID_CHARS]


def _failing(message: str) -> EndpointFailing:
    return EndpointFailing(message, remedy="look at the endpoint's log; is it overloaded?")


def _text(content: object) -> str:
    """Of a message: its string, or the text among its parts. None: a model that only thought."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise TypeError(f"content is of type {type(content).__name__}")
    texts = [part["text"] for part in content if part.get("type", "text") == "text"]
    return "".join(texts)


def _count(usage: object, name: str) -> int | None:
    """A wrong count is none: the reply beside it was paid for and can be used."""
    count = usage.get(name) if isinstance(usage, dict) else None
    if not isinstance(count, int) or isinstance(count, bool):
        return None
    return count if 0 <= count <= MAX_COUNT else None


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
