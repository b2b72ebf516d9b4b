"""Pages: one file each, from the query over a frozen dataclass to its template."""

from view.pages import (
    campaign,
    compare,
    config,
    events,
    figures,
    group,
    home,
    machines,
    rollout,
    rollouts,
    search,
    tasks,
)

ALL = (
    *(*home.PAGES, *search.PAGES, *machines.PAGES, *events.PAGES, *compare.PAGES),
    *rollout.PAGES,
    *(*rollouts.PAGES, *tasks.PAGES, *config.PAGES, *figures.PAGES, *group.PAGES, *campaign.PAGES),
)
"""Every page, those with longer addresses first."""
