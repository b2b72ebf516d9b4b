"""Payloads of campaigns that train the stored batches of another one again."""

from pydantic import BaseModel

from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus


class RetrainState(BaseModel):
    """Carried over continue-as-new. What is done stands in Postgres and is read there."""

    campaign: CampaignId
    paused: bool = False


class RetrainSurveyInput(BaseModel):
    campaign: CampaignId
    status: CampaignStatus
    """Status that its row is to have while the workflow runs."""


class RetrainSurvey(BaseModel):
    """Where such a campaign stands in the store."""

    version: int
    """The newest version, which is also its last step that is done."""
    num_steps: int
    """The last step of the whole campaign."""
