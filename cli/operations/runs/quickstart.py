"""The quickstart's campaign: the bundled file with a name and a seed, run by `local_campaign`."""

from pathlib import Path

import bundled
from mainspring.algorithms.schedule import Schedule
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.reading import load_campaign
from mainspring.ids import campaign_id

TEMPLATE = Path(bundled.__file__).parent / "quickstart.toml"


def bundled_campaign(seed: int, schedule: Schedule = Schedule.FASTEST) -> CampaignConfig:
    """A schedule other than the fastest is part of the name: one home may hold both."""
    suffix = "" if schedule is Schedule.FASTEST else f"-{schedule}"
    name = campaign_id(f"quickstart-s{seed}{suffix}")
    changed = {"name": name, "seed": seed, "schedule": schedule}
    return load_campaign(TEMPLATE).model_copy(update=changed)
