"""The application: addresses, answers as page or as JSON, and a page for each error.

Invariants: an error that a person can act on is a page with one sentence and the remedy; a page
whose database does not answer asks again by itself; an address that does not exist names what does.
Imported by `server` and tests.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from infra.db.fence import UnknownId
from infra.db.runs import campaigns
from mainspring.errors import DatabaseError, MainspringError, UsageError
from view.access import ACTS, AccessGuard
from view.actions.answering import ActionPages
from view.actions.protocol import Action
from view.live import live
from view.page import Page
from view.page_request import PageRequest, url
from view.pages import ALL
from view.pages.output import output
from view.rendering import as_json, render
from view.viewer import Viewer

log = structlog.get_logger()
RETRY_S = 5
"""After this long a page that could not be read asks again."""
CAMPAIGNS_NAMED = 20
"""Runs that a page for an unknown address names."""
NOTHING_KEPT = {"cache-control": "no-store"}
_JSON = ".json"
_WORKFLOWS = {"rollout": "r", "group": "groups", "evaluation": "groups", "campaign": "c"}
"""Beginnings of workflow ids, and the pages that they lead to."""


class _WholeConvertor(Convertor[str]):
    """The rest of a path, whatever characters it has: ids of tasks may hold line breaks."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("whole", _WholeConvertor())


def make_app(
    viewer: Viewer,
    *,
    hosts: Collection[str] = (),
    token: str = "",
    actions: Sequence[Action] = (),
) -> Any:
    """`hosts`: names that the viewer answers to beside those of loopback. `token`: empty, where
    none is required. `actions`: what may be done from its pages."""

    async def refuse(error: MainspringError, status: int) -> Response:
        return await _refusal(viewer, error, wants_json=False, usage_status=status, is_act=True)

    answering = ActionPages(viewer, actions, refuse, has_token=bool(token))
    viewer.ends.append(answering.acts.close)
    offered = answering.offered
    routes = [
        Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
        Route("/live/c/{name}", _with(viewer, live)),
        Route("/o/{rollout:whole}", _with(viewer, output)),
        Route("/w/{workflow:whole}", _to_page),
        *(answering.routes() if actions else ()),
        *(
            Route(path, _endpoint(viewer, page, offered))
            for page in ALL
            for path in _addresses(page.path)
        ),
        Route("/{rest:whole}", _with(viewer, _unknown)),
    ]
    return AccessGuard(Starlette(routes=routes), hosts, token, acts=bool(actions))


Answers = Callable[[Viewer, Request], Awaitable[Response]]


def _with(viewer: Viewer, answer: Answers) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await answer(viewer, request)
        except MainspringError as error:
            return await _refusal(viewer, error, wants_json=False)

    return endpoint


Offered = Callable[[Any], Sequence[tuple[str, str]]]


def _endpoint(
    viewer: Viewer, page: Page, offered: Offered
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        wants_json = False
        try:
            asked, wants_json = _asked(request)
            shown = await page.read(viewer, asked)
            if wants_json:
                return _json(shown)
            text = render(
                page.template, page=shown, asked=asked, offered=offered, **_around(viewer)
            )
            return HTMLResponse(text, headers=NOTHING_KEPT)
        except MainspringError as error:
            return await _refusal(viewer, error, wants_json=wants_json)

    return endpoint


def _around(viewer: Viewer) -> dict[str, Any]:
    """Values that every template has beside its page."""
    return {"settings": viewer.settings, "is_frozen": viewer.frozen is not None}


def _addresses(path: str) -> tuple[str, ...]:
    """A page's own, and that of its data. A name at its end takes the ending of the latter, too."""
    if path.endswith("}"):
        return (path,)
    return (path, "/home.json" if path == "/" else f"{path}{_JSON}")


def _asked(request: Request) -> tuple[PageRequest, bool]:
    """The page that is asked for, and whether as JSON."""
    path = {name: str(value) for name, value in request.path_params.items()}
    query = dict(reversed(request.query_params.multi_items()))
    is_json = request.url.path.endswith(_JSON) and query.get("as") != "page"
    if is_json and path:
        last = list(path)[-1]
        path[last] = path[last].removesuffix(_JSON)
    if any("\0" in text for text in (*path.values(), *query, *query.values())):
        raise UsageError("the address has a NUL", remedy="no id and no filter has one")
    every = {name: request.query_params.getlist(name) for name in query}
    return PageRequest(path, query, every), is_json


def _json(document: Any, status: int = 200) -> Response:
    return Response(as_json(document), status, headers=NOTHING_KEPT, media_type="application/json")


async def _unknown(viewer: Viewer, request: Request) -> Response:
    path = request.url.path
    remedy = "its pages are linked from /"
    if path.startswith(ACTS):
        remedy = "where actions are wanted, start it as `mainspring view --actions`"
    raise UnknownId(f"this viewer has no page {path}", remedy=remedy)


async def _refusal(
    viewer: Viewer,
    error: MainspringError,
    *,
    wants_json: bool,
    usage_status: int = 400,
    is_act: bool = False,
) -> Response:
    if isinstance(error, UnknownId):
        status = 404
    elif isinstance(error, UsageError):
        status = usage_status
    else:
        status = 503
        log.warning("a page could not be read", error=error.message)
    if wants_json:
        return _json({"error": error.message, "remedy": error.remedy}, status)
    text = render(
        "refusal.html.j2",
        status=status,
        error=error,
        # What a form asked for is not asked again by itself.
        retry_s=RETRY_S if isinstance(error, DatabaseError) and usage_status == 400 else None,
        is_act=is_act,
        campaigns=await _names(viewer) if status == 404 else (),
        **_around(viewer),
    )
    return HTMLResponse(text, status, headers=NOTHING_KEPT)


async def _names(viewer: Viewer) -> Sequence[str]:
    try:
        async with viewer.part("the names of runs") as db:
            return [record.id for record in await campaigns.list_all(db)][:CAMPAIGNS_NAMED]
    except DatabaseError:
        return []


async def _to_page(request: Request) -> Response:
    """From the id of a workflow in Temporal."""
    kind, _, rest = request.path_params["workflow"].partition("/")
    page = _WORKFLOWS.get(kind)
    if page == "groups":
        return RedirectResponse(url("c", rest.partition("/")[0], "groups", rest))
    return RedirectResponse(url(page, rest) if page else "/")
