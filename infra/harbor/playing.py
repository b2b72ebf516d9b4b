"""The function that plays a rollout with an agent of Harbor: made, set up, run.

Invariants: it returns when the agent has ended, however its client ended, since the tree is judged
and no exit code; a client that was killed ends this process, too. Harbor is imported when the
function is called, so that this module can be imported anywhere. Called in the process of its
rollout, by its path.
"""
# pyright: reportMissingImports=false

import os
import signal
import tempfile
from pathlib import Path

from infra.harbor.installation import require
from mainspring.programs.functions import FunctionSandbox
from mainspring.programs.harbor import HarborStart
from mainspring.tasks.swe_task import SweTask


def variables_of(model_url: str, key: str) -> dict[str, str]:
    """Variables of the process of an agent that asks the model from there."""
    root = model_url.removesuffix("/v1")
    return {
        "OPENAI_BASE_URL": model_url,
        "OPENAI_API_BASE": model_url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": root,
        "ANTHROPIC_API_KEY": key,
        "GOOGLE_GEMINI_BASE_URL": root,
        "GEMINI_API_KEY": key,
    }


async def play(
    task: SweTask,
    model_url: str,
    key: str,
    sandbox: FunctionSandbox,
    options: dict[str, object],
    rollout: str,
) -> None:
    """Raises ConfigError, and what the agent raises."""
    require()
    start = HarborStart.model_validate(options)
    # litellm fetches a price list at its import, unless it is told to use its own.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    if start.inside is None:
        os.environ.update(variables_of(model_url, key))

    from harbor.agents.installed.base import NonZeroAgentExitCodeError
    from harbor.models.agent.context import AgentContext

    from infra.harbor.environment import SandboxEnvironment
    from infra.harbor.making import make

    folder = Path(tempfile.mkdtemp(prefix="harbor-"))
    inside = start.inside
    environment = SandboxEnvironment(
        sandbox, rollout, task.workdir, folder, inside.prelude if inside else None
    )
    agent = make(start, environment.trial_paths.agent_dir, model_url)
    await environment.start()
    for path, text in (inside.files if inside else {}).items():
        await environment.put(text, path)
    with environment.scoped_exec_env(inside.environment if inside else {}):
        await agent.setup(environment)
        try:
            await agent.run(start.instruction, environment, AgentContext())
        except NonZeroAgentExitCodeError as error:
            if environment.was_killed:
                print(f"\nthe client of {start.agent} was killed")
                # Told as the end of this process: kills of clients are followed by as few lives.
                os.kill(os.getpid(), signal.SIGKILL)
            # Clients end with an error after a good fix, and with 0 after none.
            print(f"\n{type(error).__name__}: the client of {start.agent} ended with an error")
