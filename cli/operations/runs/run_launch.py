"""Evaluations, verifications and regrades from a command: everything they need, until they end.

Invariant: every part is idempotent and the run itself lives in Temporal and Postgres, so the same
command under the same name resumes after any interruption. Without workers of the team's own the
embedded stack and a fleet are brought up for the time of the command.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from temporalio.client import Client

from cli.operations.checks.named_parts import check_named
from cli.operations.checks.sandboxes_here import backends_here
from cli.operations.checks.split_choice import chosen_split
from cli.operations.checks.task_checks import as_played
from cli.operations.machine import fleet_extensions
from cli.operations.machine.cancelled_by import resumed_by
from cli.operations.machine.embedded_stack import up
from cli.operations.machine.evaluation_engine import (
    check_served,
    engine_member,
    in_words,
    placed,
    require_free,
)
from cli.operations.machine.fleet import (
    Member,
    gateway_members,
    rollout_member,
    sandbox_member,
)
from cli.operations.machine.spoken import spoken
from cli.operations.machine.supervisor import Supervisor
from cli.operations.runs import campaign_launch as launch
from cli.operations.runs.run_to_end import run_to_end
from cli.operations.runs.stored_run import resuming
from cli.operations.runs.watch import RunWatch, require_finished
from infra.db.connect import open_database
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.runs.campaigns import CampaignRecord
from infra.log_setup import set_up
from infra.policy.model.tokenizer import ChatTokenizer
from infra.policy.replies.openai import OpenAIClient
from infra.temporal.connection import connect
from mainspring.agents.choice import narrow_contexts
from mainspring.config.any_run import Measurement, concurrency_of
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.evaluations.regrade import RegradeConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.run import RunConfig
from mainspring.config.settings import Settings, configured_settings, load_settings
from mainspring.config.sft import SftConfig
from mainspring.errors import EngineError, UsageError
from mainspring.ids import NodeId, campaign_id
from mainspring.status import CampaignStatus, PolicyApi
from node.lock import NodeLock

ENGINE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Conductor:
    """The services of one command, and how it does its run."""

    settings: Settings
    db: Database
    client: Client
    own_workers: bool
    """This command brings them up."""
    say: Callable[[str], None]
    for_a_program: bool
    """Standard output is: progress is shown on the other one."""
    given_home: Path | None
    """As the command was given it."""

    async def perform(
        self,
        config: Measurement,
        *,
        retry: bool = False,
        watching: type[RunWatch] = RunWatch,
    ) -> CampaignRecord:
        """The run, or what is left of it, to its end. With `retry` also what of a finished one
        ended without a verdict. Raises MainspringErrors; WorkFailed when it ended otherwise than
        finished; Interrupted with the command that resumes it."""
        with resumed_by(resuming(config.kind, config.name, self.given_home), self.say):
            return await self.play(config, retry=retry, watching=watching)

    async def play(
        self,
        config: Measurement,
        *,
        retry: bool = False,
        watching: type[RunWatch] = RunWatch,
    ) -> CampaignRecord:
        """The same for a caller that hears signals itself."""
        if retry:
            await campaigns.reopen(self.db, campaign_id(config.name))
        asks_policy = isinstance(config, EvaluationConfig)
        if asks_policy and config.serve:
            config = await self._served(config)
        elif asks_policy and self.own_workers and not await self._is_done(config):
            for left_out in await _check_policy(config.policy, self.settings):
                self.say(left_out)
        if not self.own_workers and await campaigns.find(self.db, campaign_id(config.name)) is None:
            check_named(config)
            await fleet_extensions.require(self.client, self.db, config)
        here = await backends_here() if self.own_workers else None
        campaign = await launch.create(self.db, config, here)
        if left_out := await launch.left_out(self.db, campaign):
            self.say(left_out)
        for narrow in narrow_contexts(config) if asks_policy else ():
            self.say("; ".join(narrow))
        if asks_policy and (idle := config.policy.sampling.idle_at(config.policy.temperature)):
            self.say(f"policy.sampling.{idle}")
        record = await campaigns.get(self.db, campaign)
        if record.status is CampaignStatus.FINISHED:
            return record
        self.say(f"{record.kind} {campaign}")
        members = self._members(await as_played(self.db, config))
        with Supervisor(self.settings.home, campaign).noted() if members else nullcontext():
            record = await run_to_end(
                self.db,
                self.client,
                campaign,
                members,
                self.settings,
                self.say,
                for_a_program=self.for_a_program,
                watching=watching,
            )
        again = resuming(record.kind, campaign, self.given_home)
        require_finished(record, f"to resume it, run `{again}`")
        return record

    async def _served(self, config: EvaluationConfig) -> EvaluationConfig:
        """With the address of the engine that it starts. Raises UsageError where it cannot."""
        if not self.own_workers:
            raise UsageError(
                "run.serve (--serve) starts an engine beside local workers, and this command "
                "starts none",
                remedy="start the engine where the workers reach it (`mainspring serve`), and give "
                "--model and --base-url",
            )
        stored = await campaigns.find(self.db, campaign_id(config.name))
        before = stored.config if stored is not None else None
        config = placed(config, before if isinstance(before, EvaluationConfig) else None)
        if not await self._is_done(config):
            await asyncio.to_thread(check_served, config.policy)
            await require_free(config)
            self.say(in_words(config))
        return config

    async def split_of(self, raw: Mapping[str, Any], split: str | None) -> str:
        """The split that is meant: `split`, the one a stored run of this name has, or the source's
        only one. Raises UsageError."""
        stored = await campaigns.find(self.db, campaign_id(raw["name"]))
        if split is None and stored is not None and isinstance(stored.config, Measurement):
            return stored.config.split
        return await chosen_split(self.db, raw["tasks"]["source"], split)

    async def regrade_config(self, of: str, name: str) -> RegradeConfig:
        """The regrade of campaign `of`, under a name of its own."""
        source = await campaigns.get(self.db, campaign_id(of))
        if source.id == campaign_id(name):
            raise UsageError(
                f"the regrade of {of} cannot have its name", remedy="give another one with --name"
            )
        config = source.config
        if isinstance(config, SftConfig):
            raise UsageError(f"{of} is a supervised run: it has no patch to grade again")
        fields: dict[str, Any] = {field: getattr(config, field) for field in RunConfig.model_fields}
        if not isinstance(config, CampaignConfig):
            fields["split"] = config.split
        fields |= {"name": name, "of": source.id, "concurrency": concurrency_of(config)}
        fields |= {"reward": config.reward.without_judges, "judges": {}}
        return RegradeConfig(**fields)

    async def _is_done(self, config: RunConfig) -> bool:
        stored = await campaigns.find(self.db, campaign_id(config.name))
        return stored is not None and stored.status is CampaignStatus.FINISHED

    def _members(self, config: Measurement) -> list[Member]:
        if not self.own_workers:
            return []
        node = self.settings.node_id
        if NodeLock(self.settings.home, NodeId(node)).is_held():
            self.say(f"node {node} is up: its sandboxes are used; when it ends, ours takes over")
        # Always a node of our own: it waits while another process is the node.
        return [
            rollout_member(self.settings),
            sandbox_member(self.settings, config.concurrency),
            *(
                [engine_member(self.settings, config)]
                if isinstance(config, EvaluationConfig) and config.serve
                else []
            ),
            *(
                gateway_members(self.settings, config)
                if isinstance(config, EvaluationConfig)
                else []
            ),
        ]


@asynccontextmanager
async def conductor(
    home: Path | None,
    say: Callable[[str], None],
    *,
    own_workers: bool = True,
    for_a_program: bool = False,
) -> AsyncIterator[Conductor]:
    """With everything up that runs need. Where a Temporal server is configured, the team has
    workers of its own, and none are brought up."""
    configured = configured_settings(home)
    own_workers = own_workers and not configured.temporal_address
    if own_workers:
        starting = "starting Postgres and Temporal takes long"
        await spoken(up(configured.home), lambda: load_settings(home), say, what=starting)
    settings = load_settings(home)
    set_up(settings.log_format, for_a_person=True)
    async with open_database(settings) as db:
        client = await spoken(connect(settings, db), lambda: settings, say)
        settings = settings.in_namespace(client.namespace)
        yield Conductor(settings, db, client, own_workers, say, for_a_program, home)


async def _check_policy(policy: PolicyConfig, settings: Settings) -> tuple[str, ...]:
    """Check the endpoint once before the run: unreachable ones are retried for long, which is right
    for an outage and wrong for a mistyped URL. Returns what requests leave out. Raises ModelError,
    EngineError and PolicyRefused."""
    if policy.api is PolicyApi.OPENAI:
        client = OpenAIClient(policy, settings.policy_api_key)
        try:
            return await client.check(policy)
        finally:
            await client.aclose()
    variables = policy.sampling.variables
    await asyncio.to_thread(ChatTokenizer, Path(policy.model), variables=variables)
    async with httpx.AsyncClient(timeout=ENGINE_TIMEOUT_S) as http:
        for engine in policy.engines:
            try:
                await http.get(engine)
            except httpx.HTTPError as error:
                raise EngineError(
                    f"nothing answers at {engine}: {error or type(error).__name__}",
                    remedy="start the engine, or correct --base-url",
                ) from None
    return ()
