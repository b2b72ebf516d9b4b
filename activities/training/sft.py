"""Where a supervised run stands, for its workflow. Imported by the rollout worker."""

from activities.implements import implements
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.training import policies, sft
from mainspring.config.sft import SftConfig
from mainspring.protocol.activities import SURVEY_SFT
from mainspring.protocol.sft import SftSurvey, SftSurveyInput
from mainspring.status import CampaignStatus


class SftActivities:
    def __init__(self, db: Database) -> None:
        self._db = db

    @implements(SURVEY_SFT)
    async def survey_sft(self, ask: SftSurveyInput) -> SftSurvey:
        """Also corrects the row, which may have the end of a run before this one was reset, or the
        pause that a person ended."""
        record = await campaigns.get(self._db, ask.campaign)
        assert isinstance(record.config, SftConfig), f"{ask.campaign} is a {record.kind}"
        trainer = record.config.trainer
        num_steps = trainer.steps_of((await sft.data_of(self._db, ask.campaign)).num_samples)
        newest = await policies.latest_policy(self._db, ask.campaign)
        version = None if newest is None else newest.version
        status = CampaignStatus.WARMING_UP if version is None else ask.status
        if record.status is not status:
            await campaigns.set_status(self._db, ask.campaign, status)
        every = trainer.checkpoint_every
        return SftSurvey(
            version=version,
            num_steps=num_steps,
            next_version=min(num_steps, ((version or 0) // every + 1) * every),
        )
