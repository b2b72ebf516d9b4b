"""The checklist's line about the engine of a judge, before it is started."""

from pathlib import Path

import pytest

from cli.operations.checks.checklist_item import State
from cli.operations.checks.judge_engine_item import judge_engine_item
from cli.operations.machine.local_engines import Hardware
from infra.policy.model.model_files import read_facts
from mainspring.config.campaign import CampaignConfig
from tests.infra.policy.tiny_model import save_tiny_model

MACHINE = Hardware((), has_sglang=False, free_memory_bytes=2**33, cores=2)
HERE, ELSEWHERE = "http://127.0.0.1:9", "http://judge.example:9"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def campaign(model: Path, url: str, max_new_tokens: int) -> CampaignConfig:
    judge = {"kind": "engine", "engines": [url], "model": str(model)}
    judges = {"second": {**judge, "max_new_tokens": max_new_tokens}}
    return CampaignConfig.model_validate(
        {"name": "c", "judges": judges, "policy": {"model": "none"}}
    )


@pytest.mark.parametrize("url", [HERE, ELSEWHERE])
async def test_a_vote_as_long_as_the_judges_context_is_refused(model: Path, url: str) -> None:
    longest = read_facts(model).max_context
    assert longest is not None
    item = await judge_engine_item(campaign(model, url, longest), "second", url, MACHINE)
    assert item.state is State.MISSING and f"max_new_tokens = {longest}" in item.found
    assert f"to {longest // 4} or less" in item.fix


async def test_an_engine_is_started_here_and_missing_elsewhere(model: Path, tmp_path: Path) -> None:
    here = await judge_engine_item(campaign(model, HERE, 64), "second", HERE, MACHINE)
    assert here.state is State.STARTS and "the CPU engine" in here.found
    away = await judge_engine_item(campaign(model, ELSEWHERE, 64), "second", ELSEWHERE, MACHINE)
    assert away.state is State.MISSING and away.is_service and "mainspring serve" in away.fix
    no_model = campaign(tmp_path / "none", HERE, 64)
    gone = await judge_engine_item(no_model, "second", HERE, MACHINE)
    assert gone.state is State.MISSING and str(tmp_path / "none") in gone.found
