"""Addresses of actions: the page that asks, its form, and the page that tells what was done.

Invariants: a GET changes nothing; a POST does something only with the token of a form that this
viewer drew for this browser, within the bounds of its size, and when the typed word fits; its
answer is another page, so that to load that again does nothing. Imported by `app`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from infra.db.fence import UnknownId
from infra.db.runs.events import person
from mainspring.errors import MainspringError, UsageError
from view.access import ACTS, is_loopback
from view.actions.acts import Acts
from view.actions.form_token import FormRefused, FormTokens
from view.actions.protocol import Action, ActRequest, Preview
from view.page_request import url
from view.rendering import render
from view.viewer import Viewer

COOKIE = "mainspring-acts"
MAX_FORM_BYTES = 64 * 1024
MAX_FIELDS = 40
ANSWER_S = 18.0
"""A form is answered after this at the latest: longer than a campaign is given to take an order."""
AGAIN_S = 2
"""The page of an act that is still being done asks again after this."""
_FORM = "application/x-www-form-urlencoded"
_OWN = ("of", "token", "seen", "typed")
"""Fields of every form; the others are the action's."""
_HEADERS = {"cache-control": "no-store"}

Refuse = Callable[[MainspringError, int], Awaitable[Response]]
"""Makes the page of an error; with the status that one of bad input has."""


class FormTooLarge(UsageError):
    """More than a form of ours can hold."""


class ActionPages:
    """Pages and forms of the actions. `has_token`: readers give one."""

    def __init__(
        self, viewer: Viewer, actions: Sequence[Action], refuse: Refuse, has_token: bool
    ) -> None:
        self._viewer = viewer
        self._actions = {action.name: action for action in actions}
        self._refuse = refuse
        self._has_token = has_token
        self._tokens = FormTokens()
        self._forms: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """A lock for each form that is being answered, by the number of its token."""
        self.acts = Acts(viewer.forget)

    def routes(self) -> list[Route]:
        return [
            Route(f"{ACTS}{{action}}", self._ask, methods=["GET"]),
            Route(f"{ACTS}{{action}}", self._do, methods=["POST"]),
            Route("/done/{act}", self._done, methods=["GET"]),
        ]

    def offered(self, shown: Any) -> list[tuple[str, str]]:
        """Titles and addresses of the actions that are offered beside what a page shows."""
        offers = ((action, action.offer(shown)) for action in self._actions.values())
        return [
            (action.title, url("do", action.name, **query))
            for action, query in offers
            if query is not None
        ]

    async def _ask(self, request: Request) -> Response:
        try:
            _refuse_elsewhere(request)
            action = self._named(request)
            asked = _asked(dict(request.query_params.multi_items()))
            shown = await self.acts.preview(action, asked)
        except FormRefused as error:
            return await self._refuse(error, 403)
        except MainspringError as error:
            return await self._refuse(error, 400)
        return self._page(request, action, asked, shown)

    async def _do(self, request: Request) -> Response:
        try:
            _refuse_elsewhere(request)
            action = self._named(request)
            form = await _form(request)
            asked = _asked(form)
            given = form.get("token", "")
            session = request.cookies.get(COOKIE)
            number = self._tokens.check(given, session, action.name, asked.of)
        except FormTooLarge as error:
            return await self._refuse(error, 413)
        except MainspringError as error:
            return await self._refuse(error, 403)
        # A form that was sent twice at once: the second one finds what the first one began.
        form_lock = self._forms.setdefault(number, asyncio.Lock())
        try:
            async with form_lock:
                act = self.acts.begun(number)
                if act is None:
                    shown = await self.acts.preview(action, asked)
                    if told := _not_agreed(shown, form):
                        return self._page(request, action, asked, shown, told, 409)
                    act = self.acts.begin(number, action, asked, shown, self._by(request))
        except MainspringError as error:
            return await self._refuse(error, 409)
        await self.acts.settled(act, ANSWER_S)
        return RedirectResponse(url("done", act.id), 303)

    async def _done(self, request: Request) -> Response:
        act = self.acts.find(request.path_params["act"])
        if act is None:
            return await self._refuse(
                UnknownId(
                    "this viewer does not know what was asked there",
                    remedy="it was started again since, or that was long ago; /events tells what "
                    "was done",
                ),
                404,
            )
        text = render(
            "done.html.j2",
            act=act,
            again_s=AGAIN_S if act.is_running else None,
            settings=self._viewer.settings,
        )
        return HTMLResponse(text, headers=_HEADERS)

    def _named(self, request: Request) -> Action:
        name = request.path_params["action"]
        if (action := self._actions.get(name)) is None:
            raise UnknownId(
                f"the viewer has no action {name}", remedy=f"it has {', '.join(self._actions)}"
            )
        return action

    def _page(
        self,
        request: Request,
        action: Action,
        asked: ActRequest,
        shown: Preview,
        told: str = "",
        status: int = 200,
    ) -> Response:
        session = self._tokens.session(request.cookies.get(COOKIE))
        named = {each.name for each in shown.inputs}
        text = render(
            "do.html.j2",
            action=action,
            asked=asked,
            shown=shown,
            told=told,
            token=self._tokens.new(session, action.name, asked.of),
            hidden={name: text for name, text in asked.fields.items() if name not in named},
            settings=self._viewer.settings,
        )
        answer = HTMLResponse(text, status, headers=_HEADERS)
        answer.set_cookie(COOKIE, session, httponly=True, samesite="strict", path=ACTS)
        return answer

    def _by(self, request: Request) -> str:
        """Who asks, as the event has it."""
        token = ", with its token" if self._has_token else ""
        reader = request.client
        where = "" if reader is None or is_loopback(reader.host) else f" from {reader.host}"
        return f"viewer of {person()}{token}{where}"


