"""Counts a gateway's requests for Prometheus: how many are open, and how they were answered.

A request is counted when its answer has begun, under the class of its status. Imported by
`workers.gateway`.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from temporalio.common import MetricMeter

from infra.tracking.process_figures import REQUESTS, REQUESTS_OPEN


class Metered:
    def __init__(self, app: ASGIApp, meter: MetricMeter) -> None:
        self._app = app
        self._requests = meter.create_counter(REQUESTS, "Requests, by class of their status.")
        self._open = meter.create_gauge(REQUESTS_OPEN, "Requests whose answer has not ended.")
        self._num_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._requests.add(1, {"status": f"{message['status'] // 100}xx"})
            await send(message)

        self._add_open(1)
        try:
            await self._app(scope, receive, noting)
        finally:
            self._add_open(-1)

    def _add_open(self, number: int) -> None:
        self._num_open += number
        self._open.set(self._num_open)
