"""Live word of a campaign: an event whenever its page would show something else.

Invariants: all readers of a campaign share one poller, and without a reader none asks the store;
each event has an id, so that a browser that connects again is told at once what it missed; a store
that does not answer is asked again. Imported by `app`.
"""

import asyncio
from collections.abc import AsyncIterator

import structlog
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from infra.db.naming import campaign_named
from infra.db.reading import run_overviews
from mainspring.errors import DatabaseError
from mainspring.ids import CampaignId
from view.viewer import Viewer

POLL_S = 2.0
SILENT_S = 15.0
"""After this long a line without meaning is sent: proxies close what is silent."""
RETRY_MS = 3000
"""A browser that lost the connection waits this long."""

log = structlog.get_logger()


class _Poller:
    """Asks for one campaign while it has readers."""

    def __init__(self, viewer: Viewer, campaign: CampaignId) -> None:
        self._viewer = viewer
        self._campaign = campaign
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self.num_readers = 0
        self.word = ""

    async def events(self, last_seen: str) -> AsyncIterator[str]:
        """Lines of the stream; `last_seen` is the id that the reader had last."""
        self.num_readers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._ask())
        try:
            yield f"retry: {RETRY_MS}\n\n"
            seen = last_seen
            while True:
                if self.word and self.word != seen:
                    is_first = not seen
                    seen = self.word
                    # The page that has just been read shows this already.
                    kind = "seen" if is_first else "changed"
                    yield f"id: {seen}\nevent: {kind}\ndata: {seen}\n\n"
                try:
                    async with asyncio.timeout(SILENT_S), self._changed:
                        # Without its own first word it waits: a reader may come with one of a
                        # viewer of before.
                        await self._changed.wait_for(lambda seen=seen: self.word not in ("", seen))
                except TimeoutError:
                    if self._task.done():
                        self._task.result()  # raises what ended it
                    yield ": waiting\n\n"
        finally:
            self.num_readers -= 1
            if not self.num_readers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _ask(self) -> None:
        while True:
            try:
                async with (
                    self._viewer.part("live word of the campaign") as db,
                    db.snapshot() as connection,
                ):
                    word = await run_overviews.changed_at(connection, self._campaign)
            except DatabaseError as error:
                log.warning("the store does not answer", error=error.message)
            else:
                async with self._changed:
                    self.word = self._viewer.words[self._campaign] = word
                    self._changed.notify_all()
            await asyncio.sleep(POLL_S)


async def live(viewer: Viewer, request: Request) -> Response:
    """Raises UnknownId, DatabaseError."""
    async with viewer.part("the run") as db:
        campaign = (await campaign_named(db, request.path_params["name"])).id
    poller = viewer.pollers.setdefault(campaign, _Poller(viewer, campaign))
    return StreamingResponse(
        poller.events(request.headers.get("last-event-id", "")),
        media_type="text/event-stream",
        headers={"cache-control": "no-store"},
    )
