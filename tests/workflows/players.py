"""Who plays rollouts of tests that kill: a program, a function, an agent of Harbor, one outside,
and an agent that the workflow plays. Undisturbed, each asks three or four times."""

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import httpx
import psutil
import service_rollouts
from function_rollouts import config_of, function, game_task, processes_of
from harbor_rollouts import (
    BLOCKS,
    MAX_CONTEXT,
    ROOMY,
    SOLVER,
    agent,
    fixes_with,
    harbor_or_skip,
    installed,
)
from outside import Outside, remote, work
from program_checks import EDIT, THREE
from program_cluster import ProgramCluster, own_program
from scripted import SUBMIT, bash, called
from temporalio.client import WorkflowHandle

from infra.db.programs import campaign_keys
from mainspring.ids import CampaignId, GroupId, RolloutId
from mainspring.protocol.rollout import RolloutResult

COUNTED = ("1", "2", "3")
OWN_TOOL = Path(__file__).parents[2] / "examples" / "own-tool"


@dataclass(slots=True)
class Play:
    """A rollout under way."""

    campaign: CampaignId
    group: GroupId
    rollout: RolloutId
    handle: WorkflowHandle[Any, Any]
    key: str | None = None
    """Of its campaign, for agents outside."""
    outside: list[asyncio.Task[None]] = field(default_factory=list)
    """Agents that play it elsewhere."""

    async def result(self) -> RolloutResult:
        result, *_ = await asyncio.gather(self.handle.result(), *self.outside)
        return result


@dataclass(frozen=True)
class Player:
    """A program in the sandbox."""

    name: str
    fields: dict[str, Any] = field(default_factory=own_program, compare=False)
    """Of [agent]."""
    replies: tuple[str, ...] = THREE
    options: dict[str, Any] = field(default_factory=dict, compare=False)
    """Of its rollout, or of a client outside."""
    reward: ClassVar[float] = 1.0
    is_exact: ClassVar[bool] = True
    """It asks the same in each rollout."""
    asks_from: ClassVar[str] = "sandbox"
    """Or "node", beside it; "outside"; "", nowhere: the workflow asks for it."""
    num_processes: ClassVar[int] = 0
    """Beside the node. They die with it, and another life follows."""
    codes: ClassVar[list[int | None]] = [137, 0]
    """Ends of its lives when its own process is killed."""

    def say(self, prompt: str, turn: int) -> str:
        return self.replies[turn]

    def prepare(self, monkeypatch: Any) -> None:
        """Make it importable. Skips the test where it cannot run."""

    async def start(self, cluster: ProgramCluster) -> Play:
        campaign, group, [rollout] = await self.make(cluster)
        handle = await cluster.workers.start(rollout, campaign, group)
        return Play(campaign, group, rollout, handle)

    async def make(self, cluster: ProgramCluster) -> tuple[CampaignId, GroupId, list[RolloutId]]:
        return await cluster.workers.make_rollouts(program=self.fields, **self.options)

    async def kill(self, cluster: ProgramCluster, play: Play) -> None:
        """Kill its own process."""
        children = await asyncio.to_thread(psutil.Process().children, recursive=True)
        [found] = [each for each in children if _is_program(each)]
        found.kill()


def _is_program(process: psutil.Process) -> bool:
    try:
        return "/tmp/agent.py" in process.cmdline()[1:2]
    except psutil.NoSuchProcess:
        return False


class Function(Player):
    """A function of a repository, in a process beside the node."""

    asks_from = "node"
    num_processes = 1
    codes: ClassVar[list[int | None]] = [-9, 0]

    async def kill(self, cluster: ProgramCluster, play: Play) -> None:
        for each in processes_of(play.rollout):
            each.kill()


class Game(Function):
    """A function of a game, with a command that it started beside itself."""

    reward = 3.0
    num_processes = 2

    async def make(self, cluster: ProgramCluster) -> tuple[CampaignId, GroupId, list[RolloutId]]:
        config = config_of(self.fields)
        return await cluster.workers.store(config, game_task(config.name))


class Harbor(Function):
    """The example's agent of Harbor, beside the node."""

    def prepare(self, monkeypatch: Any) -> None:
        harbor_or_skip()
        monkeypatch.syspath_prepend(str(SOLVER))


class Client(Harbor):
    """A client that Harbor's agent of this name runs in the sandbox."""

    is_exact = False

    def say(self, prompt: str, turn: int) -> str:
        return fixes_with(self.name)(prompt, turn)

    def prepare(self, monkeypatch: Any) -> None:
        harbor_or_skip()
        installed(self.name)


