"""Section [tasks]: which tasks a campaign goes over."""

from typing import Annotated

from pydantic import Field

from mainspring.config.section import BUNDLED, MANY, Section, Within
from mainspring.status import Unverified


class TasksConfig(Section):
    source: str = BUNDLED
    """"bundled" for the generated tasks, else the name of an imported task source."""
    num_train: Annotated[int, Within(le=10 * MANY)] = Field(default=2048, ge=1)
    """Size of the split "train" (bundled tasks only)."""
    num_heldout: Annotated[int, Within(le=10 * MANY)] = Field(default=128, ge=1)
    """Size of the split "heldout": new instances of the training templates (bundled tasks only)."""
    num_heldout_templates: Annotated[int, Within(le=10 * MANY)] = Field(default=64, ge=0)
    """Size of the split "heldout_templates": templates that never occur in training (bundled tasks
    only)."""
    unverified: Unverified = Unverified.SKIP
    """Treatment of tasks that are not verified (bundled ones need no verification)."""
