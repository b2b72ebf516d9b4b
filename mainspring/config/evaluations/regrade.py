"""A regrade: the run that grades the stored patches of an earlier run again."""

from typing import Annotated, Literal

from pydantic import Field

from mainspring.config.run import RunConfig
from mainspring.config.section import CONCURRENCY, MANY, Within
from mainspring.status import CampaignKind


class RegradeConfig(RunConfig):
    """A regrade; it takes from its source what it does not name."""

    kind: Literal[CampaignKind.REGRADE] = Field(default=CampaignKind.REGRADE, exclude=True)
    of: Annotated[str, Field(min_length=1)]
    """The run whose patches are graded again."""
    split: str = "test"
    """Split under which its rollouts are listed: that of an evaluation, or "test"."""
    concurrency: Annotated[int, Within(le=MANY)] = Field(default=CONCURRENCY, ge=1)
    """Gradings in flight at once."""
