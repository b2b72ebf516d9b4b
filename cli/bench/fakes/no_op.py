"""A policy, a tokenizer and a sandbox that do nothing: what a bench leaves out. They take no time,
unless the policy is asked to wait.

Invariant: each implements its seam fully, so the workflow, the activities and the store around them
are the real ones. Imported by the benches of turns and of scale.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from infra.db.database import Database
from infra.db.runs import campaigns
from infra.policy.protocol import Completion, SamplingParams
from infra.policy.serving import CampaignPolicy, in_tokens
from infra.policy.weight_label import WeightLabel
from infra.sandbox.model_port import Gateways
from infra.sandbox.protocol import Sandbox, SandboxSpec
from mainspring.environments.protocol import CommandResult
from mainspring.ids import CampaignId, SandboxId
from mainspring.tasks.sandbox_choice import BWRAP
from mainspring.trajectories.turns import VersionSpan

REPLY_TOKENS = 40
PROMPT_TOKENS = 200
FIRST_ID = 1000
"""Python keeps numbers below 257 for good, which would make tokens look cheap."""


class NoPolicy:
    """A policy that answers after `reply_s`, always with a command that is worth nothing."""

    def __init__(self, reply_s: float, num_tokens: int) -> None:
        self._reply_s = reply_s
        self._num_tokens = num_tokens

    async def generate(
        self, input_ids: list[int], params: SamplingParams, **_: object
    ) -> Completion:
        if self._reply_s:
            await asyncio.sleep(self._reply_s)
        length = self._num_tokens
        ids = tuple(_ids(length))
        return Completion(ids, (-0.1,) * length, (VersionSpan(0, 0, length),), "stop", 0)

    async def publish(self, engine: str, weights: Path, label: WeightLabel) -> None:
        return None

    async def reconcile(self, engine: str, weights: Path, label: WeightLabel) -> bool:
        return False

    async def aclose(self) -> None:
        return None


class NoTokenizer:
    def __init__(self, num_first: int, num_next: int, num_reply: int, command: str) -> None:
        self._command = command
        self.stop_token_ids = (_ids(num_reply)[-1],)
        self._num_first = num_first
        self._num_next = num_next

    def under(self, variables: object) -> Self:
        return self

    def first_ids(self, messages: object, tools: object) -> Sequence[int]:
        return _ids(self._num_first)

    def next_ids(self, messages: object, *, closed: bool) -> Sequence[int]:
        return _ids(self._num_next)

    def decode(self, ids: Sequence[int], *, apart: bool = True) -> str:
        return f"THOUGHT: nothing.\n\n```bash\n{self._command}\n```"

    def written(self, ids: Sequence[int]) -> str:
        return self.decode(ids)


def _ids(number: int) -> range:
    return range(FIRST_ID, FIRST_ID + number)


async def serve_nothing(
    db: Database,
    campaign: CampaignId,
    reply_s: float = 0.0,
    turn_tokens: int = 0,
    command: str = "true",
) -> CampaignPolicy:
    """Implements `Serve`: replies come from NoPolicy, through the real token policy. `turn_tokens`:
    of prompt and reply of each turn; 0: a few. `command`: what each reply runs."""
    config = (await campaigns.get(db, campaign)).config
    first, following, reply = PROMPT_TOKENS, REPLY_TOKENS, REPLY_TOKENS
    if turn_tokens:
        reply = max(1, turn_tokens // 4)
        first = following = max(1, turn_tokens - reply)
    tokenizer = NoTokenizer(first, following, reply, command)
    return in_tokens(db, campaign, config, NoPolicy(reply_s, reply), tokenizer)


@dataclass(frozen=True, slots=True)
class NoSandbox:
    id: SandboxId

    async def run(self, turn_id: str, command: str, timeout_s: float) -> CommandResult:
        return CommandResult(0, b"ok\n", False, False, 0.0)

    async def stop(self, turn_id: str) -> None:
        return None

    async def open_model_port(self, gateways: Gateways, key: str) -> None:
        return None

    async def close_model_port(self) -> None:
        return None

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        return None

    async def diff(self) -> bytes:
        return b""

    async def left_out(self) -> str:
        return ""

    async def snapshot(self, after: str, max_bytes: int) -> bytes | None:
        return None

    async def restore(self, snapshot: bytes) -> None:
        return None

    async def ping(self) -> None:
        return None

    async def close(self) -> None:
        return None


class NoBackend:
    name = BWRAP

    async def probe(self) -> None:
        return None

    async def open(self, spec: SandboxSpec) -> Sandbox:
        return NoSandbox(spec.id)

    async def attach(self, spec: SandboxSpec, busy_s: float) -> Sandbox:
        return NoSandbox(spec.id)

    async def rename(self, sandbox: SandboxId, spec: SandboxSpec) -> Sandbox:
        return NoSandbox(spec.id)

    async def list_open(self) -> list[SandboxId]:
        return []

    async def remove(self, sandbox: SandboxId) -> None:
        return None
