"""Sources of a campaign's replies in this process: engines and tokenizer, or an endpoint.

Invariant: made once a process for each campaign, also when many rollouts ask at once, and again
after a failure. `Serve` is the seam where benches and tests put another policy. Used by the
activities of replies and publishing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from infra.db import leases
from infra.db.database import Database
from infra.db.leases import ProcessLease
from infra.db.runs import campaigns
from infra.db.training import policies
from infra.db.training.policies import PolicyRecord
from infra.policy.engines.client import SGLangClient
from infra.policy.engines.dialects.choice import dialect_of
from infra.policy.engines.engine_weights import EngineWeights
from infra.policy.model.model_files import read_facts
from infra.policy.model.request_text import RequestText
from infra.policy.model.tokenizer import ChatTokenizer
from infra.policy.model.written_files import verify_written
from infra.policy.protocol import ChatText, Engines, Policy, Publisher
from infra.policy.replies.openai import OpenAIClient
from infra.policy.replies.text_policy import TextPolicy
from infra.policy.replies.token_policy import TokenPolicy
from infra.policy.weight_label import WeightLabel
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.run import RunConfig
from mainspring.ids import CampaignId
from mainspring.programs.matching import SILENT, Noise
from mainspring.programs.parsing.choice import parser_of
from mainspring.programs.profiles.choice import is_program, profile_for
from mainspring.status import PolicyApi, Publish

LOADING_S = 900.0
"""To wait for another process that loads weights: longer than the largest take from a disk."""
ENGINES_LOOK_S = 5.0
"""Between looks at which engines a campaign has."""


class CampaignPolicy:
    """The policy that a campaign's rollouts share in this process: one model, asked by each of its
    agents in the agent's own way."""

    def __init__(
        self,
        config: RunConfig,
        make: Callable[[bool, Noise], Policy],
        publisher: Publisher | None,
        close: Callable[[], Awaitable[None]],
        use: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        """`make`: the policy for programs (True) or for agents of ours, with the noise that their
        requests have. `publisher`: None for an endpoint whose weights are not ours. `use`: has
        other engines asked. Raises ModelError where [agent] cannot ask."""
        self.config = config
        self.engines = config.policy.engines
        """Addresses of its engines, which may change."""
        self.publisher = publisher
        self._use = use
        self._make = make
        self._close = close
        self._made: dict[tuple[bool, Noise], Policy] = {}
        self.policy_for(config.agent)

    def policy_for(self, agent: AgentConfig) -> Policy:
        """The policy as an agent of the run asks it. Raises ModelError where the chat template
        drops a part of what a program asks."""
        plays_itself = is_program(agent)
        key = plays_itself, profile_for(agent).noise if plays_itself else SILENT
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]

    @property
    def is_reproducible(self) -> bool:
        """Whether each group has one policy version, neither an older nor a newer one."""
        return needs_same_bits(self.config)

    def use(self, engines: Sequence[str]) -> None:
        """Ask these engines from now on."""
        if self._use is not None and tuple(engines) != self.engines:
            self.engines = tuple(engines)
            self._use(engines)

    async def aclose(self) -> None:
        await self._close()


Serve = Callable[[Database, CampaignId], Coroutine[Any, Any, CampaignPolicy]]


class ServedCampaigns:
    def __init__(self, db: Database, serve: Serve) -> None:
        self._db = db
        self._serve = serve
        self._served: dict[CampaignId, asyncio.Task[CampaignPolicy]] = {}
        self._looked: dict[CampaignId, float] = {}

    async def of(self, campaign: CampaignId) -> CampaignPolicy:
        """The campaign's policy, with the engines that it has now or had ENGINES_LOOK_S ago."""
        serving = self._served.get(campaign)
        if serving is None or (serving.done() and serving.exception() is not None):
            serving = asyncio.create_task(self._serve(self._db, campaign))
            self._served[campaign] = serving
            self._looked[campaign] = time.monotonic()
        policy = await asyncio.shield(serving)
        if time.monotonic() - self._looked[campaign] > ENGINES_LOOK_S:
            self._looked[campaign] = time.monotonic()
            policy.use((await campaigns.get(self._db, campaign)).config.policy.engines)
        return policy

    async def close(self) -> None:
        for serving in self._served.values():
            if serving.done() and serving.exception() is None:
                await serving.result().aclose()


