"""The gateway's routes: which dialect answers where, and who may ask.

Invariants: every answer, also to an unknown route, is in the form that clients of that route read;
the key is looked at before the body; a connection that a node has bound to a session takes no other
key. Every model route exists below `/s/KEY` as well, for clients whose only setting is a URL.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route

from gateway.bodies import Bodies
from gateway.channel import Channel
from gateway.dialects import gemini, messages, openai
from gateway.dialects.protocol import DialectWire, Envelope, Problem, ProblemKind
from gateway.endpoint import Endpoint, Handler
from gateway.exchange import KEEP_ALIVE_S, Exchange
from gateway.keys import key_of
from gateway.protocol import Answers, Session
from gateway.refusals import problem_of, refuse, unknown_key
from gateway.sessions.session_desk import SessionDesk
from gateway.sessions.sessions import SessionRoutes
from gateway.wires import CHAT, GEMINI, GEMINI_METHODS, MESSAGES, RESPONSES, wire_of


def make_app(
    answers: Answers, desk: SessionDesk | None = None, *, keep_alive_s: float = KEEP_ALIVE_S
) -> Starlette:
    """`desk`: where agents outside take sessions; None: they do not."""
    gateway = _Gateway(answers, keep_alive_s)
    endpoints = {
        "": gateway.greet,
        "/": gateway.greet,
        "/v1/chat/completions": gateway.asking(CHAT),
        "/v1/responses": gateway.asking(RESPONSES),
        "/v1/messages": gateway.asking(MESSAGES),
        "/v1/messages/count_tokens": gateway.counting,
        "/v1/models": gateway.models,
        "/v1beta/models": gateway.models,
        "/v1/models/{model:path}": gateway.model,
        "/v1beta/models/{model:path}": gateway.model,
        "/{rest:path}": gateway.unknown,
    }
    routes = [
        Route(prefix + path, Endpoint(handler))
        for prefix in ("/s/{key}", "")
        for path, handler in endpoints.items()
        if prefix + path
    ]
    if desk is not None:
        sessions = SessionRoutes(desk, gateway.unknown).endpoints()
        routes = [
            *(Route(path, Endpoint(endpoint)) for path, endpoint in sessions.items()),
            *routes,
        ]
    return Starlette(routes=routes)


class _Gateway:
    def __init__(self, answers: Answers, keep_alive_s: float) -> None:
        self._answers = answers
        self._exchange = Exchange(answers, keep_alive_s=keep_alive_s)
        self._bodies = Bodies()

    async def greet(self, channel: Channel) -> None:
        """Claude Code asks with HEAD whether a server is there."""
        await channel.discard_body()
        await channel.respond(200, {"service": "mainspring gateway"})

    async def unknown(self, channel: Channel) -> None:
        await channel.discard_body()
        message = "this gateway has no such route: see docs/gateway.md for those that it has"
        await refuse(channel, _wire_of(channel), Problem(ProblemKind.UNKNOWN_ROUTE, message))

    def asking(self, wire: DialectWire) -> Handler:
        async def ask(channel: Channel) -> None:
            await self._ask(channel, wire, Envelope(headers=channel.headers))

        return ask

    async def counting(self, channel: Channel) -> None:
        envelope = Envelope(headers=channel.headers)
        await self._count(channel, MESSAGES, envelope, messages.token_count)

    async def models(self, channel: Channel) -> None:
        wire = _wire_of(channel)
        if session := await self._admitted(channel, wire, "GET"):
            listed = {MESSAGES: messages.models, GEMINI: gemini.models}
            await channel.respond(200, listed.get(wire, openai.models)(session.max_context))

    async def model(self, channel: Channel) -> None:
        """One model, or Gemini's `models/NAME:METHOD`."""
        name, _, method = channel.scope["path_params"]["model"].rpartition(":")
        if method in GEMINI_METHODS:
            streams = method == "streamGenerateContent"
            envelope = Envelope(headers=channel.headers, model=name, streams=streams)
            if method == "countTokens":
                await self._count(channel, GEMINI, envelope, gemini.token_count)
            else:
                is_sse = b"alt=sse" in channel.scope["query_string"]
                await self._ask(channel, GEMINI, envelope, is_array=streams and not is_sse)
            return
        wire = _wire_of(channel)
        if session := await self._admitted(channel, wire, "GET"):
            forms = {MESSAGES: messages.model, GEMINI: gemini.model}
            form = forms.get(wire, openai.model)
            name = channel.scope["path_params"]["model"]
            await channel.respond(200, form(name, session.max_context))

    async def _ask(
        self, channel: Channel, wire: DialectWire, envelope: Envelope, *, is_array: bool = False
    ) -> None:
        if not (session := await self._admitted(channel, wire, "POST")):
            return
        parsed = await self._bodies.read(channel, session, wire, envelope)
        if isinstance(parsed, Problem):
            await refuse(channel, wire, parsed)
        else:
            await self._exchange.answer(channel, session, wire, parsed, is_array=is_array)

    async def _count(
        self,
        channel: Channel,
        wire: DialectWire,
        envelope: Envelope,
        form: Callable[[int], dict[str, Any]],
    ) -> None:
        if not (session := await self._admitted(channel, wire, "POST")):
            return
        result = await self._bodies.read(channel, session, wire, envelope)
        if not isinstance(result, Problem):
            counting = self._answers.count_tokens(session, result.request)
            result = await self._exchange.call(channel, session, counting)
        if isinstance(result, Problem):
            await refuse(channel, wire, result)
        elif result is not None:
            await channel.respond(200, form(result))

    async def _admitted(self, channel: Channel, wire: DialectWire, method: str) -> Session | None:
        """Whose request it is. None: the client was told why not, or is gone."""
        if channel.method != method:
            await channel.discard_body()
            message = f"this route is for {method}"
            await refuse(channel, wire, Problem(ProblemKind.WRONG_METHOD, message))
            return None
        if key := key_of(channel.scope):
            session = await _guarded(self._answers.session(key))
        else:
            session = None
        if isinstance(session, Session):
            return session
        await channel.discard_body()
        message = "no key was sent" if not key else "this key belongs to no session that is open"
        await refuse(channel, wire, session or unknown_key(message))
        return None


async def _guarded(work: Awaitable[Session | None]) -> Session | Problem | None:
    try:
        return await work
    except Exception as error:
        return problem_of(error)


def _wire_of(channel: Channel) -> DialectWire:
    return wire_of(channel.scope["path"], channel.headers)
