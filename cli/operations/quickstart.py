"""The quickstart's campaign: the bundled file with a name and a seed, run by `local_campaign`."""

from pathlib import Path

import bundled
from mainspring.config.campaign import CampaignConfig
from mainspring.config.reading import load_campaign
from mainspring.ids import campaign_id

TEMPLATE = Path(bundled.__file__).parent / "quickstart.toml"


def bundled_campaign(seed: int) -> CampaignConfig:
    name = campaign_id(f"quickstart-s{seed}")
    return load_campaign(TEMPLATE).model_copy(update={"name": name, "seed": seed})
