"""One text of a rollout as a file: the output of a command, its patch, or its tests' output.

Invariant: it is plain text that a browser neither guesses the type of nor runs. Imported by `app`.
"""

from starlette.requests import Request
from starlette.responses import Response

from infra.db.fence import UnknownId
from infra.db.naming import rollout_named
from infra.db.rollouts import rollouts, turns
from mainspring.errors import UsageError
from view.page_request import PageRequest
from view.viewer import Viewer

_TYPE = "text/plain; charset=utf-8"


async def output(viewer: Viewer, request: Request) -> Response:
    """`call` and `index` name a command, `what` else: patch or tests. Raises UnknownId."""
    asked = PageRequest({}, dict(request.query_params))
    if "\0" in request.path_params["rollout"]:
        raise UsageError("the address has a NUL", remedy="no id has one")
    async with viewer.part("one output") as db:
        rollout = await rollout_named(db, request.path_params["rollout"])
        record = await rollouts.get(db, rollout)
        what = asked.query.get("what", "output")
        if what == "patch":
            body = await rollouts.get_final_patch(db, rollout)
        elif what == "tests":
            text = await rollouts.get_grade_output(db, rollout, record.epoch)
            body = None if text is None else text.encode(errors="replace")
        else:
            call, index = asked.number("call", 0) or 0, asked.number("index", 0) or 0
            epoch = asked.number("epoch", record.epoch)
            replies, ran = await turns.history(db, rollout, epoch or 0, call, call)
            if what == "reply":
                body = replies[0].text.encode(errors="replace") if replies else None
            else:
                body = next((each.output for each in ran if each.index == index), None)
    if body is None:
        raise UnknownId(
            f"rollout {rollout} has no such text",
            remedy="its page lists the commands that have ended",
        )
    return Response(body, headers={"content-type": _TYPE, "content-disposition": "inline"})
