"""Rollouts that programs play: a gateway beside the workers, and an engine that says what a test
tells it to. The fake stands at the engine's seam; tokens, store, workflow and sandbox are real."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster import NODE, Cluster, Host, bwrap_or_skip, cluster_of
from scripted import Said

from cli.operations.machine.embedded_stack import StackInfo
from gateway.app import make_app
from gateway.durable import DurableAnswers
from gateway.server import Bounds, serve
from gateway.sessions.session_desk import SessionDesk
from infra import gateway_addresses
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.listening import Notices
from infra.db.programs.model_requests import CHANNEL
from infra.db.runs import campaigns
from infra.policy.model.tokenizer import ChatTokenizer
from infra.policy.protocol import ANY, Completion, Keep, NoEngineAnswered, SamplingParams, Versions
from infra.policy.serving import CampaignPolicy, in_tokens
from infra.policy.weight_label import WeightLabel
from mainspring.config.settings import load_settings
from mainspring.ids import CampaignId, NodeId
from mainspring.trajectories.turns import PartialCall, VersionSpan
from tests.conftest import Standing
from tests.infra.policy.chat_templates import tokenizer_of

AGENT = Path(__file__).parents[2] / "examples" / "own-program" / "agent.py"
LOGPROB = -0.25


def own_program(source: str | None = None) -> dict[str, Any]:
    """Fields of [agent]: the example's program, or another one in Python."""
    text = AGENT.read_text() if source is None else source
    command = f"cat > /tmp/agent.py <<'PROGRAM'\n{text}\nPROGRAM\npython3 /tmp/agent.py \"$TASK\""
    return {"kind": "command", "options": {"command": command}}


def calling(command: str) -> str:
    """A reply that calls the example's tool."""
    quoted = command.replace("\\", "\\\\").replace('"', '\\"')
    call = f'{{"name": "bash", "arguments": {{"command": "{quoted}"}}}}'
    return f"<tool_call>\n{call}\n</tool_call>"


