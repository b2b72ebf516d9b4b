"""Whether the sandboxes of this machine can run a campaign's tasks and its client, asked before it
starts.

Invariant: asked only by commands that bring up their own node, and for what the campaign will
really use; without it each rollout would be retried for minutes before a fault tells the same. A
command for a team's workers cannot see their machines and does not ask.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from infra.bundles.store import mounts_for
from infra.db.database import Database
from infra.db.tasks import selections
from infra.sandbox.backends import BACKENDS, Backends, Found, available_backends
from infra.sandbox.protocol import BackendUnavailable
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.run import RunConfig
from mainspring.ids import TaskId
from mainspring.tasks.sandbox_choice import BWRAP, DOCKER, backend_name
from mainspring.tasks.swe_task import SWE

_TITLES = {DOCKER: "Docker", BWRAP: "bubblewrap"}


async def backends_here() -> Backends:
    """Each backend of this machine, or why it cannot run."""
    return await _probed(tuple(BACKENDS))


async def probe_here(name: str, here: Backends) -> Found:
    """Also one of your own, which only some campaigns ask for."""
    if name in here:
        return here[name]
    return (await _probed((name,)))[name]


async def _probed(names: Sequence[str]) -> Backends:
    with tempfile.TemporaryDirectory(prefix="mainspring-probe-") as nowhere:
        # Below it: a backend of one's own gets a directory beside this one.
        return await available_backends(Path(nowhere) / "sandboxes", names=names)


def require_bundles(config: RunConfig) -> None:
    """Raises BundleMissing when a client that may play is not installed here."""
    if isinstance(config, CampaignConfig | EvaluationConfig):
        for agent in config.agent_sections.values():
            mounts_for(agent)


async def require_backends(
    db: Database, config: RunConfig, used: Sequence[TaskId], here: Backends
) -> None:
    """Raises BackendUnavailable when one that a task needs does not work here."""
    with_image = await selections.num_with_image(db, used)
    of_kind = (await selections.kinds(db, used)).get(SWE)
    in_sandboxes = 0 if of_kind is None else of_kind.num_tasks
    for number, image in ((with_image, "an image"), (in_sandboxes - with_image, None)):
        name = backend_name(config.sandbox.backend, image)
        if not number:
            continue
        backend = await probe_here(name, here)
        if isinstance(backend, BackendUnavailable):
            raise BackendUnavailable(
                f"campaign {config.name}: {number} of its {len(used)} tasks have "
                f"{image or 'no image'} and need {_TITLES.get(name, name)}: {backend.message}",
                remedy=backend.remedy,
            )
