"""What a campaign's replies come from in this process: its engines and tokenizer, or its endpoint.

The seam where benches and tests put another policy. Used by the policy's activities.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import SecretStr

from infra.db import campaigns, policies
from infra.db.database import Database
from infra.policy.client import SGLangClient
from infra.policy.model_files import read_facts
from infra.policy.openai import OpenAIClient
from infra.policy.protocol import Completion, SamplingParams
from infra.policy.tokenizer import ChatTokenizer
from infra.policy.weight_label import WeightLabel
from mainspring.config import CampaignConfig, PolicyApi
from mainspring.ids import CampaignId
from mainspring.status import CampaignKind


class Engines(Protocol):
    """What `infra.policy.client.SGLangClient` offers to a rollout."""

    async def generate(
        self,
        input_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        sticky: str,
        min_version: int | None = None,
        num_closed: int = 0,
    ) -> Completion: ...

    async def publish(self, engine: str, weights: Path, label: WeightLabel) -> None: ...

    async def reconcile(self, engine: str, weights: Path, label: WeightLabel) -> bool: ...

    async def aclose(self) -> None: ...


class ChatText(Protocol):
    """What `infra.policy.tokenizer.ChatTokenizer` offers to a rollout."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...

    def prompt_ids(self, system: str, user: str) -> list[int]: ...

    def next_prompt_ids(self, user_text: str, *, closed: bool) -> list[int]: ...

    def decode(self, ids: list[int] | tuple[int, ...]) -> str: ...


@dataclass(frozen=True, slots=True)
class Served:
    """What a campaign's rollouts share in this process."""

    config: CampaignConfig
    client: Engines
    tokenizer: ChatText


@dataclass(frozen=True, slots=True)
class ServedChat:
    """The same for an endpoint that takes messages and gives text."""

    config: CampaignConfig
    client: OpenAIClient


Serve = Callable[[Database, CampaignId], Coroutine[Any, Any, Served | ServedChat]]
"""Makes what a campaign's rollouts share; the seam where benches and tests put another policy."""


async def serve_over_http(
    db: Database, campaign: CampaignId, api_key: SecretStr | None = None
) -> Served | ServedChat:
    """The campaign's engines, and the tokenizer that lies beside its first policy. An evaluation
    has no policy of its own: its model directory has the tokenizer, and its engines serve what they
    serve."""
    record = await campaigns.get(db, campaign)
    policy = record.config.policy
    if policy.api is PolicyApi.OPENAI:
        return ServedChat(record.config, OpenAIClient(policy, api_key))
    is_eval = record.kind is CampaignKind.EVAL
    model = Path(policy.model if is_eval else (await policies.get_policy(db, campaign, 0)).path)
    tokenizer = await asyncio.to_thread(ChatTokenizer, model)

    async def is_known(label: WeightLabel) -> bool:
        return await policies.is_version(db, campaign, label.version, label.uid)

    # An evaluation needs no more of the model than its tokenizer.
    has_config = not is_eval or (model / "config.json").is_file()
    client = SGLangClient(
        policy.engines,
        timeout_s=policy.request_timeout_s,
        api_key=api_key.get_secret_value() if api_key else "",
        any_weights=is_eval,
        vocab_size=read_facts(model).vocab_size if has_config else None,
        model=None if is_eval else model,
        is_known=None if is_eval else is_known,
    )
    return Served(record.config, client, tokenizer)
