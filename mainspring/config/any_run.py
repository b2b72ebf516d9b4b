"""A run of any kind (campaign, supervised run, evaluation, verification or regrade) by its `kind`.

Invariants: `kind` is one of the words of `CampaignKind`, which stand in Postgres and on the command
line; it is never part of a stored configuration, because the row has it. Everything that differs by
kind is one `match` over this union, closed by `assert_never`.
"""

from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.evaluations.regrade import RegradeConfig
from mainspring.config.evaluations.verification import VerificationConfig
from mainspring.config.section import STORED
from mainspring.config.sft import SftConfig
from mainspring.errors import UsageError
from mainspring.status import CampaignKind

Measurement = EvaluationConfig | VerificationConfig | RegradeConfig
"""Runs that train nothing."""
Playing = CampaignConfig | Measurement
"""Runs that have rollouts."""
AnyRun = Annotated[Playing | SftConfig, Field(discriminator="kind")]
_READER: TypeAdapter[AnyRun] = TypeAdapter(AnyRun)


def read_run(kind: CampaignKind, raw: dict[str, Any]) -> AnyRun:
    """A configuration that was accepted before. Raises pydantic's ValidationError."""
    return _READER.validate_python(raw | {"kind": kind}, context=STORED)


def training(run: AnyRun) -> CampaignConfig:
    """`run`, which must be a campaign. Raises UsageError for other kinds."""
    if isinstance(run, CampaignConfig):
        return run
    if isinstance(run, SftConfig):
        raise UsageError(
            f"{run.name} is a supervised run: it has no rollouts, planned batches or evaluations",
            remedy="give the name of a training campaign; of a supervised run "
            f"`mainspring campaign show {run.name}` tells everything",
        )
    raise UsageError(
        f"campaign {run.name} trains nothing (its kind is {run.kind.value})",
        remedy="give the name of a training campaign",
    )


def ranks_of(run: AnyRun) -> CampaignConfig:
    """Configuration of the ranks of a run that trains. Raises UsageError for other kinds."""
    return run.ranks if isinstance(run, SftConfig) else training(run)


def concurrency_of(run: AnyRun) -> int:
    """Rollouts in flight at once; in a campaign, those of one evaluation."""
    if isinstance(run, SftConfig):
        return 0
    return run.evaluation.concurrency if isinstance(run, CampaignConfig) else run.concurrency


def with_concurrency(run: AnyRun, concurrency: int) -> AnyRun:
    if isinstance(run, SftConfig):
        return run
    if not isinstance(run, CampaignConfig):
        return run.model_copy(update={"concurrency": concurrency})
    evaluation = run.evaluation.model_copy(update={"concurrency": concurrency})
    return run.model_copy(update={"evaluation": evaluation})
