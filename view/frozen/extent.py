"""Which pages a copy has: by their addresses, before one is read.

Invariants: a copy of one run has no page that shows another run; its lists are bounded, so that a
copy of a large run ends. Pure. Imported by `copying`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from infra.db.reading.rollout_pages import FACETS
from mainspring.ids import CampaignId, RolloutId
from view.pages.rollout import TABS
from view.pages.token_shades import WAYS

_OF_A_RUN = ("figures", "tasks", "config")


@dataclass(frozen=True, slots=True)
class FrozenRun:
    """One run of a copy."""

    rollouts: Collection[RolloutId]
    """Those whose pages it has."""
    groups: Collection[str]
    """Their groups."""
    has_task_lists: bool
    """A list of the rollouts of each task: of an evaluation, whose tasks are what it is about."""


@dataclass(slots=True)
class Extent:
    runs: Mapping[CampaignId, FrozenRun]
    list_pages: int
    """Pages of one list."""
    tabs: Collection[str] = TABS
    has_facets: bool = True
    """Lists that are narrowed to one value."""
    _listed: dict[str, set[str]] = field(default_factory=dict)

    def has(self, address: str) -> bool:
        """Whether the copy has the page; a list's pages count, so ask once for each link."""
        parts = urlsplit(address)
        query = dict(parse_qsl(parts.query))
        kind, _, rest = unquote(parts.path).removeprefix("/").partition("/")
        if kind == "events":
            return set(query) == {"c"} and query["c"] in self.runs
        if kind == "r":
            return self._has_rollout(rest, query)
        return kind == "c" and self._has_of_run(rest, query)

    def _has_rollout(self, rollout: str, query: Mapping[str, str]) -> bool:
        if not set(query) <= {"tab", "from", "by"} or query.get("by", WAYS[0]) != WAYS[0]:
            return False
        if query.get("tab", TABS[0]) not in self.tabs:
            return False
        return any(rollout in run.rollouts for run in self.runs.values())

    def _has_of_run(self, rest: str, query: Mapping[str, str]) -> bool:
        name, _, page = rest.partition("/")
        run = self.runs.get(CampaignId(name))
        if run is None:
            return False
        if page == "rollouts":
            return self._has_list(name, run, query)
        if query:
            return False
        part, _, which = page.partition("/")
        if part == "groups":
            return which in run.groups
        return page == "" or page in _OF_A_RUN or part == "steps"

    def _has_list(self, name: str, run: FrozenRun, query: Mapping[str, str]) -> bool:
        chosen = set(query) - {"after"}
        if chosen and not (self.has_facets and len(chosen) == 1 and chosen <= set(FACETS)):
            return chosen == {"task"} and run.has_task_lists and "after" not in query
        if "task" in chosen and not run.has_task_lists:
            return False
        narrowed = ",".join(f"{facet}={query[facet]}" for facet in chosen)
        pages = self._listed.setdefault(f"{name}?{narrowed}", {""})
        after = query.get("after", "")
        if after not in pages and len(pages) >= self.list_pages:
            return False
        pages.add(after)
        return True
