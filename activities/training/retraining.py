"""Where a campaign stands that trains another one's batches again, for its workflow.

Imported by the trainer worker, which runs that workflow.
"""

from activities.implements import implements
from infra.db.database import Database
from infra.db.runs import campaigns
from mainspring.protocol.activities import SURVEY_RETRAIN
from mainspring.protocol.retrain import RetrainSurvey, RetrainSurveyInput


class RetrainActivities:
    def __init__(self, db: Database) -> None:
        self._db = db

    @implements(SURVEY_RETRAIN)
    async def survey_retrain(self, ask: RetrainSurveyInput) -> RetrainSurvey:
        """Also corrects the row, which may have the end of a run before this one was reset, or the
        pause that a person ended."""
        record = await campaigns.get(self._db, ask.campaign)
        assert record.version is not None, f"{ask.campaign} is stored with its first version"
        if record.status is not ask.status:
            await campaigns.set_status(self._db, ask.campaign, ask.status)
        return RetrainSurvey(version=record.version, num_steps=record.num_steps)
