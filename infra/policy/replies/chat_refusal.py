"""An endpoint's refusal of a request: its kind, and its words.

Pure. Each server has its own words, and new ones come each month, so a full context is found by a
rule: words about length where the endpoint had taken an earlier request of the same shape. What a
wording can also mean (rates, credits, parameters, pictures) is looked for first. Used by `openai`
and `text_policy`.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from infra.policy.replies.refusal_counts import number, numbers

SAID_CHARS = 1000
"""Kept of what it tells; a program is told that much."""
READ_CHARS = 20_000
"""Characters read of an error's body; a body may repeat the whole prompt."""
MAX_DEPTH = 6
"""Levels of an error's JSON that are read: gateways wrap the error of the server behind them."""
OF_THE_REQUEST = (400, 413, 422)
"""Statuses of what is wrong with one request: another one may be answered."""
_RUN_WIDE = (401, 402, 403, 404, 407)
_BUSY = (408, 409, 425, 429)
_STRAY = (424, 451, 499)


class EndpointRefusalKind(StrEnum):
    FULL = "full"
    """The prompt is too long for the model or the account, or leaves no room for a reply."""
    FILTERED = "filtered"
    """The endpoint's content filter takes no such prompt."""
    CLOSED = "closed"
    """It refuses whatever this key and address ask now: key, credits, model, a redirect."""
    STRAY = "stray"
    """It refused a request of a shape that it takes, and tells no reason that would last."""
    BUSY = "busy"
    """It has no room now."""
    FAILING = "failing"
    """It failed at the request."""
    REQUEST = "request"
    """It takes no such request."""


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """Facts about a request that was refused."""

    num_taken: int = 0
    """Requests of the same shape that it continues, and that the endpoint had answered."""
    max_context: int = 0
    """Most tokens of prompt and reply, as configured; 0: not known."""
    sampling: tuple[str, ...] = ()
    """Names of the fields of [policy.sampling] that it has."""