class ScriptedEngine:
    """`say(prompt, turn)` gives a reply to the text of a prompt and the number of replies in it."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._rollouts: set[str] = set()
        self._others = frozenset[str]()
        self.forget()

    def forget(self, others: Collection[str] = ()) -> None:
        """As new: between tests. Rollouts that asked before do not count, nor those of campaigns in
        `others`: one that was cancelled may still be ending, and a reply that cannot be
        given is retried for a day."""
        self._earlier = frozenset(self._rollouts)
        self._others |= frozenset(others)
        self.say: Callable[[str, int], str] = lambda prompt, turn: "done"
        self._said = Said()
        self.asked: list[tuple[int, ...]] = []
        """Prompts, each once: those of replies that were given."""
        self.hold: Callable[[int], Awaitable[None]] | None = None
        """Awaited before each reply, with its turn."""
        self.faults: list[Exception] = []
        """Raised in place of the next replies."""

    async def generate(
        self,
        input_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        sticky: str,
        versions: Versions = ANY,
        begun: PartialCall | None = None,
        keep: Keep | None = None,
        num_closed: int = 0,
        home: str = "",
    ) -> Completion:
        text = await self.reply(input_ids, sticky, request_id)
        return self.completion(text, params, versions)

    async def reply(self, input_ids: list[int], rollout: str, request_id: str = "") -> str:
        prompt = self._tokenizer.decode(input_ids)
        turn = prompt.count("assistant\n") - 1
        if rollout in self._earlier or rollout.partition("/")[0] in self._others:
            return "done"
        self._rollouts.add(rollout)
        if self.hold is not None:
            await self.hold(turn)
        if self.faults:
            raise self.faults.pop(0)
        self.asked.append(tuple(input_ids))
        return self._said.again(request_id, lambda: self.say(prompt, turn))

    def completion(self, text: str, params: SamplingParams, versions: Versions) -> Completion:
        ids = (*self._tokenizer.encode_plain(text), self._tokenizer.closing_ids[-1])
        reason = "stop"
        if len(ids) > params.max_new_tokens:
            ids, reason = ids[: params.max_new_tokens], "length"
        span = VersionSpan(versions.at_least or 0, 0, len(ids))
        return Completion(ids, (LOGPROB,) * len(ids), (span,), reason, 0.01)

    async def publish(self, engine: str, weights: Path, label: WeightLabel) -> None:
        return None

    async def reconcile(self, engine: str, weights: Path, label: WeightLabel) -> bool:
        return False

    async def aclose(self) -> None:
        return None


@dataclass(slots=True)
class ProgramCluster:
    workers: Cluster
    engine: ScriptedEngine
    url: str = ""
    """Of its gateway."""

    async def play(self, program: Mapping[str, Any] | None = None, **options: Any) -> Any:
        return await self.workers.play(program=program or own_program(), **options)


@asynccontextmanager
async def program_cluster(
    stack: StackInfo, hosts: Mapping[NodeId, Host], directory: Path
) -> AsyncIterator[ProgramCluster]:
    async with (
        without_gateway(stack, hosts, directory) as cluster,
        gateway_of(stack, cluster.workers) as cluster.url,
    ):
        yield cluster


@asynccontextmanager
async def without_gateway(
    stack: StackInfo, hosts: Mapping[NodeId, Host], directory: Path
) -> AsyncIterator[ProgramCluster]:
    tokenizer_of("qwen_like").save_pretrained(directory)
    tokenizer = ChatTokenizer(directory)
    engine = ScriptedEngine(tokenizer)

    async def serve_scripted(db: Database, campaign: CampaignId) -> CampaignPolicy:
        config = (await campaigns.get(db, campaign)).config
        return in_tokens(db, campaign, config, engine, tokenizer)

    async with cluster_of(stack, hosts, serve_with=serve_scripted) as workers:
        yield ProgramCluster(workers, engine)


async def one_node(new_folder: pytest.TempPathFactory, capacity: int) -> dict[NodeId, Host]:
    return {NODE: Host(await bwrap_or_skip(new_folder.mktemp("sandboxes")), capacity)}


async def standing_cluster(
    name: str,
    opened: Callable[..., AbstractAsyncContextManager[ProgramCluster]],
    standing: Standing,
    stack: StackInfo,
    new_folder: pytest.TempPathFactory,
) -> ProgramCluster:
    """The one of this name that tests share, with one node; `opened` makes it."""

    @asynccontextmanager
    async def make() -> AsyncIterator[ProgramCluster]:
        hosts = await one_node(new_folder, 8)
        async with opened(stack, hosts, new_folder.mktemp("model")) as cluster:
            yield cluster

    return await standing.get(name, make)


async def ungated_cluster(
    standing: Standing, stack: StackInfo, new_folder: pytest.TempPathFactory
) -> ProgramCluster:
    """The shared one without a gateway: each test starts its own."""
    return await standing_cluster("ungated", without_gateway, standing, stack, new_folder)


@asynccontextmanager
async def gateway_of(stack: StackInfo, workers: Cluster, name: int = 1) -> AsyncIterator[str]:
    """One gateway, found by the nodes as `name`. At its end what waits is cut."""
    notices = Notices(stack.database_url, CHANNEL)
    known = FactCache(workers.db)
    answers = DurableAnswers(workers.db, workers.client, known, notices, workers.served)
    app = make_app(answers, SessionDesk(workers.db, workers.client, known))
    bounds = Bounds(shutdown_timeout_s=0)
    async with notices.listening(), serve(app, bounds=bounds) as at:
        address = f"{at.host}:{at.port}"
        with gateway_addresses.announced(load_settings(stack.home).home, name, address):
            yield at.url


NoAnswer = partial(NoEngineAnswered, num_closed=0)


async def until_asked(engine: ScriptedEngine, number: int) -> None:
    while len(engine.asked) < number:
        await asyncio.sleep(0.02)
