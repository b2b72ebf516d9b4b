"""Whether the evaluation that a campaign filters its tasks by can be used; before it is stored.

Imported by `campaign_launch`.
"""

from collections.abc import Mapping

from infra.db.database import Database
from infra.db.runs import campaigns
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.errors import UsageError
from mainspring.ids import campaign_id
from mainspring.status import Exclusion


def refuse_pass_rates(
    config: CampaignConfig, split: str, counts: Mapping[Exclusion | None, int]
) -> None:
    """Refuse a split without a task to use. Raises UsageError."""
    bounds = config.curriculum
    text = ", ".join(
        f"{number} {word.replace('_', ' ')}" for word, number in counts.items() if word
    )
    raise UsageError(
        f"campaign {config.name}: no task of split {split!r} has a pass rate from "
        f"{bounds.min_pass_rate:g} to {bounds.max_pass_rate:g} in evaluation "
        f"{bounds.pass_rates_of}: {text}",
        remedy="widen min_pass_rate and max_pass_rate in [curriculum], or evaluate this split "
        f"first (`mainspring campaign show {bounds.pass_rates_of}` shows what it measured)",
    )


async def check_pass_rates(db: Database, config: CampaignConfig) -> None:
    """Raises UnknownId, and UsageError when the evaluation is none or has not ended."""
    name = config.curriculum.pass_rates_of
    if not name:
        return
    source = await campaigns.get(db, campaign_id(name))
    what = f"campaign {config.name}: curriculum.pass_rates_of = {name!r}"
    if not isinstance(source.config, EvaluationConfig):
        raise UsageError(
            f"{what} is a {source.config.kind.value}, expected an evaluation",
            remedy="name a run of `mainspring eval run`",
        )
    if source.status not in campaigns.ENDS:
        raise UsageError(
            f"{what} is {source.status.value}: its pass rates are not all there",
            remedy=f"wait for its end, or `mainspring campaign cancel {name}`",
        )