_RATE = re.compile(
    r"rate.?limit|limit.{0,30}\brate\b|per[ _-](min|minute|day|hour|second)\b|\b[tri]*[tr]p[mdhs]\b"
    r"|quota|credit|balance|billing|afford|concurren|too many (requests|connections)|throttl",
    re.IGNORECASE,
)
_REQUESTED = re.compile(r"\blimit:? *([\d,]+).{0,60}?\brequested:? *([\d,]+)", re.IGNORECASE)
_TOO_LARGE = re.compile(r"request (is )?too large|requested tokens? exceed", re.IGNORECASE)
_NO_QUOTA = re.compile(
    r"insufficient.?(quota|credit|balance|fund)|exceeded your current quota|out of credits"
    r"|credit balance is too low|billing.?(hard.?)?limit|\blimit: 0\b",
    re.IGNORECASE,
)
_FILTER = re.compile(
    r"content.{0,3}(filter|policy|management|moderation|violation|exists risk)|moderation"
    r"|safety (system|filter|setting|polic|reason)|blocked by|flagged|harmful|violat\w+ (of )?"
    r"(our|the|usage|content)|usage polic|responsible.?ai|guardrail|inappropriate|prohibited"
    r"|data.?inspection|sensitive (content|information|words?)|unsafe or sensitive",
    re.IGNORECASE,
)
_OUTPUT_ONLY = re.compile(
    r"maximum value for .?max_|(valid )?range of .?max_|supports at most \d+ completion"
    r"|maximum (allowed )?(number of )?(output|completion) tokens|maximum tokens you requested"
    r"|(?<!\+ [`'])max_(completion_|output_|new_)?tokens.{0,20}must be "
    r"(less|smaller|lower|between|at most|<=?)",
    re.IGNORECASE,
)
"""The reply's limit is beyond the model's, whatever the prompt."""
_SURE = re.compile(
    r"context.{0,2}(length|window|size|limit)|exceed\w*.{0,40}\bcontext"
    r"|context.{0,20}(exceed|overflow)"
    r"|\b(prompt|inputs?|messages?|conversation|query|text)( tokens?| is| are)* too (long|large)\b"
    r"|too many (input |prompt )?tokens|(prompt|input).{0,12}\btokens? count\b.{0,40}(exceed|limit)"
    r"|token count.{0,30}exceed|exceed\w* .{0,20}(model )?token limit"
    r"|(maximum|max)[ _-]?(prompt|input|model|sequence|seq|message)[ _-]?(length|len\b|tokens?)"
    r"|(prompt|input|sequence) length|length of (the )?(prompt|input|messages)"
    r"|(prompt|input tokens?|input prompt|inputs?) exceed|exceed\w*.{0,20}maximum allowed length"
    r"|max_tokens must be at least 1, got -|inputs. tokens \+|max_prompt_tokens"
    r"|initial prompt|maximum supported sequence|maxlength: \d+, actual"
    r"|messages\S*content\S* (string|array) too long|body too large for .{0,40}model"
    r"|input is too (long|large)|request_too_large",
    re.IGNORECASE,
)
_OTHER = re.compile(
    # Keys, models.
    r"api.?key|authenti|authoriz|token (is |has )?(invalid|expired)"
    r"|invalid (access |auth\w* )?token"
    r"|expired|permission|forbidden|bearer|\bjwt\b|signature|special token"
    r"|model.{0,60}(not found|not exist|not supported|unavailable|not available|deprecat"
    r"|decommission|not loaded)|(unknown|invalid|no such) model"
    # Parameters.
    r"|unsupported|not supported|unrecogni[sz]ed|unknown (parameter|field|argument|variant)"
    r"|extra (fields|inputs)|not permitted|unexpected|field required|missing"
    r"|invalid (value|type|json|role|tool|schema|argument|utf)|must be (one of|a |an )"
    r"|temperature|top_[pk]\b|logprob|logit_bias|penalty|\bseed\b|stop sequences?|'stop"
    r"|tool|function|response_format|\bjson\b|schema|'(user|metadata)"
    r"|completion tokens|output tokens|max_(completion_|output_|new_)?tokens"
    # What is not text.
    r"|image|audio|video|pixel|attachment|\bpdf\b|base64|file|mime",
    re.IGNORECASE,
)
_PASSING = re.compile(
    r"provider returned|upstream|overload|temporar|try again|retry|timed? ?out|unavailable|internal"
    r"|capacity|busy|queue|connection|bad gateway|shutting down|interrupted|aborted|cancell?ed",
    re.IGNORECASE,
)
_ABOUT_LENGTH = re.compile(r"token|length|limit|too (long|large|many|big)|exceed", re.IGNORECASE)
_TEXTS = ("message", "msg", "detail", "details", "error", "errors", "raw", "reason", "title")
_LABELS = ("code", "type", "status")
"""Keys of an error's JSON that tell something; others repeat the request."""


def texts_of(body: object) -> Iterator[str]:
    """The sentences and labels in an error's body, however it is wrapped."""
    yield from _texts(_parsed(body), 0)


