"""Versions of streamed tokens, at engines that tell them at the end of a reply alone.

A label that is the same before a request was sent and after tokens of it came is theirs: versions
follow one another, and each has a label of its own. Used by the dialects.
"""

from collections.abc import Awaitable, Callable

from infra.policy.engines.dialects.protocol import Json
from mainspring.errors import EngineError


class SameLabel:
    def __init__(self, label: str, ask: Callable[[], Awaitable[str]]) -> None:
        """`label`: before the request was sent; `ask`: the label of now."""
        self._label = label
        self._ask = ask
        self._moved = False

    async def stands(self) -> bool:
        """Whether tokens that came so far are under the label; False is for the rest."""
        if not self._moved:
            try:
                self._moved = await self._ask() != self._label
            except EngineError:
                self._moved = True  # what comes next does not follow on what was confirmed
        return not self._moved

    def spans(self, num_tokens: int) -> list[Json]:
        """As if it stood."""
        return [{"version": self._label, "start": 0, "end": num_tokens}] if num_tokens else []
