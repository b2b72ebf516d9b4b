"""All actions of the viewer, in the order of their buttons.

Imported by `mainspring view`.
"""

from collections.abc import Sequence
from pathlib import Path

from cli.operations.acts.discarding import DropBatch, RollBackStep
from cli.operations.acts.draining import DrainNode
from cli.operations.acts.marking import MarkRollout
from cli.operations.acts.retries import RetryListed, RetryRollout
from cli.operations.acts.running import CancelRun, PauseRun
from cli.operations.acts.services import Place
from cli.operations.acts.setting import SetFields
from view.actions.protocol import Action


def all_actions(home: Path | None) -> Sequence[Action]:
    place = Place(home)
    return (
        MarkRollout(place),
        RetryRollout(place),
        RetryListed(place),
        SetFields(place),
        PauseRun(place, paused=True),
        PauseRun(place, paused=False),
        CancelRun(place),
        DropBatch(place),
        RollBackStep(place),
        DrainNode(place, undo=False),
        DrainNode(place, undo=True),
    )
