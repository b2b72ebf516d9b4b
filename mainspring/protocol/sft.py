"""Payloads of supervised runs."""

from pydantic import BaseModel

from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus


class SftState(BaseModel):
    """Carried over continue-as-new. What is done stands in Postgres and is read there."""

    campaign: CampaignId
    paused: bool = False


class SftSurveyInput(BaseModel):
    campaign: CampaignId
    status: CampaignStatus
    """Status that its row is to have while the workflow runs."""


class SftSurvey(BaseModel):
    """Where a supervised run stands in the store."""

    version: int | None
    """The newest version, which is also its number of steps; None: not even the first is made."""
    num_steps: int
    """Steps of the whole run."""
    next_version: int
    """The step after which the next version is made."""


class SftStepsInput(BaseModel):
    campaign: CampaignId
    version: int
    """The steps after this version are asked for."""
    last: int
    """The last of them, after which a version is made."""


class SftStepsResult(BaseModel):
    version: int
    """The newest version: `last`, or an earlier one where the run was paused."""
    loss: float | None
    """Loss of the last step that was computed."""
