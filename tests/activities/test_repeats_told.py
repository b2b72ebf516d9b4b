"""A step and a publish that are tried again are told once for each attempt after the first."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from temporalio.testing import ActivityEnvironment

from activities.training.publishing import PublishingActivities
from activities.training.training import TrainingActivities
from infra.db.database import Database
from infra.db.runs import events
from infra.policy.serving import ServedCampaigns
from mainspring.protocol.campaign import StepInput
from mainspring.status import EventKind
from tests.infra.db.store_records import CAMPAIGN, begin_campaign


def attempt(number: int) -> ActivityEnvironment:
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, attempt=number)
    return environment


async def test_attempts_after_the_first_are_told(db: Database, tmp_path: Path) -> None:
    await begin_campaign(db)
    training = TrainingActivities(db, tmp_path, cast(Any, None), 1)
    publishing = PublishingActivities(db, ServedCampaigns(db, cast(Any, None)))
    ask = StepInput(campaign=CAMPAIGN, step=4, num_groups=1)
    for number in (1, 2, 3):
        await attempt(number).run(training._tell_repeated, ask)
        await attempt(number).run(publishing._tell_repeated, CAMPAIGN, 3)
    steps = await events.newest(db, CAMPAIGN, kinds=[EventKind.STEP_REPEATED])
    assert [event.text for event in steps] == [
        "step 4 is trained again from its batch (attempt 2)",
        "step 4 is trained again from its batch (attempt 3)",
    ]
    [publish] = await events.newest(db, CAMPAIGN, kinds=[EventKind.PUBLISH_REPEATED])
    assert (publish.count, publish.text) == (2, "version 3 is published again (attempt 3)")
