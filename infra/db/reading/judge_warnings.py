"""Warnings of a campaign's judges: votes that cannot be read, judgements that are missing.

Read by `mainspring campaign show` and `watch`, and at the end of a run. A look of `watch` reads the
newest judgements of each judge, so that it costs the same however long a campaign runs.
"""

from infra.db.database import Database
from infra.db.rollouts import judgements
from mainspring.config.any_run import AnyRun
from mainspring.config.sft import SftConfig
from mainspring.ids import CampaignId
from mainspring.rewards.votes import NUM_RECENT, warnings_of


async def judge_warnings(
    db: Database, campaign: CampaignId, config: AnyRun, *, is_over: bool = False
) -> list[str]:
    """A sentence for each. `is_over`: no further judgement follows, so that few are enough to
    warn."""
    if isinstance(config, SftConfig):
        return []
    sentences: list[str] = []
    for name in config.judges:
        recent = await judgements.recent(db, campaign, name, NUM_RECENT)
        sentences += warnings_of(recent, 1 if is_over else NUM_RECENT)
    return sentences


async def warnings_of_all(
    db: Database, campaign: CampaignId, config: AnyRun, *, is_over: bool
) -> tuple[str, ...]:
    """The warnings, and how many judgements of the whole campaign are missing."""
    return (
        *await judge_warnings(db, campaign, config, is_over=is_over),
        *await _missing_in_all(db, campaign, config),
    )


async def _missing_in_all(db: Database, campaign: CampaignId, config: AnyRun) -> list[str]:
    """How many judgements of the whole campaign are missing, by judge."""
    if isinstance(config, SftConfig) or not config.judges:
        return []
    return [
        f"judge {judge}: {num_missing:,} of {num:,} judgements of the run are missing; they are "
        "left out of the reward"
        for judge, (num_missing, num) in (await judgements.missing(db, campaign)).items()
    ]