def _texts(value: object, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        return
    if isinstance(value, str):
        inner = _parsed(value)
        if isinstance(inner, str):
            yield " ".join(inner[:READ_CHARS].split())
        else:
            yield from _texts(inner, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, depth + 1)
    elif isinstance(value, dict):
        for name in (*_TEXTS, "metadata"):
            if value.get(name):
                yield from _texts(value[name], depth + 1)
        for name in _LABELS:
            if isinstance(value.get(name), str):
                yield value[name]


def _parsed(body: object) -> object:
    if not isinstance(body, str) or not body.lstrip().startswith(("{", "[")):
        return body
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body


def fields_in(body: str) -> frozenset[str]:
    """Words that a refusal uses and that may be names of a request's fields."""
    fields = re.findall(r'"(?:param|loc)"\s*:\s*(\[[^\]]*\]|"[^"]*")', body[:READ_CHARS])
    return frozenset(re.findall(r"\w+", " ".join([*texts_of(body), *fields]).lower()))


def words_of(body: object) -> str:
    """The sentence in an error's body, whatever it is wrapped in."""
    parsed = _parsed(body)
    for name in ("error", "message", "detail"):
        if isinstance(parsed, dict) and parsed.get(name):
            parsed = parsed[name]
    text = parsed if isinstance(parsed, str) else json.dumps(parsed)
    return " ".join(text.split())[:SAID_CHARS]


def judge(status: int, body: object, request: RefusedRequest) -> EndpointRefusalKind:
    """Kind of refusal `status` with `body` (text or JSON) is. A reply that is an error has the
    status that it names, else 502."""
    text = " ; ".join(texts_of(body))[:READ_CHARS]
    if 300 <= status < 400:
        return EndpointRefusalKind.CLOSED
    if (status in OF_THE_REQUEST or status == 429) and _never_fits(text):
        return EndpointRefusalKind.FULL
    if status == 429 or status in _RUN_WIDE:
        closed = status != 429 or _NO_QUOTA.search(text)
        return EndpointRefusalKind.CLOSED if closed else EndpointRefusalKind.BUSY
    if status in OF_THE_REQUEST or status >= 500:
        if _FILTER.search(text) and not _is_full(text, request, status, only_sure=True):
            # A 5xx that names a filter is a service of theirs that failed.
            return EndpointRefusalKind.FILTERED if status < 500 else EndpointRefusalKind.FAILING
        if _is_full(text, request, status, only_sure=status >= 500):
            return EndpointRefusalKind.FULL
    if status == 500:
        return EndpointRefusalKind.FAILING
    if status in _BUSY or status > 500:
        return EndpointRefusalKind.BUSY
    if status in OF_THE_REQUEST:
        if _NO_QUOTA.search(text):
            return EndpointRefusalKind.CLOSED
        is_stray = request.num_taken > 0 or bool(_PASSING.search(text)) or not text
        return EndpointRefusalKind.STRAY if is_stray else EndpointRefusalKind.REQUEST
    return (
        EndpointRefusalKind.STRAY
        if status in _STRAY or request.num_taken
        else EndpointRefusalKind.REQUEST
    )


def tells_that_it_passes(body: object) -> bool:
    """Whether a refusal names a reason that is not the request's."""
    return _PASSING.search(" ; ".join(texts_of(body))) is not None


def _is_full(text: str, request: RefusedRequest, status: int, *, only_sure: bool) -> bool:
    if _RATE.search(text) or _OUTPUT_ONLY.search(text):
        return False
    if _SURE.search(text):
        return True
    if only_sure or not request.num_taken:
        return False
    if _OTHER.search(text) or _PASSING.search(text):
        return False
    large = max(1000, request.max_context // 2)
    return (
        status == 413
        or bool(_ABOUT_LENGTH.search(text))
        or bool(request.max_context and any(n > large for n in numbers(text)))
    )


def _never_fits(text: str) -> bool:
    """A limit of the account that this request is beyond by itself: waiting does not help."""
    match = _REQUESTED.search(text)
    if match:
        limit, requested = number(match[1]), number(match[2])
        return limit is not None and requested is not None and requested > limit > 0
    return bool(_TOO_LARGE.search(text)) and bool(_RATE.search(text))


def error_in(body: Any) -> object | None:
    """The error that a body with HTTP 200 holds in the place of a reply, or beside it; None where
    there is none."""
    if not isinstance(body, dict):
        return None
    if body.get("error") and not body.get("choices"):
        return body["error"]
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first.get("error") or None if isinstance(first, dict) else None


def status_of(error: object) -> int:
    """The HTTP status that an error in a reply names; 502 where it names none."""
    if isinstance(error, dict):
        for name in ("code", "status", "status_code", "http_code"):
            code = error.get(name)
            if isinstance(code, str) and code.isdigit():
                code = int(code)
            if isinstance(code, int) and 400 <= code < 600:
                return code
    return 502