class Remote(Player):
    """An agent outside. When it is killed another one takes what is offered again."""

    asks_from = "outside"
    codes: ClassVar[list[int | None]] = [None, None]

    async def start(self, cluster: ProgramCluster) -> Play:
        play = await super().start(cluster)
        play.key = await campaign_keys.make(cluster.workers.db, play.campaign)
        play.outside.append(asyncio.create_task(self._work(cluster, play, "first")))
        return play

    async def make(self, cluster: ProgramCluster) -> tuple[CampaignId, GroupId, list[RolloutId]]:
        return await cluster.workers.make_rollouts(program=self.fields)

    async def kill(self, cluster: ProgramCluster, play: Play) -> None:
        play.outside.pop().cancel()
        play.outside.append(asyncio.create_task(self._work(cluster, play, "second")))

    async def _work(self, cluster: ProgramCluster, play: Play, name: str) -> None:
        assert play.key is not None
        async with httpx.AsyncClient(base_url=cluster.url, timeout=120.0) as http:
            session = await Outside(http, play.key).take(name=name)
        assert session["base_urls"]["openai"] == f"{cluster.url}/v1"
        patch = await work(session, **self.options)
        async with httpx.AsyncClient(base_url=cluster.url, timeout=120.0) as http:
            assert (await Outside(http, play.key).finish(session, patch=patch)).status_code == 200


class Agent(Player):
    """An agent that the workflow plays itself."""

    asks_from = ""


class Acting(Agent):
    """An agent in the example's service, which the node starts."""

    async def make(self, cluster: ProgramCluster) -> tuple[CampaignId, GroupId, list[RolloutId]]:
        return await service_rollouts.make(cluster.workers)

    async def kill(self, cluster: ProgramCluster, play: Play) -> None:
        """Kill the service."""
        [service] = service_rollouts.processes_of(play.campaign)
        service.kill()


class WithPythonTool(Agent):
    """An agent one of whose tools runs in Python, in a process beside the node."""

    def prepare(self, monkeypatch: Any) -> None:
        monkeypatch.syspath_prepend(str(OWN_TOOL))

    async def kill(self, cluster: ProgramCluster, play: Play) -> None:
        """Kill the tool's process."""
        for each in processes_of(play.rollout):
            each.kill()


class Shortening(Agent):
    """Its requests leave out turns, so a prompt does not tell how many there were."""

    def say(self, prompt: str, turn: int) -> str:
        return self.replies[max(map(int, re.findall(r"# step (\d+)", prompt)), default=0)]


class Summarising(Shortening):
    """It is asked for a summary, which is a turn of its own."""

    def say(self, prompt: str, turn: int) -> str:
        if "Please sum up." in prompt[-60:]:
            return "I printed numbers: see # step 1."
        return super().say(prompt, turn)


PROGRAM = Player("program")
FUNCTION = Function("function", function("fix"), ("$ cat calc.py", f"$ {EDIT}", "done"))
GAME = Game("game", function("count", leaves="sleep 3600"), COUNTED)
_ROOM = {"sandbox": ROOMY, "max_context": MAX_CONTEXT, "step_limit": 12}
HARBOR = Harbor("harbor", agent("solver:Solver"), BLOCKS, _ROOM)
CLIENTS = tuple(
    Client(name, agent(name), (), _ROOM) for name in ("mini-swe-agent", "claude-code", "codex")
)
REMOTE = Remote("remote", remote(), options={"max_retries": 60})
LEAVING = Remote("remote", remote(silence_s=3.0))
"""What it leaves is soon offered again."""
IMPATIENT = Remote("remote", remote(), options={"max_retries": 0})
"""It sends nothing twice."""
APPENDING = (bash("echo one >> calc.txt"), bash(EDIT), bash("cat calc.txt"), SUBMIT)
AGENT = Agent("agent", {"kind": "bash"}, APPENDING)
"""A command of it that ran twice would be seen."""
TOOLS = Agent(
    "tools",
    {"kind": "tools"},
    (
        called("bash", command="echo one >> calc.txt") + called("view", path="calc.txt"),
        called("edit", path="calc.py", old="a - b", new="a + b"),
        called("bash", command="cat calc.txt") + called("edit", path="gone", old="a", new="b"),
        called("submit"),
    ),
)
"""It calls tools, also several at once."""
PYTHON_TOOL = WithPythonTool(
    "python-tool",
    {"kind": "tools", "tools": ["bash", "edit", "submit", "checklist:Checklist"]},
    (
        called("bash", command="echo one >> calc.txt") + called("checklist", add="edit"),
        called("edit", path="calc.py", old="a - b", new="a + b") + called("checklist", done=2),
        called("bash", command="cat calc.txt") + called("checklist", add="submit"),
        called("submit"),
    ),
)
"""Its list tells what a call did that ran twice, or a process that forgot."""
SERVICE = Acting("service", replies=tuple(map(service_rollouts.says, service_rollouts.WINS)))
LONG = "seq 1 300 # step"
SHORTENING = Shortening(
    "shortening",
    {"kind": "bash", "context": {"kind": "head_tail"}},
    (bash(f"{LONG} 1"), bash(f"{EDIT}; {LONG} 2"), bash(f"{LONG} 3"), SUBMIT),
    {"max_context": 4400},
)
"""Its third and fourth requests leave out what came before."""
SUMMARISING = Summarising(
    "summarising",
    {"kind": "bash", "context": {"kind": "summarise", "summary_prompt": "Please sum up."}},
    (bash(f"{LONG} 1"), bash(f"{EDIT}; {LONG} 2"), SUBMIT),
    {"max_context": 4400},
)
"""Its third request is for a summary of the first turn."""
