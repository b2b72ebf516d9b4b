"""`mainspring train`: checklist, background, stop, resume; a trainer that is started first."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.machine.fleet_extensions import pollers
from cli.operations.machine.supervisor import Supervisor
from cli.operations.runs import campaign_launch as launch
from infra.db.database import Database
from infra.db.rollouts import groups
from infra.db.runs import campaigns
from infra.db.training import steps
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable
from infra.temporal.connection import connect
from mainspring.config.files.reading import load_campaign
from mainspring.config.settings import load_settings
from mainspring.errors import MainspringError
from mainspring.ids import CampaignId, campaign_workflow, trainer_queue
from mainspring.status import CampaignStatus
from mainspring.training.step_metrics import CLIP_NAMES, PASS_NAMES, TAKEN_NAMES
from tests.waiting import until

NAME = CampaignId("train-command")
TIMEOUT_S = 600.0
WARM_START = """\
[trainer.warm_start]
copy_steps = 2
copy_batch_size = 2
steps = 4
batch_size = 2
"""
FILE = f"""
name = "{NAME}"
[tasks]
num_train = 16
num_heldout = 4
num_heldout_templates = 0
[agent]
step_limit = 3
kind = "bundled"
[policy]
engines = ["http://127.0.0.1:0"]
max_context = 512
max_new_tokens = 40
[trainer]
device = "cpu"
filter = "none"
num_steps = 2
groups_per_step = 2
group_size = 2
[trainer.optimizer]
name = "muon"
lr = 1e-3
{WARM_START}[evaluation]
every_steps = 2
greedy = false
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "campaign.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def stopped(stack: StackInfo) -> Iterator[Supervisor]:
    supervisor = Supervisor(stack.home, NAME)
    yield supervisor
    supervisor.stop()


