"""Rollouts of a run, page by page, with counts of what they can be narrowed to.

The address has the filters and the last row of the page before. Imported by `pages`.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.db.naming import campaign_named, rollout_named
from infra.db.reading import rollout_pages
from infra.db.reading.rollout_pages import FACETS, MANY, ListedRollout
from mainspring.status import CampaignKind, CampaignStatus
from view.page import Page
from view.page_request import PageRequest
from view.viewer import Viewer

SIZE = 50
FACETS_KEPT_S = 10.0
"""Counts read every rollout that matches: from page to page they are kept."""
CHOICES = (*FACETS, "group")


@dataclass(frozen=True, slots=True)
class RolloutsPage:
    campaign: str
    kind: CampaignKind
    status: CampaignStatus
    rows: Sequence[ListedRollout]
    chosen: Mapping[str, str]
    """Values that the rows are narrowed to, by facet."""
    facets: Mapping[str, Sequence[tuple[str, int]]]
    num_matching: int
    is_more: bool
    """More match than are counted."""
    next_after: str | None
    after: str | None
    task_start: str
    """Common beginning of the tasks' ids, which each line leaves out."""


async def read(viewer: Viewer, asked: PageRequest) -> RolloutsPage:
    chosen = {name: asked.query[name] for name in CHOICES if asked.query.get(name)}
    async with viewer.part("the list of rollouts") as db:
        record = await campaign_named(db, asked.path["name"])
        after = asked.query.get("after") or None
        found = await rollout_pages.page(
            db,
            record.id,
            record.config,
            chosen,
            after=None if after is None else await rollout_named(db, after),
            size=SIZE,
        )

    async def count() -> Mapping[str, Sequence[tuple[str, int]]]:
        async with viewer.part("the counts beside the list of rollouts") as db:
            return await rollout_pages.facets(db, record.id, record.config, chosen)

    key = ("facets", record.id, tuple(sorted(chosen.items())))
    counts = await viewer.kept(key, FACETS_KEPT_S, count)
    return RolloutsPage(
        campaign=record.id,
        kind=record.kind,
        status=record.status,
        rows=found.rows,
        chosen=chosen,
        facets=counts,
        num_matching=min(found.num_matching, MANY),
        is_more=found.num_matching > MANY,
        next_after=found.after,
        after=after,
        task_start=common_start([row.task for row in found.rows]),
    )


def common_start(ids: Sequence[str]) -> str:
    """Up to a separator; empty for one id."""
    if len(set(ids)) < 2:
        return ""
    # Letter by letter, then cut back to a separator.
    return re.sub(r"[^-_/.:]*$", "", os.path.commonprefix(ids))  # noqa: RUF071


PAGES = (Page("/c/{name}/rollouts", "rollouts.html.j2", read),)
