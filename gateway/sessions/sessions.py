"""Routes for agents outside: take a session, look at it, hand in a result, give it back.

Invariants: a connection that a node has bound to a sandbox finds none of these routes; the key is
looked at before the body; an error is one object with kind, message and remedy, without a host or a
path of this machine; neither hidden tests nor a true fix are ever told. Imported by the gateway's
application.
"""

import asyncio
import hashlib
import math
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.channel import BodyTooLarge, BodyTooSlow, Channel, ClientGone
from gateway.dialects.json_value import BadRequest, JsonValue, decoded
from gateway.keys import BOUND, key_of
from gateway.refusals import problem_of, unknown_key
from gateway.sessions.session_desk import SessionClaim, SessionDesk, SessionRefused, Taken
from gateway.sessions.session_views import told_session, told_taken
from gateway.sessions.wrong_keys import WrongKeys
from infra.db.programs.session_ends import HandedIn
from infra.db.programs.sessions import SessionRecord
from mainspring.errors import ServiceError
from mainspring.ids import CampaignId
from mainspring.programs.session import MAX_NOTE_CHARS, MAX_PATCH_BYTES, SessionEnd
from mainspring.status import Verdict
from mainspring.tasks.criterion import HANDED_IN, GradeReport
from mainspring.tasks.strict_patch import UnusualPatch, checked
from mainspring.tasks.swe_task import SweTask

Handler = Callable[[Channel], Awaitable[None]]
UNAVAILABLE_S = 2
MAX_NAME_CHARS = 100
MAX_KINDS = 32
MAX_REWARD = 1e6
_TOKEN = re.compile(r"[\x21-\x7e]{1,200}")
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")
_FIELDS = ("patch", "reward", "error")
_HELP = "see docs/gateway.md"


