"""Whether the engines of a reproducible campaign give equal bits, by what they tell of themselves.

Which engine serves a reply depends on time: replies follow from the seed only where all engines are
reproducible and have one stamp (`mainspring.artifacts.stamp`). Imported by the engines' client.
"""

from typing import Any

from infra.policy.protocol import NotReproducible


class SameBits:
    def __init__(self) -> None:
        self._first: tuple[str, Any] | None = None
        """The engine that was asked first, and its stamp."""

    def check(self, engine: str, info: dict[str, Any]) -> None:
        """`info`: what the engine's /model_info answers. Raises NotReproducible."""
        if info.get("reproducible") is not True:
            raise NotReproducible(
                f"policy engine {engine} gives replies that depend on which requests run together, "
                'and the campaign has schedule = "reproducible"',
                remedy="start it with `mainspring serve --reproducible`, then start the campaign "
                'again; or start a new campaign with schedule = "fastest"',
            )
        stamp = info.get("stamp")
        first, expected = self._first = self._first or (engine, stamp)
        if stamp != expected:
            raise NotReproducible(
                f"policy engines {first} and {engine} compute other bits: {expected} and {stamp}",
                remedy="run all engines of a reproducible campaign on one kind of machine and one "
                "version, then start the campaign again",
            )
