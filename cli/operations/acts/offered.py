"""All actions of the viewer, in the order of their buttons.

Imported by `mainspring view`.
"""

from collections.abc import Sequence
from pathlib import Path

from cli.operations.acts.discarding import DroppingBatch, RollingBack
from cli.operations.acts.draining import Draining
from cli.operations.acts.marking import Marking
from cli.operations.acts.retries import RetryingAll, RetryingOne
from cli.operations.acts.running import Cancelling, Pausing
from cli.operations.acts.services import Place
from cli.operations.acts.setting import Setting
from view.actions.protocol import Action


def all_actions(home: Path | None) -> Sequence[Action]:
    place = Place(home)
    return (
        Marking(place),
        RetryingOne(place),
        RetryingAll(place),
        Setting(place),
        Pausing(place, paused=True),
        Pausing(place, paused=False),
        Cancelling(place),
        DroppingBatch(place),
        RollingBack(place),
        Draining(place, undo=False),
        Draining(place, undo=True),
    )
