"""The seam between a judgement and the model that gives its votes.

- A `Judge` answers a prompt with the text of one vote. The activity that asks reads the text, and
  decides how many votes it asks for and when it retries one.
- It is made from its section of the configuration, once in a process and campaign.

Implemented by `endpoint`, and by judges of your own (docs/extending.md). Imported by the activity
that asks.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from mainspring.config.agents.judges import ENDPOINT, ENGINE, JudgeConfig
from mainspring.config.registry import Registry
from mainspring.errors import MainspringError, ServiceError
from mainspring.ids import CampaignId, RolloutId
from mainspring.status import FaultKind


class JudgeFailing(ServiceError):
    """A judge gives no vote now: asking again may help, after `retry_after_s` if set."""

    fault = FaultKind.JUDGE_FAILING

    def __init__(
        self, message: str, *, remedy: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after_s = retry_after_s


class JudgeBusy(JudgeFailing):
    """All requests that this process may have under way are under way: no failure of the judge."""


class JudgeRefused(ServiceError):
    """A judge takes no such request: asking again gives the same."""

    fault = FaultKind.JUDGE_MISSING


class Judge(Protocol):
    async def vote(self, prompt: str, rollout: RolloutId, number: int) -> str:
        """The text of vote `number` on the prompt. Raises JudgeFailing and JudgeRefused."""
        ...

    async def aclose(self) -> None:
        """Free what it holds."""
        ...


JUDGES: Registry[Callable[[JudgeConfig], Judge]] = Registry(
    "judge",
    (
        (ENDPOINT, "infra.judges.endpoint:EndpointJudge"),
        (ENGINE, "infra.judges.engine:EngineJudge"),
    ),
    takes="config",
    methods=("vote", "aclose"),
)


@dataclass(slots=True)
class _InUse:
    config: JudgeConfig
    judge: Judge
    slots: asyncio.Semaphore = field(default_factory=asyncio.Semaphore)


class JudgesInUse:
    """The judges that this process asks."""

    def __init__(self) -> None:
        self._in_use: dict[tuple[CampaignId, str], _InUse] = {}
        self._replaced: list[_InUse] = []
        """Judges that a change of their campaign replaced."""

    @asynccontextmanager
    async def asking(
        self, campaign: CampaignId, name: str, config: JudgeConfig, wait_s: float
    ) -> AsyncIterator[Judge]:
        """The judge, while one of its `concurrency` requests is this one. Raises JudgeBusy when
        none is free within `wait_s`, and ConfigError for a judge that cannot be made."""
        in_use = self._in_use.get((campaign, name))
        if in_use is None or in_use.config != config:
            if in_use is not None:
                self._replaced.append(in_use)  # others may be asking it
            judge = JUDGES.make(config.kind, config)
            in_use = _InUse(config, judge, asyncio.Semaphore(config.concurrency))
            self._in_use[campaign, name] = in_use
        try:
            async with asyncio.timeout(wait_s):
                await in_use.slots.acquire()
        except TimeoutError:
            raise JudgeBusy(
                f"judge {name}: its {config.concurrency} requests of this process are under way",
                remedy=f"raise judges.{name}.concurrency, or start more rollout workers",
            ) from None
        try:
            yield in_use.judge
        finally:
            in_use.slots.release()

    async def close(self) -> None:
        for in_use in [*self._in_use.values(), *self._replaced]:
            await in_use.judge.aclose()


def failure_of_own(name: str, error: Exception) -> MainspringError:
    """The failure that an exception of a judge counts as."""
    if isinstance(error, MainspringError):
        return error
    return JudgeFailing(
        f"judge {name} raised {type(error).__name__}: {error}",
        remedy="look at the judge's code, or at the log of the rollout worker",
    )
