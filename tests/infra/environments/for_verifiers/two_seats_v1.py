"""An environment for verifiers 0.4 in which two agents play."""

import verifiers.v1 as vf

__all__ = ["TalkEnv", "TalkTaskset"]


class TalkTaskset(vf.Taskset):
    def load(self):
        yield vf.Task(vf.TaskData(prompt="Talk."))


class TalkConfig(vf.EnvConfig):
    buyer: vf.AgentConfig = vf.AgentConfig()
    seller: vf.AgentConfig = vf.AgentConfig()


class TalkEnv(vf.Env[TalkConfig]):
    async def run(self, task, agents) -> None:
        await agents.buyer.run(task)
        await agents.seller.run(task)
