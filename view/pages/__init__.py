"""Pages: one file each, from the query over a frozen dataclass to its template."""

from view.pages import campaign, group, home, machines, rollout, rollouts

ALL = (
    *(*home.PAGES, *machines.PAGES, *rollout.PAGES),
    *(*rollouts.PAGES, *group.PAGES, *campaign.PAGES),
)
"""Every page, those with longer addresses first."""
