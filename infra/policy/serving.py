"""Sources of a campaign's replies in this process: engines and tokenizer, or an endpoint.

Invariant: made once a process for each campaign, also when many rollouts ask at once, and again
after a failure. `Serve` is the seam where benches and tests put another policy. Used by the
activities of replies and publishing.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog
from pydantic import SecretStr

from infra.db import leases
from infra.db.database import Database
from infra.db.leases import Holder, ProcessLease
from infra.db.nodes import engines
from infra.db.nodes.engines import EngineLook, EngineRecord
from infra.db.runs import campaigns, events
from infra.db.training import policies
from infra.db.training.policies import PolicyRecord
from infra.policy.engines.balancer import EngineMember
from infra.policy.engines.client import EngineClient
from infra.policy.engines.device_turn import DeviceTurn
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
from mainspring.errors import DatabaseError
from mainspring.ids import CampaignId
from mainspring.programs.matching import SILENT, Noise
from mainspring.programs.parsing.choice import parser_of
from mainspring.programs.profiles.choice import is_program, profile_for
from mainspring.status import EventKind, PolicyApi, Publish

_log = structlog.get_logger(__name__)
LOADING_S = 900.0
"""To wait for another process that loads weights: longer than the largest take from a disk."""
ENGINES_LOOK_S = 2.0
"""Between looks at which engines a campaign has."""


class EngineFleet(Protocol):
    """Engines that may change while they are asked."""

    @property
    def engines(self) -> Sequence[str]:
        """Addresses of those that take requests and answered when they were last seen."""
        ...

    @property
    def lost(self) -> Sequence[str]:
        """Addresses of those that did not answer."""
        ...

    def use(self, members: Sequence[EngineMember]) -> None:
        """Ask these from now on."""
        ...

    async def look(self, url: str) -> EngineLook:
        """How an engine is now."""
        ...


class CampaignPolicy:
    """The policy that a campaign's rollouts share in this process: one model, asked by each of its
    agents in the agent's own way."""

    def __init__(
        self,
        config: RunConfig,
        make: Callable[[bool, Noise], Policy],
        publisher: Publisher | None,
        close: Callable[[], Awaitable[None]],
        fleet: EngineFleet | None = None,
    ) -> None:
        """`make`: the policy for programs (True) or for agents of ours, with the noise that their
        requests have. `publisher`: None for an endpoint whose weights are not ours. `fleet`: its
        engines, where they may change. Raises ModelError where [agent] cannot ask."""
        self.config = config
        self.publisher = publisher
        self.fleet = fleet
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

    @property
    def engines(self) -> Sequence[str]:
        """Addresses of its engines that are given new weights, which may change."""
        return self.config.policy.engines if self.fleet is None else self.fleet.engines

    @property
    def lost_engines(self) -> Sequence[str]:
        """Addresses of those that did not answer: they load weights when they are asked again."""
        return () if self.fleet is None else self.fleet.lost

    async def aclose(self) -> None:
        await self._close()


Serve = Callable[[Database, CampaignId], Coroutine[Any, Any, CampaignPolicy]]


class ServedCampaigns:
    def __init__(self, db: Database, serve: Serve) -> None:
        self._db = db
        self._serve = serve
        self._served: dict[CampaignId, asyncio.Task[CampaignPolicy]] = {}
        self._looked: dict[CampaignId, float] = {}
        self._looks: set[asyncio.Task[None]] = set()

    async def of(self, campaign: CampaignId) -> CampaignPolicy:
        """The campaign's policy, with the engines that it has now or had ENGINES_LOOK_S ago."""
        serving = self._served.get(campaign)
        if serving is None or (serving.done() and serving.exception() is not None):
            serving = asyncio.create_task(self._serve(self._db, campaign))
            self._served[campaign] = serving
        policy = await asyncio.shield(serving)
        looked = self._looked.get(campaign, -math.inf)
        if policy.fleet is not None and time.monotonic() - looked > ENGINES_LOOK_S:
            self._looked[campaign] = time.monotonic()
            await self._look(campaign, policy.fleet)
        return policy

    async def _look(self, campaign: CampaignId, fleet: EngineFleet) -> None:
        """Tell the fleet its members, and ask those that no other process asks now."""
        urls = (await campaigns.get(self._db, campaign)).config.policy.engines
        members, mine = await engines.claim(self._db, campaign, urls)
        fleet.use(
            [
                EngineMember(each.name, each.url, each.load, each.draining, each.is_lost)
                for each in members
            ]
        )
        for member in mine:
            look = asyncio.create_task(self._ask(campaign, fleet, member))
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)

    async def _ask(self, campaign: CampaignId, fleet: EngineFleet, member: EngineRecord) -> None:
        try:
            look = await fleet.look(member.url)
            await engines.saw(self._db, campaign, member.name, member.url, look)
        except DatabaseError as error:
            # Requests need the store as well, and tell of it; the next look is in seconds.
            _log.warning("an engine's state was not stored", engine=member.name, reason=str(error))

    async def close(self) -> None:
        for look in self._looks:
            look.cancel()
        for serving in self._served.values():
            if serving.done() and serving.exception() is None:
                await serving.result().aclose()


def needs_same_bits(config: RunConfig) -> bool:
    return isinstance(config, CampaignConfig) and config.batches is not None


def in_tokens(
    db: Database,
    campaign: CampaignId,
    config: RunConfig,
    sampled_by: Engines,
    text: ChatTokenizer | ChatText,
    fleet: EngineFleet | None = None,
) -> CampaignPolicy:
    """From engines, whose weights are brought up to date from the store. `fleet`: the same, where
    they may change."""

    def make(for_program: bool, noise: Noise) -> Policy:
        own = text
        if isinstance(own, ChatTokenizer):
            own = RequestText(own, plain=not for_program)
        parser = parser_of(config.agent.tool_parser)
        weights_of = partial(_weights, db, campaign)
        return TokenPolicy(config.policy, sampled_by, own, parser, weights_of, noise)

    return CampaignPolicy(config, make, sampled_by, sampled_by.aclose, fleet)


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
    client = engines_of(db, campaign, config, model, api_key)
    return in_tokens(db, campaign, config, client, tokenizer, client)


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
) -> EngineClient:
    policy = config.policy
    is_eval = isinstance(config, EvaluationConfig)

    async def is_known(label: WeightLabel) -> bool:
        return await policies.is_version(db, campaign, label.version, label.uid)

    async def reloaded(engine: str, label: WeightLabel) -> None:
        text = f"engine {engine} served other weights and was given version {label.version}"
        data = {"version": label.version}
        await events.tell(
            db, events.Event(EventKind.ENGINE_RELOADED, engine, text, campaign, data=data)
        )

    async def trainer() -> Holder | None:
        name = leases.devices(campaign)
        return (await leases.holders(db, [name])).get(name)

    shares_devices = isinstance(config, CampaignConfig) and config.trainer.colocate
    # An evaluation needs no more of the model than its tokenizer.
    has_config = not is_eval or (model / "config.json").is_file()
    return EngineClient(
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
        reloaded=reloaded,
        turn=DeviceTurn(trainer) if shares_devices else None,
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
