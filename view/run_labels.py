"""The few settings of a run that a reader wants first, by label.

Pure. Imported by `pages`.
"""

import json

from infra.db.runs.campaigns import CampaignRecord
from mainspring.config.any_run import AnyRun
from mainspring.config.campaign import CampaignConfig
from mainspring.config.sft import SftConfig


def labels(record: CampaignRecord) -> dict[str, str]:
    """A retrained campaign has the steps and fields that it was given."""
    return {"seed": str(record.config.seed)} | _labels(record.config) | _retrained(record)


def _labels(config: AnyRun) -> dict[str, str]:
    if isinstance(config, SftConfig):
        return {
            "model": config.policy.model,
            "data": ", ".join(source.named for source in config.data.sources),
            "batch": f"{config.trainer.batch_size} samples",
            "optimizer": config.trainer.optimizer.name.value,
        }
    shared = {"model": config.policy.model, "tasks": config.tasks.told}
    if not isinstance(config, CampaignConfig):
        return shared
    trainer = config.trainer
    return shared | {
        "steps": str(trainer.num_steps),
        "batch": f"{trainer.groups_per_step} groups of {trainer.group_size}",
        "staleness": f"at most {trainer.max_staleness}",
        "optimizer": trainer.optimizer.name.value,
    }


def _retrained(record: CampaignRecord) -> dict[str, str]:
    """Labels of a campaign that trains another one's batches again."""
    if record.parent is None or record.retrained_from is None:
        return {}
    given = [f"{field} = {json.dumps(value)}" for field, value in record.parent.given.items()]
    labels = {"retrained from": record.retrained_from, "steps": str(record.num_steps)}
    return labels | ({"given": ", ".join(given)} if given else {})