def _refuse_elsewhere(request: Request) -> None:
    """A preview of fields imports what they name: a page of elsewhere must not ask for one, either.
    Raises FormRefused."""
    # Browsers tell it of loopback and of HTTPS; elsewhere readers have a token.
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise FormRefused(
            "the page of an action was opened from another site: nothing was done",
            remedy="open it from a page of the viewer",
        )


def _asked(values: Mapping[str, str]) -> ActRequest:
    """Raises UsageError."""
    if any("\0" in text for pair in values.items() for text in pair):
        raise UsageError("what was asked has a NUL", remedy="no id and no value has one")
    of = values.get("of", "")
    if not of:
        raise UsageError(
            "the address does not tell what the action is for",
            remedy="follow a link of a campaign, a rollout or a node",
        )
    return ActRequest(of, {name: text for name, text in values.items() if name not in _OWN})


async def _form(request: Request) -> dict[str, str]:
    """Raises UsageError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM:
        raise UsageError(f"the form came as {kind or 'nothing'}", remedy=f"send it as {_FORM}")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise FormTooLarge(
                f"the form has more than {MAX_FORM_BYTES // 1024} KB",
                remedy="shorten what you typed; nothing was done",
            )
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
        )
    except ValueError:  # no UTF-8, or too many fields
        raise UsageError("the form cannot be read", remedy="send it from the page") from None
    # A browser sends line breaks as CR LF.
    return {name: text.replace("\r\n", "\n") for name, text in pairs}


def _not_agreed(shown: Preview, form: Mapping[str, str]) -> str:
    """Why it is asked once again; empty: the person agreed to what would be done."""
    if shown.is_asking:
        return "Fill in the form first."
    if form.get("seen", "") != shown.seen:
        return "This has changed since you were asked. Nothing was done: look at it again."
    typed = form.get("typed", "").strip()
    if shown.confirm and typed != shown.confirm:
        return f"You typed {typed!r}, not {shown.confirm}. Nothing was done."
    return ""
