"""The start of every program of a rollout: what it is asked, and the bundle that it is from.

Imported by the activity that runs programs, and by the lives of functions beside it.
"""

import contextlib

from infra.bundles.store import BundleMissing, bundle_of
from infra.db.database import Database
from infra.db.programs import program_lives
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.run import RunConfig
from mainspring.programs.profile import Ask
from mainspring.programs.starting import instruction
from mainspring.protocol.program import RunProgramInput
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.swe_task import SweTask


def ask_of(config: RunConfig, task: AnyTask) -> Ask:
    workdir = task.workdir if isinstance(task, SweTask) else "/"
    return Ask(
        instruction=instruction(task.issue, workdir),
        issue=task.issue,
        workdir=workdir,
        max_context=config.policy.max_context,
        max_new_tokens=config.policy.max_new_tokens,
    )


async def note_bundle(db: Database, ask: RunProgramInput, agent: AgentConfig) -> None:
    # A bundle that was removed since is still mounted where this life's sandbox is.
    with contextlib.suppress(BundleMissing):
        if bundle := bundle_of(agent):
            sha256 = bundle.manifest.sha256
            await program_lives.ran_from(db, ask.rollout, ask.epoch, ask.life, sha256)
