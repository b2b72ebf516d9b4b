"""Where a campaign's files lie under the home folder. Paths only, no I/O.

<home>/campaigns/<campaign>/base/              the model before any training (bundled only)
<home>/campaigns/<campaign>/warm/NNNNN/        warm start in progress, removed at its end; in a
                                               reproducible campaign warm/<stamp>/NNNNN/
<home>/campaigns/<campaign>/policies/vNNNNN/   one policy version: checkpoint, and hf/
<home>/campaigns/<campaign>/batches/           the batch of the step under way, for the ranks
<home>/campaigns/<campaign>/tracking/NAME/     what an experiment tracker keeps on disk
<home>/reports/<campaign>/                     what people read: report, summary, trajectories
<home>/logs/trainer-<campaign>/rankN.log       what each rank of the trainer printed
"""

from pathlib import Path

from mainspring.ids import CampaignId

HF_DIRECTORY = "hf"
"""In a policy version: what engines load, and its tokenizer."""
MANIFEST = "checkpoint.json"
"""In a policy version: its identity, and its files with their digests."""
BASE_IDENTITY = ".mainspring.json"
"""End of the name of the file by which a base model made on the spot is known again."""


def policies(home: Path, campaign: CampaignId) -> Path:
    return campaign_folder(home, campaign) / "policies"


def base_model(home: Path, campaign: CampaignId) -> Path:
    return campaign_folder(home, campaign) / "base"


def warm_start(home: Path, campaign: CampaignId) -> Path:
    return campaign_folder(home, campaign) / "warm"


def policy(home: Path, campaign: CampaignId, version: int) -> Path:
    return policies(home, campaign) / f"v{version:05d}"


def batches(home: Path, campaign: CampaignId) -> Path:
    return campaign_folder(home, campaign) / "batches"


def tracking(home: Path, campaign: CampaignId, tracker: str) -> Path:
    return campaign_folder(home, campaign) / "tracking" / tracker


def report(home: Path, campaign: str) -> Path:
    """One folder for each campaign, evaluation, verification and regrade."""
    return home / "reports" / campaign


def trainer_logs(home: Path, campaign: CampaignId) -> Path:
    return home / "logs" / f"trainer-{campaign}"


def campaign_folder(home: Path, campaign: CampaignId) -> Path:
    return home / "campaigns" / campaign
