"""A command whose own node cannot run its tasks refuses before anything is stored."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from bundled.gold import make_gold_tasks
from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.runs.campaign_launch import create
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.evaluations.verification import VerificationConfig
from mainspring.config.sandbox import SandboxConfig
from mainspring.config.tasks import TasksConfig
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.status import Unverified

SOURCE = "missing-backend"
NAME = CampaignId("missing-backend-run")


def verify(home: Path) -> subprocess.CompletedProcess[str]:
    arguments = ["tasks", "verify", "--source", SOURCE, "--name", NAME, "--home", str(home)]
    return subprocess.run(
        [sys.executable, "-m", "mainspring", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


async def test_tasks_with_images_are_refused_without_docker(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_NODE_ID", "missing-backend")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    async with Database.open(stack.database_url) as db:
        plain, imaged = make_gold_tasks(1, SOURCE, 2)
        image = {"image": "missing-backend/task:1", "files": {}}
        await tasks.put_tasks(db, [plain, imaged.model_copy(update=image)])
        refused = await asyncio.to_thread(verify, stack.home)
        assert refused.returncode == 3, refused.stderr
        assert refused.stdout == ""
        assert refused.stderr.splitlines() == [
            f"error: campaign {NAME}: 1 of its 2 tasks have an image and need Docker: "
            f"no Docker daemon answers at unix://{tmp_path}/docker.sock: No such file or directory",
            "  start Docker (or Podman's socket), or set DOCKER_HOST to where it listens",
        ]
        assert await campaigns.find(db, NAME) is None


@pytest.mark.parametrize("kind", [EvaluationConfig, VerificationConfig])
async def test_a_backend_that_runs_no_images_is_refused_for_tasks_with_images(
    stack: StackInfo, kind: type[EvaluationConfig] | type[VerificationConfig]
) -> None:
    async with Database.open(stack.database_url) as db:
        source = f"images-for-bwrap-{kind.__name__}"
        plain, imaged = make_gold_tasks(2, source, 2)
        image = {"image": "images-for-bwrap:1", "files": {}}
        await tasks.put_tasks(db, [plain, imaged.model_copy(update=image)])
        config = kind(
            name=source.lower(),
            split=plain.split,
            tasks=TasksConfig(source=source, unverified=Unverified.USE),
            sandbox=SandboxConfig(backend="bwrap"),
        )
        with pytest.raises(UsageError, match="1 of its 2 tasks have an image") as refused:
            await create(db, config)
        assert "leave sandbox.backend out" in refused.value.remedy
        assert await campaigns.find(db, CampaignId(config.name)) is None
