"""Messages to clients and operators when a request is not answered.

Invariants: a client gets its own dialect's error without a host, a path or a traceback; the log
gets the rollout, the cause and the remedy, and from one session no more than MAX_LOGGED of them, as
a program that loops would fill it. Imported by the gateway's exchanges and application.
"""

import traceback
from collections import OrderedDict

import structlog

from gateway.channel import BodyTooLarge, BodyTooSlow, Channel
from gateway.dialects.json_value import BadRequest
from gateway.dialects.protocol import DialectWire, Problem, ProblemKind
from gateway.protocol import ProgramPromptTooLong, Session, SessionOver, UnrenderableRequest
from mainspring.errors import MainspringError, ServiceError

log = structlog.get_logger()

MAX_LOGGED = 50
"""Lines logged of one session in one process."""
_MAX_SESSIONS = 4096
"""Whose logged problems are counted; the oldest is forgotten first."""
_BROKEN_HTTP = {
    BodyTooLarge: Problem(ProblemKind.BODY_TOO_LARGE, "the request body is larger than 32 MiB"),
    BodyTooSlow: Problem(ProblemKind.BODY_TOO_SLOW, "the request body did not arrive in time"),
}
_REMEDIES: dict[type[Exception], str] = {
    BadRequest: "correct what the program sends: docs/gateway.md tells what each API takes",
    BodyTooLarge: "let the program compact its history sooner",
    BodyTooSlow: "look at what holds the program up",
    SessionOver: "none is needed: the rollout has ended, or another life of its program has begun",
    ProgramPromptTooLong: "raise policy.max_context, or let the program compact its history sooner",
    UnrenderableRequest: "correct what the program sends, or choose a model whose template takes "
    "it",
}
"""Where the error itself has none."""
_INTERNAL = Problem(ProblemKind.INTERNAL, "the gateway failed at this request: ask again")
_num_logged: OrderedDict[Session | None, int] = OrderedDict()


async def refuse(channel: Channel, wire: DialectWire, problem: Problem) -> None:
    status, body = wire.error(problem)
    headers = []
    if problem.kind is ProblemKind.SESSION_OVER:
        headers.append(("x-should-retry", "false"))
    elif problem.kind is ProblemKind.UNAVAILABLE:
        headers.append(("retry-after", "2"))
    await channel.respond(status, body, headers)


def problem_of(error: Exception, session: Session | None = None) -> Problem:
    """Problem that the client is told; the rest is logged."""
    if problem := _BROKEN_HTTP.get(type(error)):
        remedy = _REMEDIES[type(error)]
        _note(session, "warning", "refused a request", cause=problem.message, remedy=remedy)
        return problem
    if not isinstance(error, MainspringError):
        # As text: the renderers of structlog take a second to make a traceback beautiful.
        trace = "".join(traceback.format_exception(error))
        _note(session, "error", "a request failed", cause=repr(error), traceback=trace)
        return _INTERNAL
    remedy = error.remedy or _REMEDIES.get(type(error), "")
    _note(session, "warning", "refused a request", cause=error.message, remedy=remedy)
    if isinstance(error, BadRequest):
        return Problem(ProblemKind.BAD_REQUEST, error.message, error.field)
    if isinstance(error, SessionOver):
        return Problem(ProblemKind.SESSION_OVER, "this session is over: no request is answered")
    if isinstance(error, ProgramPromptTooLong):
        kind = ProblemKind.PROMPT_TOO_LONG
        return Problem(kind, error.message, max_context=error.max_tokens)
    if isinstance(error, UnrenderableRequest):
        return Problem(ProblemKind.BAD_REQUEST, error.message)
    if isinstance(error, ServiceError):
        message = "a service behind the model is down for the moment: ask again"
        return Problem(ProblemKind.UNAVAILABLE, message)
    return _INTERNAL


def unknown_key(message: str) -> Problem:
    """Problem of a request whose key opens nothing."""
    remedy = "none for a program whose rollout has ended; else look at who reaches this gateway"
    _note(None, "warning", "refused a key", cause=message, remedy=remedy)
    return Problem(ProblemKind.UNKNOWN_KEY, message)


def _note(session: Session | None, level: str, event: str, **fields: object) -> None:
    num_logged = _num_logged.pop(session, 0) + 1
    _num_logged[session] = num_logged
    if len(_num_logged) > _MAX_SESSIONS:
        _num_logged.popitem(last=False)
    if num_logged > MAX_LOGGED:
        return
    about = {"rollout": session.rollout, "epoch": session.epoch} if session else {}
    if num_logged == MAX_LOGGED:
        fields["remedy"] = "look at what this program sends: its further problems are not logged"
    getattr(log, level)(event, **about, **fields)
