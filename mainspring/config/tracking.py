"""Section [tracking] of a campaign file: experiment trackers that get a campaign's figures too.

Invariant: no secret stands here; trackers read theirs from the environment of the trainer.
"""

from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from mainspring.config.section import Added, Section, Within

MAX_TRACES = 1000
"""Traces of one step: each is read whole from the store."""


class WandbMode(StrEnum):
    ONLINE = "online"
    """Sent to the server; the trainer's environment has WANDB_API_KEY."""
    OFFLINE = "offline"
    """Written below `<home>/campaigns/NAME/tracking/wandb`; `wandb sync` sends it later."""


def _usable(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.username or parts.password:
        raise ValueError(
            "a name or a password does not belong into a campaign file: set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD where the trainer runs"
        )
    if parts.scheme in ("", "file"):
        raise ValueError(
            f"{uri!r} is a folder, which MLflow does not write any more: give a server as "
            '"http://host:5000", or a file as "sqlite:////data/mlflow.db"'
        )
    if parts.scheme == "sqlite" and not parts.path.startswith("//"):
        raise ValueError(
            f"{uri!r} has a relative path, and trainers have a working directory of their own: "
            'write four slashes, as in "sqlite:////data/mlflow.db"'
        )
    return uri


class MlflowConfig(Section):
    """Figures for MLflow, by the extra `mlflow`. The campaign is one run, which a restart
    continues."""

    uri: Annotated[str, Field(min_length=1), AfterValidator(_usable)]
    """Tracking URI as MLflow has it: "http://host:5000" or "sqlite:////data/mlflow.db"."""
    experiment: str = Field(default="mainspring", min_length=1)
    """Name of the experiment, which is made if there is none."""
    traces_per_step: Annotated[int, Within(le=MAX_TRACES), Added.SINCE] = Field(default=0, ge=0)
    """Number of rollouts of each step that are sent as traces, with a span for each turn, reply,
    command, judgement and grade: in turn the one of the highest reward, that of the lowest, and one
    that was masked. 0: none. A supervised run has no rollouts, and must leave it at 0."""


class WandbConfig(Section):
    """Figures for Weights & Biases, by the extra `wandb`. The campaign is one run, which a restart
    continues."""

    project: str = Field(default="mainspring", min_length=1)
    """Name of the project."""
    entity: str | None = Field(default=None, min_length=1)
    """User or team that has the project. Unset: the key's own."""
    mode: WandbMode = WandbMode.ONLINE
    """Whether figures are sent at once."""


class TrackingConfig(Section):
    mlflow: MlflowConfig | None = None
    wandb: WandbConfig | None = None