def needs_same_bits(config: RunConfig) -> bool:
    return isinstance(config, CampaignConfig) and config.batches is not None


def in_tokens(
    db: Database,
    campaign: CampaignId,
    config: RunConfig,
    engines: Engines,
    text: ChatTokenizer | ChatText,
    use: Callable[[Sequence[str]], None] | None = None,
) -> CampaignPolicy:
    """From engines, whose weights are brought up to date from the store. `use`: has other engines
    asked, where they can change."""

    def make(for_program: bool, noise: Noise) -> Policy:
        own = text
        if isinstance(own, ChatTokenizer):
            own = RequestText(own, plain=not for_program)
        parser = parser_of(config.agent.tool_parser)
        weights_of = partial(_weights, db, campaign)
        return TokenPolicy(config.policy, engines, own, parser, weights_of, noise)

    return CampaignPolicy(config, make, engines, engines.aclose, use)


def in_text(config: RunConfig, client: OpenAIClient) -> CampaignPolicy:
    """From an endpoint whose weights are not ours."""

    def make(for_program: bool, noise: Noise) -> Policy:
        return TextPolicy(config.policy, client, noise)

    return CampaignPolicy(config, make, None, client.aclose)


def label_of(policy: PolicyRecord) -> WeightLabel:
    return WeightLabel(policy.version, policy.uid)


async def serve_over_http(
    db: Database, campaign: CampaignId, api_key: SecretStr | None = None
) -> CampaignPolicy:
    """The campaign's engines, and the tokenizer that lies beside its first policy. An evaluation
    has no policy of its own: its model directory has the tokenizer, and its engines' weights are
    taken as they are."""
    record = await campaigns.get(db, campaign)
    config = record.config
    if config.policy.api is PolicyApi.OPENAI:
        return in_text(config, OpenAIClient(config.policy, api_key))
    model = await _model(db, campaign, config)
    await asyncio.to_thread(verify_written, model, campaign, weights=False)
    # Its date: a rollout may be resumed on another day.
    variables = config.policy.sampling.variables
    tokenizer = await asyncio.to_thread(
        ChatTokenizer, model, at=record.created_at, variables=variables
    )
    engines = engines_of(db, campaign, config, model, api_key)
    return in_tokens(db, campaign, config, engines, tokenizer, engines.use)


async def weights_of(
    db: Database, campaign: CampaignId, api_key: SecretStr | None = None
) -> EngineWeights:
    """Weights of the campaign's engines, for a process that asks them for no tokens."""
    config = (await campaigns.get(db, campaign)).config
    model = await _model(db, campaign, config)
    return engines_of(db, campaign, config, model, api_key).weights


async def _model(db: Database, campaign: CampaignId, config: RunConfig) -> Path:
    is_eval = isinstance(config, EvaluationConfig)
    first = config.policy.model if is_eval else (await policies.get_policy(db, campaign, 0)).path
    return Path(first)


def engines_of(
    db: Database,
    campaign: CampaignId,
    config: RunConfig,
    model: Path,
    api_key: SecretStr | None,
) -> SGLangClient:
    policy = config.policy
    is_eval = isinstance(config, EvaluationConfig)

    async def is_known(label: WeightLabel) -> bool:
        return await policies.is_version(db, campaign, label.version, label.uid)

    # An evaluation needs no more of the model than its tokenizer.
    has_config = not is_eval or (model / "config.json").is_file()
    return SGLangClient(
        policy.engines,
        timeout_s=policy.request_timeout_s,
        api_key=api_key.get_secret_value() if api_key else "",
        any_weights=is_eval,
        vocab_size=read_facts(model).vocab_size if has_config else None,
        model=None if is_eval else model,
        is_known=None if is_eval else is_known,
        reproducible=needs_same_bits(config),
        alone=ProcessLease(db, leases.publishing(campaign), wait_s=LOADING_S).held,
        adapters=policy.publish is Publish.ADAPTER and not is_eval,
        dialect=dialect_of(policy.api, trained_at=None if is_eval else policy.rollout_temperature),
    )


async def _weights(
    db: Database, campaign: CampaignId, version: int | None
) -> tuple[Path, WeightLabel]:
    if version is None:
        policy = await policies.latest_policy(db, campaign)
        assert policy is not None, "rollouts start after version 0 is stored"
    else:
        policy = await policies.get_policy(db, campaign, version)
    return Path(policy.path), label_of(policy)
