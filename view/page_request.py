"""One request for a page: the names in its path and what its query asks for.

Pure. Imported by `app` and by pages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from mainspring.errors import UsageError


@dataclass(frozen=True, slots=True)
class PageRequest:
    path: Mapping[str, str]
    query: Mapping[str, str] = field(default_factory=dict)
    """The first value of each name."""
    all_values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """All values of each name, in their order."""

    def number(self, name: str, default: int | None = None) -> int | None:
        """A whole number of the query. Raises UsageError."""
        text = self.query.get(name, "")
        if not text:
            return default
        if not text.isascii() or not text.isdecimal() or len(text) > 9:
            raise UsageError(f"{name}={text!r} is no number", remedy=f"give {name} as 0, 1, 2 ...")
        return int(text)


def json_url(*parts: str, **query: str | int | None) -> str:
    """Address of a page's data."""
    path = "/" + "/".join(quote(str(part), safe="/-._~:") for part in parts) + ".json"
    asked = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(asked)}" if asked else path


def url(*parts: str, **query: str | int | None) -> str:
    """Address of a page: its parts, which may hold any character, and its query."""
    path = "/" + "/".join(quote(str(part), safe="/-._~:") for part in parts)
    asked = {name: value for name, value in query.items() if value not in (None, "")}
    if path.endswith(".json"):
        asked["as"] = "page"  # an id may end so
    return f"{path}?{urlencode(asked)}" if asked else path
