"""A gateway of its own process that dials out to an edge, for tests that kill it.

Called as `scripted_gateway.py URL MODE`. Modes: `echo`, which answers after a moment; `hang`, which
answers nothing; `begin`, which begins a stream with comments and hangs. It tells of each request in
its log.
"""

import asyncio
import os
import sys

import structlog
from scripted_answers import Script

from gateway.app import make_app
from gateway.edge.dialling import Dialling, edge_at
from gateway.protocol import Session
from infra.log_setup import set_up
from mainspring.config.settings import LogFormat
from mainspring.programs.reply import Answer, Reply
from mainspring.programs.request import ModelRequest

log = structlog.get_logger()


class Telling(Script):
    async def ask(self, session: Session, request: ModelRequest, *, is_retry: bool) -> Answer:
        log.info("asked", is_retry=is_retry)
        answer = await super().ask(session, request, is_retry=is_retry)
        await asyncio.sleep(0.05)
        return answer.model_copy(update={"reply": Reply(text=request.messages[-1].text)})


async def main() -> None:
    url, mode = sys.argv[1:]
    script = Telling()
    if mode != "echo":
        script.may_answer.clear()
    app = make_app(script, keep_alive_s=0.1 if mode == "begin" else 15.0)
    await Dialling(edge_at(url), app, os.environ["MAINSPRING_EDGE_SECRET"]).run_forever()


if __name__ == "__main__":
    set_up(LogFormat.JSON)
    asyncio.run(main())
