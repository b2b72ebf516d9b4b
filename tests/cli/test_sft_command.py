"""`mainspring sft`: a run from a file to a model folder, and every mistake with one message."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bundled.model import make_bundled_model
from cli.main import app
from cli.operations.machine.embedded_stack import StackInfo
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import policies
from infra.policy.model.model_files import check_servable
from mainspring.config.campaign import CampaignConfig
from mainspring.errors import MainspringError
from mainspring.ids import CampaignId
from tests.infra.db.store_records import add_ready_group, task
from tests.infra.policy.tiny_model import save_tiny_model
from tests.sft_files import run_file, write_chats

NAME = "sft-command"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "bundled"
    make_bundled_model(directory, 0)
    return directory


async def mainspring(*arguments: object) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, [str(each) for each in arguments])


def expect(ended: Result, message: str, remedy: str) -> None:
    assert isinstance(ended.exception, MainspringError), ended.output
    assert ended.exception.exit_code == 2
    assert message in ended.exception.message, ended.exception.message
    assert remedy in ended.exception.remedy, ended.exception.remedy


async def test_from_chats_to_a_model_folder(stack: StackInfo, model: Path, tmp_path: Path) -> None:
    write_chats(tmp_path / "chats.jsonl")
    file = run_file(tmp_path / "run.toml", tmp_path / "chats.jsonl", NAME)
    file.write_text(f'{file.read_text()}[policy]\nmodel = "{model}"\n')
    ended = await mainspring("sft", file, "--home", stack.home, "--json")
    assert ended.exit_code == 0, ended.output
    told = json.loads(ended.stdout)
    assert (told["num_steps"], told["num_samples"]) == (6, 24)
    assert told["loss_last"] < told["loss_first"] and len(told["data_sha256"]) == 64
    check_servable(Path(told["model"]))
    assert told["model"].endswith("v00006/hf")
    # Again, it resumes nothing and prints the same; with other fields it is refused.
    again = await mainspring("sft", file, "--home", stack.home)
    assert again.stdout.strip() == told["model"]
    file.write_text(file.read_text().replace("num_steps = 6", "num_steps = 7"))
    expect(await mainspring("sft", file, "--home", stack.home), "trainer.num_steps: 6 -> 7", "")

    at = ("--home", stack.home)
    listed = json.loads((await mainspring("campaign", "list", *at, "--json")).stdout)
    [row] = [each for each in listed if each["name"] == NAME]
    assert (row["kind"], row["num_steps"], row["num_steps_done"]) == ("sft", 6, 6)
    shown = json.loads((await mainspring("campaign", "show", NAME, *at, "--json")).stdout)
    assert shown["supervised"]["model"] == told["model"]
    steps = [line for line in shown["metrics"] if line["kind"] == "step"]
    assert [line["loss"] for line in steps][:: len(steps) - 1] == [
        told["loss_first"],
        told["loss_last"],
    ]
    screen = (await mainspring("campaign", "show", NAME, *at)).stdout
    assert "24 samples, 3,505 tokens" in screen and told["model"] in screen
    report = await mainspring("campaign", "report", NAME, *at)
    page = Path(report.stdout.strip()).read_text()
    assert "<figcaption>Loss " in page and "3,505" in page
    for command in ("rollback", "drop-batch", "fingerprint"):
        ended = await mainspring("campaign", command, NAME, *at)
        expect(ended, f"{NAME} is a supervised run", "mainspring campaign show")


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ('name = "a"\n', "data: is missing", "docs"),
        ('name = "a"\n[data]\nsources = []\n', "data.sources: must have at least 1 entry", "docs"),
        ('name = "a"\n[[data.sources]]\n', "either campaign or file", "docs"),
        ('name = "a"\n[[data.sources]]\nfile = "none"\n', "no file", "[[data.sources]]"),
        ('name = "a"\n[[data.sources]]\nfile = "f"\nmin_reward = 1.0\n', "taken whole", "docs"),
        ('name = "a"\n[agent]\n[[data.sources]]\ncampaign = "b"\n', "agent: no such field", "docs"),
        (
            'name = "a"\n[[data.sources]]\ncampaign = "b"\n[trainer]\nnum_epochs = 2\n'
            "num_steps = 5\n",
            "num_steps and num_epochs",
            "docs",
        ),
        (
            'name = "a"\n[[data.sources]]\ncampaign = "b"\n[policy]\nmodel = "/nowhere"\n',
            "/nowhere: no such directory",
            "Hugging Face",
        ),
        (
            'name = "a"\n[[data.sources]]\ncampaign = "b"\n[trainer]\ndevice = "cpu"\n'
            'engine = "mcore"\n',
            "needs trainer.device = 'cuda'",
            "plain",
        ),
    ],
)
async def test_a_wrong_file(tmp_path: Path, text: str, message: str, remedy: str) -> None:
    file, home = tmp_path / "run.toml", tmp_path / "home"
    if "device" not in text and "[trainer]" not in text:
        text += '[trainer]\ndevice = "cpu"\n'
    file.write_text(text)
    expect(await mainspring("sft", file, "--home", home), message, remedy)
    assert not home.exists()


LINE = '{"token_ids": [1, 2, 3], "action_mask": [false, true, true]}\n'


@pytest.mark.parametrize(
    ("lines", "more", "message", "remedy"),
    [
        (LINE + "{\n", "", "rows.jsonl:2: not JSON", "messages"),
        (
            LINE.replace("3]", "9999999999]"),
            "",
            "token id 9999999999 is beyond the vocabulary of",
            "tokenizer",
        ),
        (LINE * 5, "max_tokens = 2", "5 of 5 samples are longer than 2 tokens", "overlong"),
        (LINE * 3, "", "trainer.batch_size = 4 is more than its 3 samples", "lower"),
        ("\n", "", "there is no sample to train on", "another source"),
    ],
    ids=["line", "vocabulary", "overlong", "batch", "empty"],
)
async def test_samples_that_cannot_be_trained_on(
    stack: StackInfo, model: Path, tmp_path: Path, lines: str, more: str, message: str, remedy: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(lines)
    await refused(
        stack, model, tmp_path, '[[data.sources]]\nfile = "rows.jsonl"', message, remedy, more
    )


async def test_a_campaign_that_cannot_be_trained_on(
    stack: StackInfo, model: Path, tmp_path: Path
) -> None:
    other = save_tiny_model(tmp_path / "other")
    async with Database.open(stack.database_url) as db:
        await tasks.put_tasks(db, [task(0)])
        for name, of in (("sft-other", other), ("sft-unsolved", model), ("sft-gone", model)):
            config = CampaignConfig.model_validate({"name": name, "policy": {"model": str(of)}})
            await campaigns.create(db, config)
            await policies.put_first_policy(db, CampaignId(name), str(of), str(of))
        await add_ready_group(db, 0, CampaignId("sft-unsolved"))
        gone = {"name": "sft-moved", "policy": {"model": "/models/moved"}}
        await campaigns.create(db, CampaignConfig.model_validate(gone))
        text = {"name": "sft-text", "policy": {"model": "gpt", "api": "openai"}}
        await campaigns.create(db, CampaignConfig.model_validate(text))

    for source, message, remedy in (
        ("no-such", "no campaign no-such is stored", ""),
        ("sft-other", "campaign sft-other: its tokenizer", "--format sft"),
        ("sft-moved", "its model /models/moved is not here", "put it back"),
        ("sft-text", "came as text (policy.api = openai)", "--format sft"),
        ("sft-gone", "sft-gone: 0 of 0 rollouts, 0 samples", "choose other rollouts"),
        (
            'sft-unsolved"\nmin_reward = "3',
            "0 of 2 rollouts (2 with a reward below 3), 0 samples",
            "choose other rollouts",
        ),
        ("sft-unsolved", "is beyond the vocabulary", "tokenizer"),
    ):
        given = f'[[data.sources]]\ncampaign = "{source}"'.replace('= "3"', "= 3")
        await refused(stack, model, tmp_path, given, message, remedy)


async def refused(
    stack: StackInfo,
    model: Path,
    folder: Path,
    source: str,
    message: str,
    remedy: str,
    more: str = "",
) -> None:
    """And nothing of the run is stored."""
    file = folder / "run.toml"
    file.write_text(
        f'name = "sft-refused"\n{source}\n[policy]\nmodel = "{model}"\n'
        f'[trainer]\ndevice = "cpu"\nbatch_size = 4\n{more}\n'
    )
    expect(await mainspring("sft", file, "--home", stack.home), message, remedy)
    async with Database.open(stack.database_url) as db:
        assert await campaigns.find(db, CampaignId("sft-refused")) is None
