"""Steps of a run as pages need them: each is read once, since a finished one does not change.

Imported by `pages`.
"""

from collections.abc import Sequence

from infra.db.reading import trained_steps
from infra.db.reading.trained_steps import Step
from mainspring.ids import CampaignId
from view.viewer import Viewer


async def steps_of(viewer: Viewer, campaign: CampaignId) -> Sequence[Step]:
    """Those that are done. What a step was trained on takes long to count."""
    known = viewer.steps.setdefault(campaign, {})
    async with viewer.part("the steps of the run") as db, db.snapshot() as connection:
        times = await trained_steps.times(connection, campaign)
        lacking = [n for n, end in times if n not in known or known[n].finished_at != end]
        if lacking:
            read = await trained_steps.read(connection, campaign, lacking)
            known |= {step.step: step for step in read}
    return [known[number] for number, _ in times if number in known]