async def mainspring(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mainspring", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    printed, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode(), said.decode()


async def in_this_process(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, arguments)


@pytest.mark.timeout(3 * TIMEOUT_S)
async def test_in_the_background_stopped_cancelled_and_resumed(
    stack: StackInfo,
    file: Path,
    stopped: Supervisor,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    try:
        await BwrapBackend(tmp_path / "sandboxes").probe()
    except BackendUnavailable as error:
        pytest.skip(error.message)
    monkeypatch.setenv("MAINSPRING_NODE_ID", "train-command")
    # The machine that runs the tests may be short of memory: that is not what they test.
    monkeypatch.setenv("MAINSPRING_NODE_MIN_FREE_MEMORY_MB", "0")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    file.write_text(f'{FILE}[tracking.mlflow]\nuri = "{uri}"\n')
    command = ["train", str(file), "--home", str(stack.home)]
    async with Database.open(stack.database_url) as db:
        started = await in_this_process(*command, "--dry-run")
        assert started.exit_code == 0, started.output
        assert "http://127.0.0.1:0: the CPU engine (bundled model)" in started.output
        assert await campaigns.find(db, NAME) is None

        code, printed, said = await mainspring(*command, "--detach")
        assert code == 0, said
        pid = stopped.pid()
        assert pid is not None and f"process {pid}" in printed
        assert f"{file} --home {stack.home} --stop" in printed
        again = await in_this_process(*command, "--detach")
        assert isinstance(again.exception, MainspringError) and again.exception.exit_code == 2
        assert f"process {pid} trains campaign {NAME} already" in again.exception.message

        async def has_groups() -> bool:
            assert stopped.pid() == pid, stopped.log.read_text()
            return bool(await groups.list_groups(db, NAME))

        await until(has_groups, TIMEOUT_S)
        children = psutil.Process(pid).children(recursive=True)
        ended = await in_this_process(*command, "--stop")
        assert "its processes have ended" in ended.output
        assert stopped.pid() is None
        psutil.wait_procs(children, timeout=30)
        assert not [each for each in children if each.is_running() and each.status() != "zombie"]
        record = await campaigns.get(db, NAME)
        assert record.status not in campaigns.ENDS
        # Cancelled meanwhile: its stored end is not taken for the end of what is started now.
        client = await connect(load_settings(stack.home))
        await client.get_workflow_handle(campaign_workflow(NAME)).terminate()
        await campaigns.set_status(db, NAME, CampaignStatus.CANCELLED)

        code, printed, said = await mainspring(*command, "--json")
        assert code == 0, said
        summary = json.loads(printed)
        assert (summary["status"], summary["num_steps"]) == ("finished", 2)
        report = stack.home / "reports" / NAME / "report.html"
        assert summary["report"] == str(report) and report.exists()
        # The free port that was chosen first is the campaign's; a finished one starts nothing.
        assert (await campaigns.get(db, NAME)).config == record.config
        code, printed, said = await mainspring(*command, "--json")
        assert code == 0 and json.loads(printed)["num_rollouts"] == summary["num_rollouts"]
        assert "started rollout" not in said
        for step in await steps.list_steps(db, NAME):
            assert step.metrics.keys() <= TAKEN_NAMES | PASS_NAMES | {*CLIP_NAMES}
            assert step.metrics["goodput"] is not None and step.metrics["mfu"] is None
        followed_once(uri)


def followed_once(uri: str) -> None:
    """By a tracker, over all processes that trained the campaign."""
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("mainspring")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == (NAME, "FINISHED")
    assert run.data.params["trainer.optimizer.name"] == "muon"
    for name, expected in (
        ("policy_version", [1, 2]),
        ("tokens_per_s", [1, 2]),
        ("evaluation/heldout/sampled/resolve_rate", [0, 2]),
    ):
        history = client.get_metric_history(run.info.run_id, name)
        assert sorted(metric.step for metric in history) == expected, name


async def test_a_tracker_that_is_not_installed_is_refused(
    stack: StackInfo, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    file.write_text(FILE.replace(NAME, "no-tracker") + "[tracking.wandb]\n")
    for command in (["train", str(file)], ["campaign", "start", str(file)]):
        ended = await in_this_process(*command, "--home", str(stack.home))
        assert isinstance(ended.exception, MainspringError) and ended.exception.exit_code == 2
        assert "[tracking.wandb] needs the extra 'wandb', which is not" in ended.output
        assert "pip install 'mainspring[wandb]'" in ended.output
    async with Database.open(stack.database_url) as db:
        assert await campaigns.find(db, CampaignId("no-tracker")) is None


async def test_what_cannot_run_is_refused_before_anything_is_stored(
    stack: StackInfo, file: Path
) -> None:
    home = ["--home", str(stack.home)]
    async with Database.open(stack.database_url) as db:
        for change, message in (
            ('model = "Qwen/Qwen3-0.6B"', "'Qwen/Qwen3-0.6B' is a name of the Hugging Face hub"),
            ('model = "/no/such/model"', "/no/such/model: no such directory"),
        ):
            own = FILE.replace(WARM_START, "").replace(NAME, "refused")
            file.write_text(own.replace("[policy]", f"[policy]\n{change}"))
            for command in (["train", str(file)], ["campaign", "start", str(file)]):
                ended = await in_this_process(*command, *home)
                assert isinstance(ended.exception, MainspringError), ended.output
                assert ended.exception.exit_code == 2 and message in ended.output
                assert ended.exception.message.endswith("missing: model")
        nowhere = FILE.replace("[tasks]", '[tasks]\nsource = "nowhere"')
        file.write_text(nowhere.replace(NAME, "refused"))
        ended = await in_this_process("campaign", "start", str(file), *home)
        assert "tasks of nowhere, split train: none" in ended.output
        assert await campaigns.find(db, CampaignId("refused")) is None


async def test_a_dry_run_names_what_the_file_names_and_does_not_exist(
    file: Path, tmp_path: Path
) -> None:
    own = FILE.replace('kind = "bundled"', 'kind = "nobody_at_all:Agent"')
    file.write_text(own.replace('device = "cpu"', 'device = "cpu"\nloss = "clop"'))
    home = tmp_path / "home"
    ended = await in_this_process("train", str(file), "--dry-run", "--home", str(home))
    assert isinstance(ended.exception, MainspringError) and ended.exception.exit_code == 2
    assert ended.exception.message.endswith("missing: agent, algorithm")
    assert "agent 'nobody_at_all:Agent' cannot be imported" in ended.output
    assert "no loss is called 'clop'" in ended.output
    assert "choose from clip, dual_clip, cispo, gspo, nll, or name your own" in ended.output


async def test_a_configured_service_that_is_away_is_missing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = ["--home", str(tmp_path / "home")]
    ended = await in_this_process("train", str(file), "--dry-run", *home)
    assert ended.exit_code == 0 and "starts   temporal: is not running" in ended.output
    monkeypatch.setenv("MAINSPRING_TEMPORAL_ADDRESS", "127.0.0.1:9")
    ended = await in_this_process("train", str(file), "--dry-run", *home)
    assert isinstance(ended.exception, MainspringError) and ended.exception.exit_code == 3
    assert "temporal: 127.0.0.1:9: does not answer" in ended.output
    assert "MAINSPRING_TEMPORAL_ADDRESS" in ended.output


async def test_a_dry_start_names_the_workers_that_are_missing(stack: StackInfo, file: Path) -> None:
    file.write_text(FILE.replace("127.0.0.1:0", "127.0.0.1:9").replace(NAME, "dry-start"))
    ended = await in_this_process(
        "campaign", "start", str(file), "--dry-run", "--home", str(stack.home)
    )
    assert ended.exit_code == 0, ended.output
    assert "nothing polls queue trainer/dry-start" in ended.output
    assert "mainspring worker trainer --campaign dry-start" in ended.output
    async with Database.open(stack.database_url) as db:
        assert await campaigns.find(db, CampaignId("dry-start")) is None


async def test_a_trainer_waits_for_its_campaign(stack: StackInfo, file: Path) -> None:
    file.write_text(FILE.replace("127.0.0.1:0", "127.0.0.1:9").replace(NAME, "trainer-first"))
    config = load_campaign(file)
    arguments = ["worker", "trainer", "--campaign", config.name, "--home", str(stack.home)]
    trainer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mainspring", *arguments), stderr=subprocess.PIPE
    )
    try:
        assert trainer.stderr is not None
        said = (await trainer.stderr.readline()).decode()
        while "waiting for campaign trainer-first to be started" not in said:
            assert said, "it ended"
            said = (await trainer.stderr.readline()).decode()
        client = await connect(load_settings(stack.home))
        async with Database.open(stack.database_url) as db:
            campaign = await launch.create(db, config)
            await until(lambda: pollers(client, db, trainer_queue(campaign), "activity"))
    finally:
        trainer.terminate()
        await trainer.wait()


async def test_ranks_that_share_devices_are_not_placed_by_a_cluster(
    stack: StackInfo, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_RAY_ADDRESS", "ray:6379")
    file.write_text(
        FILE.replace('device = "cpu"', 'device = "cpu"\nengine = "fsdp"\ncolocate = true')
        .replace(NAME, "in-turns")
        .replace("127.0.0.1:0", "127.0.0.1:9")
    )
    home = ["--home", str(stack.home)]
    for command in (["train", str(file), "--dry-run"], ["train", str(file)]):
        ended = await in_this_process(*command, *home)
        assert isinstance(ended.exception, MainspringError) and ended.exception.exit_code == 2
        assert "the Ray cluster at ray:6379 may place them on others" in ended.output
    async with Database.open(stack.database_url) as db:
        assert await campaigns.find(db, CampaignId("in-turns")) is None
        await launch.create(db, load_campaign(file))
    # Of a campaign that was stored where the variable was not set.
    arguments = ["worker", "trainer", "--campaign", "in-turns", *home]
    trainer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mainspring", *arguments), stderr=subprocess.PIPE
    )
    _, told = await asyncio.wait_for(trainer.communicate(), TIMEOUT_S)
    assert trainer.returncode == 2
    assert "unset MAINSPRING_RAY_ADDRESS" in told.decode() and "Traceback" not in told.decode()
