"""Fields of all configurations and tasks that are stored, by the dotted path of each.

    python -m tests.mainspring.config.record_fields

records those of this version as those of the oldest program that works on the store: after a
release whose store refuses older ones. Imported by `test_stored_form`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.evaluations.regrade import RegradeConfig
from mainspring.config.evaluations.verification import VerificationConfig
from mainspring.config.section import Added
from mainspring.config.sft import SftConfig
from mainspring.tasks.own_task import OwnTask
from mainspring.tasks.swe_task import SweTask

FILE = Path(__file__).parent / "oldest-fields.json"
STORED = (
    *(CampaignConfig, EvaluationConfig, VerificationConfig, RegradeConfig, SftConfig),
    *(SweTask, OwnTask),
)


def unmarked(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Without those that are marked as added, and what is in them."""
    for name, field in model.model_fields.items():
        if Added.SINCE in field.metadata:
            continue
        yield prefix + name
        for section in sections_in(field.annotation):
            yield from unmarked(section, f"{prefix}{name}.")


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(getattr(annotation, "__value__", annotation)):
        yield from sections_in(part)


if __name__ == "__main__":
    found = {model.__name__: sorted(set(unmarked(model))) for model in STORED}
    FILE.write_text(json.dumps(found, indent=0) + "\n")
