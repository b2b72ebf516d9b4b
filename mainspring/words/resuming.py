"""Commands that resume a stored run, as they are told to people.

Pure. Imported by what tells why a run does not move (`waits`), and by commands.
"""

from collections.abc import Mapping

from mainspring.status import CampaignKind

RESUMED_BY: Mapping[CampaignKind, str] = {
    CampaignKind.TRAIN: "campaign start",
    CampaignKind.EVAL: "eval run",
    CampaignKind.VERIFY: "tasks verify",
    CampaignKind.REGRADE: "eval regrade",
    CampaignKind.SFT: "sft",
}
"""Commands that resume a run of the kind, given its --name."""


def resumed_by(kind: CampaignKind, name: str, retrained_from: str | None = None) -> str:
    """Command that resumes a run. `retrained_from`: the campaign whose batches it trains again."""
    if retrained_from is not None:
        return f"mainspring campaign retrain {retrained_from} --as {name}"
    return f"mainspring {RESUMED_BY[kind]} --name {name}"
