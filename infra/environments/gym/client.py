"""Requests to a service in one of AgentGym's forms, and what its answers hold.

Invariants: an answer is read whole or refused: a number that is none, a field that is missing, or
an answer for another world is EnvironmentBroken, which names the service, the request and the
remedy; it is never taken for 0. Where another try can help (no answer, a closed connection, HTTP
5xx, a world that the service does not know) it is WorldLost. A request is sent once, on its own
connection: what became of one without an answer is not known, and no answer is taken for that to
another request. Used by the worlds beside this file and by the task source.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from infra.sandbox.protocol import SandboxRefused
from mainspring.environments.families import Opening, ServiceForm
from mainspring.environments.protocol import EnvironmentBroken, WorldLost
from mainspring.words.causes import shortened
from mainspring.words.plain_text import plain

CONNECT_S = 10.0
MAX_BYTES = 16 << 20
"""Size of an answer; an observation of more is none that a policy reads."""
MAX_NUMBER = 1e15
"""Size of a reward from which its square, summed up over a batch, may overflow in training."""
SHOWN_CHARS = 200
_LOG = "look at the service's log"


class NoAnswer(WorldLost):
    """The service does not answer: it is down, or hangs. Only where a step was under way its world
    is lost with that."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Answer to a reset or a step."""

    observation: str
    number: float
    """The number that scores, as the service has it; 0 at a reset that has none."""
    is_over: bool = False
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Tables of what the number is made of, where the service tells."""


def http_client() -> httpx.AsyncClient:
    """For all services of one node."""
    return httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=CONNECT_S),
        # A connection for each request: what a service sends beyond an answer would be read as the
        # answer to the next request on it, perhaps another rollout's.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        trust_env=False,  # services are inside the cluster: never through a proxy
    )


class GymClient:
    """One service at one address."""

    def __init__(self, http: httpx.AsyncClient, name: str, url: str, form: ServiceForm) -> None:
        self._http = http
        self._name = name
        self._form = form
        self._has_stepped = False
        self.url = url

    async def create(self, number: int, timeout_s: float) -> int | str:
        """The id of a new world."""
        body = {"id": number} if self._form.creates_with_number else {}
        answer = await self._post("/create", body, timeout_s)
        ident = answer
        if not self._form.bare_id:
            ident = self._field(self._object(answer, "/create"), self._form.id_field, "/create")
        if isinstance(ident, bool) or not isinstance(ident, int | str):
            raise self._wrong("/create", f"gave the id {_shown(ident)}")
        return ident

    async def reset(self, ident: int | str, number: int, timeout_s: float) -> Answered:
        """Begin the task of this number. Raises SandboxRefused for one that the service refuses."""
        form = self._form
        body = {form.id_field: ident, form.number_field: number, **form.reset}
        answer = await self._post("/reset", body, timeout_s)
        if isinstance(answer, Mapping) and "error" in answer and not self._has_opening(answer):
            raise SandboxRefused(
                f"{self._where('/reset')} refuses the task's number {number}: "
                f"{_shown(answer['error'])}",
                remedy=f"give a number that the service has in the task's data, or {_LOG}",
            )
        if form.opening is Opening.TEXT:
            return Answered(self._text(answer, "/reset", "its answer"), 0.0)
        if form.opening is Opening.FIRST:
            if not isinstance(answer, list) or not answer:
                raise self._wrong("/reset", f"gave {_shown(answer)}, expected a list")
            return Answered(self._text(answer[0], "/reset", "its first entry"), 0.0)
        fields = self._object(answer, "/reset")
        self._check_id(fields, ident, "/reset")
        texts = [
            self._text(self._field(fields, name, "/reset"), "/reset", name)
            for name in form.opening_fields
        ]
        is_over = fields.get("done", False)
        if not isinstance(is_over, bool):
            raise self._wrong("/reset", f"gave done = {_shown(is_over)}, expected true or false")
        if is_over and not form.leaves:
            raise SandboxRefused(
                f"{self._where('/reset')} gave a world of the task's number {number} that has "
                "ended before its first step",
                remedy=f"give a number of a game that can be played in the task's data, or {_LOG}",
            )
        has_number = form.score_field in fields
        return Answered(
            self._with_actions("\n".join(texts), fields, "/reset"),
            self._number(fields, "/reset") if has_number else 0.0,
            is_over,
        )

    async def step(self, ident: int | str, action: str, timeout_s: float) -> Answered:
        sent = action.encode(errors="replace").decode()  # half a pair of surrogates is no JSON
        answer = await self._post("/step", {self._form.id_field: ident, "action": sent}, timeout_s)
        fields = self._object(answer, "/step")
        if "error" in fields and self._form.observation_field not in fields:
            raise WorldLost(
                f"{self._where('/step')} has lost its world {ident}: {_shown(fields['error'])}",
                remedy=_LOG,
            )
        self._check_id(fields, ident, "/step")
        name = self._form.observation_field
        text = self._text(self._field(fields, name, "/step"), "/step", name)
        is_over = self._field(fields, "done", "/step")
        if not isinstance(is_over, bool):
            raise self._wrong("/step", f"gave done = {_shown(is_over)}, expected true or false")
        seen = Answered(
            self._with_actions(text, fields, "/step"),
            self._number(fields, "/step"),
            is_over,
            self._parts(fields),
        )
        self._has_stepped = True
        return seen

    async def leave(self, ident: int | str, timeout_s: float) -> Answered:
        """The score of a world that its agent leaves as it is. Raises WorldLost."""
        answer = await self._post("/leave", {self._form.id_field: ident}, timeout_s)
        fields = self._object(answer, "/leave")
        if "error" in fields:
            raise WorldLost(
                f"{self._where('/leave')} has lost its world {ident}: {_shown(fields['error'])}",
                remedy=_LOG,
            )
        self._check_id(fields, ident, "/leave")
        return Answered("", self._number(fields, "/leave"), True, self._parts(fields))

    async def close(self, ident: int | str, timeout_s: float) -> None:
        """Raises WorldLost when it does not answer."""
        await self._post("/close", {self._form.id_field: ident}, timeout_s)

    async def is_there(self, timeout_s: float) -> bool:
        """Whether it answers at all."""
        try:
            async with asyncio.timeout(timeout_s):
                async with self._http.stream("GET", self.url + "/"):
                    pass  # its body may never end
        except (TimeoutError, httpx.HTTPError):
            return False
        return True

    async def _post(self, route: str, body: Mapping[str, Any], timeout_s: float) -> Any:
        where = self._where(route)
        try:
            async with asyncio.timeout(timeout_s):
                status, content = await self._exchange(route, body)
        except TimeoutError:
            raise NoAnswer(
                f"{where} did not answer within {timeout_s:g} s",
                remedy=f"{_LOG}, or raise environments.{self._name}.request_timeout_s",
            ) from None
        except httpx.HTTPError as error:
            cause = str(error) or type(error).__name__
            raise NoAnswer(f"{where}: no answer: {cause}", remedy=f"start it, or {_LOG}") from error
        said = _shown(content.decode(errors="replace"))
        # What it refuses after it took others is this action: the policy's doing ends no campaign.
        is_action = route == "/step" and self._has_stepped and status >= 400
        if is_action or status >= 500 or status in (404, 408, 409, 410, 429):
            raise WorldLost(f"{where} answered HTTP {status}: {said}", remedy=_LOG)
        if not 200 <= status < 300:
            raise self._wrong(route, f"answered HTTP {status}: {said}")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise self._wrong(route, f"answered no JSON: {said}") from None

    async def _exchange(self, route: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        content = bytearray()
        async with self._http.stream("POST", self.url + route, json=body) as answer:
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > MAX_BYTES:
                    raise self._wrong(route, f"answered more than {MAX_BYTES >> 20} MB")
        return answer.status_code, bytes(content)

    def _has_opening(self, answer: Mapping[str, Any]) -> bool:
        return any(name in answer for name in self._form.opening_fields)

    def _with_actions(self, text: str, fields: Mapping[str, Any], route: str) -> str:
        name = self._form.actions_field
        if not name:
            return text
        actions = self._field(fields, name, route)
        if not isinstance(actions, list):
            raise self._wrong(route, f"gave {name} = {_shown(actions)}, expected a list")
        return f"{text}\nAVAILABLE ACTIONS: {','.join(map(str, actions))}"

    def _number(self, fields: Mapping[str, Any], route: str) -> float:
        name = self._form.score_field
        number = self._field(fields, name, route)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise self._wrong(route, f"gave {name} = {_shown(number)}, expected a number")
        if not abs(number) <= MAX_NUMBER:  # NaN is not, either
            raise self._wrong(route, f"gave {name} = {_shown(number)}, which is no reward")
        return float(number)

    def _parts(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        parts = fields.get("parts") if self._form.leaves else None
        return parts if isinstance(parts, dict) else {}

    def _check_id(self, fields: Mapping[str, Any], ident: int | str, route: str) -> None:
        got = fields.get(self._form.id_field, ident)
        if got != ident:
            raise self._wrong(route, f"was asked for world {ident} and answered for {_shown(got)}")

    def _object(self, answer: Any, route: str) -> Mapping[str, Any]:
        if not isinstance(answer, dict):
            raise self._wrong(route, f"gave {_shown(answer)}, expected an object")
        if route == "/create" and "error" in answer:
            raise WorldLost(f"{self._where(route)}: {_shown(answer['error'])}", remedy=_LOG)
        return answer

    def _field(self, fields: Mapping[str, Any], name: str, route: str) -> Any:
        if name not in fields:
            there = ", ".join(map(str, fields)) or "nothing"
            raise self._wrong(route, f"gave no {name}; it has {there}")
        return fields[name]

    def _text(self, value: Any, route: str, name: str) -> str:
        if not isinstance(value, str):
            raise self._wrong(route, f"gave {name} = {_shown(value)}, expected text")
        return value

    def _where(self, route: str) -> str:
        return f"environment {self._name}: POST {self.url}{route}"

    def _wrong(self, route: str, problem: str) -> EnvironmentBroken:
        return EnvironmentBroken(
            f"{self._where(route)} {problem}",
            remedy=f"correct the service, or the form of its section [environments.{self._name}] "
            "(family and the fields beside it), then start the campaign again",
        )


def _shown(value: Any) -> str:
    return shortened(" ".join(plain(str(value)).split()), SHOWN_CHARS) or repr(value)
