"""Search: places in what agents did, with counts by task and by step.

The address has the query and the place where the page begins. Imported by `pages`.
"""

from dataclasses import dataclass

from infra.db.reading import search_hits
from infra.db.reading.search_hits import SearchFound, SearchHit
from infra.db.rollouts.search_pieces import num_unsearched
from mainspring.trajectories.search_query import MAX_CHARS, SearchKey, parse
from view.page import Page
from view.page_request import PageRequest, url
from view.pages.rollout import TURNS_SHOWN
from view.viewer import Viewer

SIZE = 20
KEPT_S = 10.0


@dataclass(frozen=True, slots=True)
class SearchPage:
    query: str
    """Empty: nothing is asked for."""
    found: SearchFound | None
    num_unsearched: int
    """Ended rollouts that no search finds yet."""
    after: str | None
    keys: tuple[str, ...] = tuple(SearchKey)
    max_chars: int = MAX_CHARS

    @staticmethod
    def address(hit: SearchHit) -> str:
        """Address of the place."""
        if hit.turn is None:
            return url("r", hit.rollout, tab=hit.part)
        first = (hit.turn - 1) // TURNS_SHOWN * TURNS_SHOWN + 1
        return url("r", hit.rollout, **{"from": first if first > 1 else None}) + f"#t{hit.turn}"

    def narrowed(self, key: str, value: str | int) -> str:
        """Address of the same query with one more condition."""
        return url("search", q=f'{self.query} {key}:"{value}"')

    def is_narrowable(self, value: str) -> bool:
        """Whether a condition can have this value: quotes cannot be quoted."""
        return '"' not in value


async def read(viewer: Viewer, asked: PageRequest) -> SearchPage:
    text = asked.query.get("q", "").strip()
    after = asked.query.get("after") or None
    found = None
    if text:
        query = parse(text)

        async def look() -> SearchFound:
            async with viewer.part("the search") as db:
                return await search_hits.search(db, query, after=after, size=SIZE)

        found = await viewer.kept(("search", text, after), KEPT_S, look)
    async with viewer.part("the number of rollouts that cannot be searched yet") as db:
        missing = await num_unsearched(db)
    return SearchPage(text, found, missing, after)


PAGES = (Page("/search", "search.html.j2", read),)
