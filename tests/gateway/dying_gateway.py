"""A gateway that notes what it is asked, and kills itself where a plan tells it to.

python -m tests.gateway.dying_gateway HOME FOLDER
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any
from weakref import WeakSet

from gateway.channel import Channel
from gateway.durable import DurableAnswers
from gateway.exchange import Exchange
from gateway.protocol import Session
from infra.db.programs import model_requests
from infra.db.programs.model_requests import RequestStanding
from mainspring.programs.reply import Answer
from mainspring.programs.request import ModelRequest, Role
from tests.gateway.kill_plan import KillPlan, Phase
from tests.gateway.scripted_process import EDITS, STEP
from workers import gateway

SETTLED_S = 0.7
"""After the signal: then the reply is being made, which takes longer (scripted_process.py)."""


def turn_of(request: ModelRequest) -> int | None:
    """As `scripted_process` counts in prompts."""
    if request.tools:
        return sum(message.role is Role.TOOL for message in request.messages)
    text = "\n".join(message.text for message in request.messages)
    return len(STEP.findall(text)) if EDITS in text else None


def install(plan: KillPlan) -> None:
    """Stand in the way of each request, once a process."""
    turns: dict[tuple[str, int], int | None] = {}
    noted: WeakSet[asyncio.Task[Any]] = WeakSet()
    ask, signalled = model_requests.ask, DurableAnswers._signal  # pyright: ignore[reportPrivateUsage]
    told = DurableAnswers._told  # pyright: ignore[reportPrivateUsage]
    deliver = Exchange._deliver  # pyright: ignore[reportPrivateUsage]

    def reach(phase: Phase, rollout: str, number: int) -> None:
        die_at(phase, rollout, turns.get((rollout, number)))

    def die_at(phase: Phase, rollout: str, turn: int | None) -> None:
        if plan.phase_at(rollout, turn) is phase:
            plan.mark("died", rollout, turn)
            os.kill(os.getpid(), signal.SIGKILL)

    async def noted_ask(
        db: Any, rollout: str, epoch: int, life: int, request: ModelRequest, key: str, **beside: Any
    ) -> RequestStanding:
        turn = turn_of(request)
        asking = asyncio.current_task()
        assert asking is not None
        if asking not in noted:  # in an outage of the store the gateway tries many times
            noted.add(asking)
            plan.note("asks", rollout=rollout, life=life, turn=turn, key=key)
        die_at(Phase.ROW, rollout, turn)
        asked = await ask(db, rollout, epoch, life, request, key, **beside)  # pyright: ignore[reportArgumentType]
        turns[rollout, asked.number] = turn
        die_at(Phase.SIGNAL, rollout, turn)
        return asked

    async def noted_signal(self: Any, session: Session, number: int, name: str) -> None:
        await signalled(self, session, number, name)
        later = asyncio.get_running_loop().call_later
        later(SETTLED_S, reach, Phase.GENERATING, session.rollout, number)

    async def noted_told(self: Any, session: Session, asked: RequestStanding) -> RequestStanding:
        found = await told(self, session, asked)
        reach(Phase.STORED, session.rollout, asked.number)
        return found

    async def half_sent(
        self: Any, channel: Channel, session: Session, answer: Answer, pieces: list[str]
    ) -> None:
        turn = turns.get((session.rollout, answer.number))
        if plan.phase_at(session.rollout, turn) is Phase.HALF:
            text = "".join(pieces).encode()
            await channel._write(text[: len(text) // 2])  # pyright: ignore[reportPrivateUsage]
            await channel._is_accepted()  # pyright: ignore[reportPrivateUsage]
            reach(Phase.HALF, session.rollout, answer.number)
        await deliver(self, channel, session, answer, pieces)

    model_requests.ask = noted_ask
    DurableAnswers._signal = noted_signal  # pyright: ignore[reportPrivateUsage]
    DurableAnswers._told = noted_told  # pyright: ignore[reportPrivateUsage]
    Exchange._deliver = half_sent  # pyright: ignore[reportPrivateUsage]


if __name__ == "__main__":
    install(KillPlan(Path(sys.argv[2])))
    gateway.main(Path(sys.argv[1]), "127.0.0.1", 0, None)
