"""Whether a client can play here is known before anything is stored: its bundle, its context."""

import uuid
from pathlib import Path

import pytest

from cli.operations.checks import checklist, task_items
from cli.operations.checks.checklist_item import Item, State
from cli.operations.checks.sandboxes_here import backends_here
from cli.operations.machine.agent_bundles import _version_in
from cli.operations.machine.local_engines import Hardware
from cli.operations.runs import campaign_launch as launch
from cli.operations.runs.campaign_plan import plan_campaign
from infra.bundles.store import BundleMissing
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.settings import Settings
from mainspring.errors import ConfigError
from mainspring.ids import CampaignId
from mainspring.planning.assumptions import Given
from mainspring.programs.recipes import recipe_of
from tests.cli.test_agents_asked_for import task_of

ROOMY = {"model": "m", "max_context": 100_000}
SMALL = {"model": "m", "max_context": 32_768, "max_new_tokens": 4096}
HARDWARE = Hardware((), False, 16 << 30, 2)


def campaign(kind: str, policy: dict[str, object]) -> CampaignConfig:
    return CampaignConfig.model_validate({"name": "c", "agent": {"kind": kind}, "policy": policy})


async def evaluation(db: Database, kind: str, policy: dict[str, object]) -> EvaluationConfig:
    name = f"client-{uuid.uuid4().hex[:8]}"
    await tasks.put_tasks(db, [task_of(name, None)])
    return EvaluationConfig.model_validate(
        {
            "name": name,
            "tasks": {"source": name, "unverified": "use"},
            "agent": {"kind": kind},
            "policy": {**policy, "api": "openai"},
            "split": "train",
        }
    )


def found(items: list[Item], what: str) -> Item | None:
    return next((each for each in items if each.what == what), None)


async def test_a_missing_bundle_ends_a_command_that_brings_its_own_node(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_AGENTS_DIR", str(tmp_path / "none"))
    config = await evaluation(db, "codex", ROOMY)
    with pytest.raises(BundleMissing, match="bundle codex-") as missing:
        await launch.create(db, config, await backends_here())
    assert "mainspring agents add codex" in missing.value.remedy
    assert await campaigns.find(db, CampaignId(config.name)) is None
    # Where nodes are elsewhere, this machine cannot know.
    assert await launch.create(db, config) == config.name


async def test_the_checklist_names_a_missing_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_AGENTS_DIR", str(tmp_path / "none"))
    settings = Settings(home=tmp_path)
    items = await checklist.of_this_machine(campaign("codex", ROOMY), settings, HARDWARE)
    client = found(items, "client")
    assert client is not None and client.state is State.MISSING
    assert "mainspring agents add codex" in client.fix
    items = await checklist.of_this_machine(campaign("bash", ROOMY), settings, HARDWARE)
    assert found(items, "client") is None


async def test_a_context_that_is_too_small_is_refused_before_anything_is_stored(
    db: Database,
) -> None:
    config = await evaluation(db, "claude-code", SMALL)
    with pytest.raises(ConfigError, match="too small for 'claude-code'") as refused:
        await launch.create(db, config)
    assert "agent.options.tools" in refused.value.remedy
    assert await campaigns.find(db, CampaignId(config.name)) is None


async def test_the_checklist_and_the_plan_tell_of_a_small_context(
    db: Database, tmp_path: Path
) -> None:
    context = found(await task_items.of_the_tasks(campaign("claude-code", SMALL), db), "context")
    assert context is not None and context.state is State.MISSING
    assert "agent.options.bare = true" in context.fix
    # Also before Postgres runs.
    assert found(await task_items.of_the_tasks(campaign("claude-code", SMALL), None), "context")
    narrow = {"model": "m", "max_context": 16_384, "max_new_tokens": 2048}
    context = found(await task_items.of_the_tasks(campaign("codex", narrow), db), "context")
    assert context is not None and context.state is State.WARNING
    assert found(await task_items.of_the_tasks(campaign("codex", ROOMY), db), "context") is None
    file = tmp_path / "campaign.toml"
    file.write_text(
        'name = "c"\n[agent]\nkind = "claude-code"\n[policy]\nmodel = "bundled"\n'
        "[trainer.warm_start]\n"
    )
    with pytest.raises(ConfigError, match="too small for 'claude-code'"):
        plan_campaign(file, Given(), None, None)
    file.write_text(file.read_text().replace("claude-code", "codex"))
    assert not any("codex" in note for note in plan_campaign(file, Given(), None, None).notes)


async def test_a_stored_campaign_with_a_small_context_resumes(db: Database) -> None:
    config = await evaluation(db, "codex", ROOMY)
    small = config.model_copy(update={"policy": config.policy.model_copy(update=SMALL)})
    small = small.model_copy(
        update={"agent": config.agent.model_copy(update={"kind": "claude-code"})}
    )
    await campaigns.create(db, small)
    assert await launch.create(db, small) == small.name


@pytest.mark.parametrize(
    ("client", "printed", "told"),
    [
        (
            "mini-swe-agent",
            "This is mini-swe-agent version 2.4.6. Check the guide. Usage: mini ... in your l",
            "2.4.6",
        ),
        ("codex", "codex-cli 0.169.0", "codex-cli 0.169.0"),
        ("claude-code", "2.1.197 (Claude Code)", "2.1.197 (Claude Code)"),
    ],
)
def test_a_check_tells_the_version_alone(client: str, printed: str, told: str) -> None:
    assert _version_in(printed, recipe_of(client)) == told
