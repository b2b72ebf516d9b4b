"""Label of the weights that an engine serves: the policy version's number and its identity.

The number alone is not enough: a version that an operator discarded and the one made after it have
the same, and so have versions of two campaigns. Engines take any text for a name and send it with
every reply, SGLang too, which reports no checksum. Used by the clients in `engines`.
"""

import re
from dataclasses import dataclass
from typing import Self

_LABEL = re.compile(r"([0-9]+)(?:-([0-9a-z]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class WeightLabel:
    """`7-3fa94c01b2d8`."""

    version: int
    uid: str = ""
    """Empty: not known, as of an engine that was started with the first version."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None for weights that no campaign named."""
        match = _LABEL.fullmatch(text)
        return cls(int(match[1]), match[2] or "") if match else None

    def __str__(self) -> str:
        return f"{self.version}-{self.uid}" if self.uid else str(self.version)

    def can_be(self, other: "WeightLabel") -> bool:
        """Version 0 is never discarded, and engines are started with it: its number is enough."""
        return self == other or (self == WeightLabel(0) and other.version == 0)
