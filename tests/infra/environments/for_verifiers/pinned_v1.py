"""An environment for verifiers 0.4 whose seat asks for a program as its harness."""

import verifiers.v1 as vf

__all__ = ["PinnedEnv", "PinnedTaskset"]


class PinnedTaskset(vf.Taskset):
    def load(self):
        yield vf.Task(vf.TaskData(prompt="Run it."))


class PinnedConfig(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig(harness={"id": "bash"})


class PinnedEnv(vf.Env[PinnedConfig]):
    async def run(self, task, agents) -> None:
        await agents.solver.run(task)
