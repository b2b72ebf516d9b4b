"""Pages: one file each, from the query over a frozen dataclass to its template."""

from view.pages import rollout, rollouts

ALL = (*rollout.PAGES, *rollouts.PAGES)
"""Every page, those with longer addresses first."""
