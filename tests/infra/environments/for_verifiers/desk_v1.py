"""An environment for verifiers 0.4 with a tool server and a system prompt: open a drawer."""

import verifiers.v1 as vf

__all__ = ["DeskTaskset"]


class DeskState(vf.State):
    opened: tuple[str, ...] = ()


class DeskTools(vf.Toolset[vf.ToolsetConfig, DeskState]):
    @vf.tool
    async def open_drawer(self, name: str) -> str:
        """Open a drawer of the desk."""
        self.state.opened = (*self.state.opened, name)
        return "A coin." if name == "left" else "Nothing."


class DeskData(vf.TaskData):
    pass


class DeskTask(vf.Task[DeskData, DeskState]):
    @classmethod
    def toolsets(cls, config):
        return [DeskTools(vf.ToolsetConfig())]

    @vf.reward
    async def found(self, trace) -> float:
        return 0.5 * ("coin" in (trace.last_reply or ""))

    @vf.reward(weight=0.25)
    async def looked(self, trace) -> float:
        return float(len(trace.state.opened))


class DeskTaskset(vf.Taskset[DeskTask]):
    def load(self):
        data = DeskData(prompt="What is in the desk?", system_prompt="You are at a desk.")
        yield DeskTask(data, self.config.task)


if __name__ == "__main__":
    DeskTools.run()