class SessionRoutes:
    def __init__(self, desk: SessionDesk, unknown: Handler) -> None:
        self._desk = desk
        self._unknown = unknown
        self._wrong_keys = WrongKeys()
        self._large = asyncio.Lock()

    def endpoints(self) -> dict[str, Handler]:
        return {
            "/sessions": self._guarded({"POST": self._take}),
            "/sessions/{id}": self._guarded({"GET": self._show, "DELETE": self._release}),
            "/sessions/{id}/finish": self._guarded({"POST": self._finish}),
            "/sessions/{id}/heartbeat": self._guarded({"POST": self._heartbeat}),
        }

    def _guarded(self, methods: dict[str, Handler]) -> Handler:
        async def handle(channel: Channel) -> None:
            if BOUND in channel.scope:
                # A program in a sandbox is no agent outside, whatever key it sends.
                return await self._unknown(channel)
            try:
                if channel.method not in methods:
                    await channel.discard_body()
                    raise _refused(405, "wrong_method", f"this route is for {', '.join(methods)}")
                await methods[channel.method](channel)
            except ClientGone:
                raise
            except Exception as error:
                if channel.has_begun:
                    raise
                refusal = _told(error)
                wait_s = refusal.retry_after_s
                headers = [("retry-after", str(wait_s))] if wait_s else []
                await channel.respond(refusal.status, _error(refusal), headers)

        return handle

    async def _take(self, channel: Channel) -> None:
        key = await self._key(channel)
        campaign = await self._campaign(channel, key)
        token = channel.headers.get("idempotency-key")
        if token is None:
            token = secrets.token_hex(16)
        elif not _TOKEN.fullmatch(token):
            raise _refused(
                400, "bad_request", "Idempotency-Key is not 1 to 200 visible ASCII characters"
            )
        host = _host(channel)
        body = await self._body(channel)
        claim = SessionClaim(key, token, _name(body), _kinds(body))
        taken: Taken = await self._desk.take(campaign, claim)
        await channel.respond(200, told_taken(taken, host))

    async def _show(self, channel: Channel) -> None:
        await channel.respond(200, told_session(await self._session(channel)))

    async def _heartbeat(self, channel: Channel) -> None:
        session = await self._session(channel)
        await self._desk.heard(session)
        await channel.respond(200, told_session(session))

    async def _release(self, channel: Channel) -> None:
        session = await self._session(channel)
        released = HandedIn(SessionEnd.RELEASED, _digest("released"))
        await channel.respond(200, told_session(await self._desk.hand_in(session, released)))

    async def _finish(self, channel: Channel) -> None:
        session = await self._session(channel, discards=False)
        body = await self._body(channel)
        fields = [name for name in _FIELDS if body.member(name).is_there]
        if len(fields) != 1:
            had = " and ".join(fields) or "none"
            raise _refused(
                400, "bad_request", f"the body has {had}, expected one of {', '.join(_FIELDS)}"
            )
        makers = {"patch": self._patch, "reward": self._reward, "error": self._failure}
        handed_in = await makers[fields[0]](session, body.member(fields[0]).value)
        await channel.respond(200, told_session(await self._desk.hand_in(session, handed_in)))

    async def _patch(self, session: SessionRecord, value: object) -> HandedIn:
        if not isinstance(value, str):
            raise _refused(
                400, "bad_request", "patch is not text, expected a diff as git writes it"
            )
        patch = value.encode()
        if len(patch) > MAX_PATCH_BYTES:
            raise _refused(
                413,
                "too_large",
                f"the patch has {len(patch)} bytes, at most {MAX_PATCH_BYTES} are taken",
                remedy="leave files out that are no part of the fix",
            )
        if not isinstance(await self._desk.task_of(session), SweTask):
            raise _refused(
                400,
                "bad_request",
                f"task {session.task} has no repository that a patch could change",
                remedy="hand in a reward",
            )
        patch = await asyncio.to_thread(checked, patch)
        return HandedIn(SessionEnd.PATCH, _digest(f"patch {value}"), patch=patch)

    async def _reward(self, session: SessionRecord, value: object) -> HandedIn:
        profile = await self._desk.profile_of(session.campaign)
        if not profile.takes_rewards:
            raise _refused(
                403,
                "rewards_not_taken",
                f"{session.campaign} takes no rewards from agents: they would reward themselves",
                remedy="hand in a patch, or set agent.options.rewards = true in a new campaign",
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            value = math.nan
        if not abs(value) <= MAX_REWARD:
            raise _refused(
                400, "bad_request", f"reward is no number from {-MAX_REWARD:g} to {MAX_REWARD:g}"
            )
        reward = float(value)
        return HandedIn(
            SessionEnd.REWARD,
            _digest(f"reward {reward!r}"),
            verdict=Verdict.RESOLVED if reward >= 1.0 else Verdict.NOT_RESOLVED,
            report=GradeReport(judge=HANDED_IN, score=reward),
        )

    async def _failure(self, session: SessionRecord, value: object) -> HandedIn:
        if not isinstance(value, str):
            raise _refused(400, "bad_request", "error is not text")
        return HandedIn(SessionEnd.ERROR, _digest(f"error {value}"), note=value[:MAX_NOTE_CHARS])

    async def _key(self, channel: Channel) -> str:
        if key := key_of(channel.scope):
            address = (channel.scope.get("client") or ("", 0))[0]
            if wait_s := self._wrong_keys.blocked_s(address, key):
                await channel.discard_body()
                raise _refused(
                    429,
                    "wrong_keys",
                    "too many wrong keys came from this address",
                    retry_after_s=math.ceil(wait_s),
                )
            return key
        await channel.discard_body()
        raise _refused(
            401, "no_key", "no key was sent", remedy="send it as `Authorization: Bearer KEY`"
        )

    async def _campaign(self, channel: Channel, key: str) -> CampaignId:
        campaign = await self._desk.campaign_of(key)
        if campaign is None:
            await self._refuse_key(
                channel, "this is no campaign's key", "`mainspring campaign key NAME` makes one"
            )
        self._wrong_keys.was_right(key)
        assert campaign is not None
        return campaign

    async def _session(self, channel: Channel, *, discards: bool = True) -> SessionRecord:
        key = await self._key(channel)
        ident: str = channel.scope["path_params"]["id"]
        session = await self._desk.session_of(ident, key)
        if session is None:
            await self._refuse_key(
                channel,
                "this key belongs to no such session",
                "send the key that came with the session, to the session's own id",
            )
        self._wrong_keys.was_right(key)
        assert session is not None
        if discards:
            await channel.discard_body()
        return session

    async def _refuse_key(self, channel: Channel, message: str, remedy: str) -> None:
        self._wrong_keys.was_wrong((channel.scope.get("client") or ("", 0))[0])
        unknown_key(message)  # for the log
        await channel.discard_body()
        raise _refused(401, "unknown_key", message, remedy=remedy)

    async def _body(self, channel: Channel) -> JsonValue:
        data = await channel.read_body()
        if not data:
            return JsonValue({}, "")
        async with self._large:  # one at a time: a large one takes long
            return await asyncio.to_thread(decoded, data)


def _name(body: JsonValue) -> str:
    name = body.member("name").value
    if name is None:
        return ""
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise _refused(
            400, "bad_request", f"name is not text of at most {MAX_NAME_CHARS} printable characters"
        )
    return name


def _kinds(body: JsonValue) -> tuple[str, ...]:
    kinds = body.member("task_kinds").value
    if kinds is None:
        return ()
    if (
        not isinstance(kinds, list)
        or not 0 < len(kinds) <= MAX_KINDS
        or not all(isinstance(kind, str) for kind in kinds)
    ):
        raise _refused(400, "bad_request", f"task_kinds is no list of 1 to {MAX_KINDS} words")
    return tuple(kinds)


def _host(channel: Channel) -> str:
    """Where the agent reached this gateway, as it wrote it."""
    host = channel.headers.get("host", "")
    if not _HOST.fullmatch(host):
        raise _refused(400, "bad_request", "the request has no usable header Host")
    return f"{channel.scope.get('scheme', 'http')}://{host}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _told(error: Exception) -> SessionRefused:
    if isinstance(error, SessionRefused):
        return error
    if isinstance(error, BodyTooLarge):
        return _refused(413, "too_large", "the request body is larger than 32 MiB")
    if isinstance(error, BodyTooSlow):
        return _refused(408, "too_slow", "the request body did not arrive in time")
    if isinstance(error, BadRequest):
        return _refused(400, "bad_request", error.message)
    if isinstance(error, UnusualPatch):
        return _refused(400, "unusual_patch", error.message, remedy=error.remedy)
    problem_of(error)  # for the log
    if isinstance(error, ServiceError):
        return _refused(
            503,
            "unavailable",
            "a service behind this gateway is down for the moment",
            remedy="ask again, with the same Idempotency-Key",
            retry_after_s=UNAVAILABLE_S,
        )
    return _refused(500, "internal", "the gateway failed at this request", remedy="ask again")


def _refused(
    status: int, kind: str, message: str, *, remedy: str = _HELP, retry_after_s: int | None = None
) -> SessionRefused:
    return SessionRefused(status, kind, message, remedy=remedy, retry_after_s=retry_after_s)


def _error(refusal: SessionRefused) -> dict[str, Any]:
    return {"error": {"kind": refusal.kind, "message": refusal.message, "remedy": refusal.remedy}}
