"""Acts: what forms asked for, while it is done and after, for the pages that tell it.

Invariants: an act of one id is done once; acts on one subject are done one after the other, each
only if what its person agreed to is still so; a page never waits for one longer than it chooses to.
Kept in memory: what was done is in the store's events. Imported by `answering`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from mainspring.errors import MainspringError, ServiceError, UsageError
from view.actions.protocol import Action, ActRequest, Preview

MAX_KEPT = 200
"""Acts that are told, the newest ones."""
PREVIEW_S = 20.0
"""A preview asks the store alone."""
AT_ONCE = 4
"""Previews, and acts: each opens connections to the store, which others need as well."""
ACT_S = 600.0
"""Longer than what any action waits for; one that retries ten thousand rollouts takes minutes."""
END_S = 5.0

log = structlog.get_logger()


@dataclass(slots=True)
class Act:
    id: str
    title: str
    of: str
    back: str
    told: str = ""
    """While it is done, what it waits for; then what was done."""
    error: MainspringError | None = None
    is_running: bool = True


class Acts:
    """`at_end`: called after each, whatever became of it."""

    def __init__(self, at_end: Callable[[], None]) -> None:
        self._at_end = at_end
        self._known: dict[str, Act] = {}
        self._used: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._asking = asyncio.Semaphore(AT_ONCE)
        self._doing = asyncio.Semaphore(AT_ONCE)

    def find(self, id: str) -> Act | None:
        return self._known.get(id)

    def begun(self, id: str) -> Act | None:
        """The act of this id; None: no form began it. Raises UsageError for one that is not told
        any more."""
        if id in self._used and id not in self._known:
            raise UsageError(
                "this form was answered before: nothing was done",
                remedy="the events tell what it did; open the page of the action again for more",
            )
        return self._known.get(id)

    def begin(self, id: str, action: Action, asked: ActRequest, shown: Preview, by: str) -> Act:
        """Begin the act of an id that none was begun for."""
        self._used.add(id)
        act = self._known[id] = Act(id, action.title, asked.of, shown.back)
        self._tasks[id] = asyncio.create_task(self._run(act, action, asked, shown, by))
        self._tasks[id].add_done_callback(lambda _: self._tasks.pop(id, None))
        for old in [each for each in self._known.values() if not each.is_running][:-MAX_KEPT]:
            del self._known[old.id]
        return act

    async def preview(self, action: Action, asked: ActRequest) -> Preview:
        """The action's preview. Raises as that does; ServiceError when it takes too long."""
        try:
            async with asyncio.timeout(PREVIEW_S), self._asking:
                return await action.preview(asked)
        except TimeoutError:
            raise ServiceError(
                f"the store did not answer within {PREVIEW_S:.0f} s: nothing was done",
                remedy="try again when it answers; `mainspring status` tells which service is slow",
            ) from None

    async def settled(self, act: Act, for_s: float) -> None:
        """Wait until it is done, or for so long."""
        task = self._tasks.get(act.id)
        if task is not None:
            await asyncio.wait([task], timeout=for_s)

    async def close(self) -> None:
        """End what is still being done, as Ctrl-C ends a command."""
        for task in (running := [*self._tasks.values()]):
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=END_S)

    async def _run(
        self, act: Act, action: Action, asked: ActRequest, shown: Preview, by: str
    ) -> None:
        def say(text: str) -> None:
            act.told = text

        try:
            async with asyncio.timeout(ACT_S), self._turns[asked.of], self._doing:
                now = await action.preview(asked)
                if now.seen != shown.seen:
                    raise UsageError(
                        "this has changed since you were asked: nothing was done",
                        remedy="open the page of the action again to see what it would do now",
                    )
                act.told = await action.do(asked, now, by, say)
        except MainspringError as error:
            act.error = error
        except TimeoutError:
            act.error = ServiceError(
                f"it was not done within {ACT_S / 60:.0f} minutes, and may be done in part",
                remedy="the events tell what was done; ask for it again to do the rest",
            )
        except asyncio.CancelledError:
            act.error = ServiceError(
                "the viewer was stopped in the middle: it may be done in part",
                remedy="the events tell what was done; ask for it again to do the rest",
            )
            raise
        except Exception:
            log.exception("an action failed", action=action.name, of=asked.of)
            act.error = ServiceError(
                "it failed by an error of Mainspring, and may be done in part",
                remedy="the log of the viewer has the error; the events tell what was done",
            )
        finally:
            act.is_running = False
            self._at_end()
