"""Where a campaign's files lie under the home folder. Paths only, no I/O.

<home>/campaigns/<campaign>/base/              the model before any training (bundled only)
<home>/campaigns/<campaign>/warm/NNNNN/        warm start in progress, removed at its end
<home>/campaigns/<campaign>/policies/vNNNNN/   one policy version: checkpoint, and hf/
"""

from pathlib import Path

from mainspring.ids import CampaignId


def base_model(home: Path, campaign: CampaignId) -> Path:
    return _campaign(home, campaign) / "base"


def warm_start(home: Path, campaign: CampaignId) -> Path:
    return _campaign(home, campaign) / "warm"


def policy(home: Path, campaign: CampaignId, version: int) -> Path:
    return _campaign(home, campaign) / "policies" / f"v{version:05d}"


def _campaign(home: Path, campaign: CampaignId) -> Path:
    return home / "campaigns" / campaign
