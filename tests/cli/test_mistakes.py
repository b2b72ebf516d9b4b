"""Mistakes that people make on the command line: one message that names the thing, what to do, the
right exit code, and nothing half-made.

Mistakes with engines, images, rows, disks and ports are tried beside the code that meets them.
"""

import asyncio
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from cli.operations.machine.embedded_stack import StackInfo
from infra.db.database import Database
from infra.db.runs import campaigns
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.errors import MainspringError
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus

FILE = """
name = "mistaken"
[policy]
model = "bundled"
[trainer.warm_start]
"""


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        (None, "cannot be read: No such file or directory", "path of a TOML file"),
        ('name = "a"\nseed = \n', "at line 2", "key = value"),
        (FILE + "[policy]\nmodel = 3\n", "Cannot declare", "key = value"),
        (FILE + "[agent]\nstep_limt = 3\n", "agent.step_limt: no such field; did you mean", "docs"),
        (FILE + '[agent]\nstep_limit = "ten"\n', "step_limit: must be a whole number", "bounds"),
        (FILE.replace("mistaken", "My Campaign"), "'My Campaign'", "docs/campaign.md"),
        (FILE + "[tasks]\nsource = 3\nnum_train = 0\n", 'must be text in quotes ("...")', "docs"),
        (FILE.replace("[policy]", "[policy]\nengines = ['e:1']"), "'e:1' is not an http", "docs"),
    ],
    ids=["no file", "syntax", "section twice", "key", "type", "name", "two at once", "url"],
)
async def test_a_wrong_campaign_file(
    tmp_path: Path, text: str | None, message: str, remedy: str
) -> None:
    file, home = tmp_path / "campaign.toml", tmp_path / "home"
    if text is not None:
        file.write_text(text)
    ended = await run("campaign", "start", str(file), "--home", str(home))
    expect(ended, 2, message, remedy)
    assert str(file) in str(ended.exception)
    if text and "num_train" in text:
        assert "tasks.num_train: must be at least 1" in str(ended.exception)
    assert not home.exists()


@pytest.mark.parametrize(
    ("arguments", "message", "remedy"),
    [
        (["run", "--model", "m"], "needs --source", "give it"),
        (["run", "--source", "s"], "needs --model", "give it"),
        (["run", "--source", "s", "--model", "gpt-9"], "no such directory", "add --api openai"),
        (
            ["run", "--source", "s", "--model", "gpt-9", "--api", "openai"],
            "needs --base-url",
            "--base-url http://",
        ),
        (
            ["run", "--source", "s", "--model", "m", "--api=openai", "--base-url=127.0.0.1:31555"],
            "eval run: --base-url: '127.0.0.1:31555' is not an http(s) URL",
            "docs",
        ),
        (["run", "none.toml"], "none.toml: cannot be read", "path of a TOML file"),
    ],
)
async def test_a_wrong_evaluation(
    tmp_path: Path, arguments: list[str], message: str, remedy: str
) -> None:
    home = tmp_path / "home"
    ended = await run("eval", *arguments, "--home", str(home))
    expect(ended, 2, message, remedy)
    assert not home.exists()


@pytest.mark.parametrize("how", [[], ["--dry-run"], ["--detach"]])
async def test_what_the_checklist_refuses_leaves_nothing(tmp_path: Path, how: list[str]) -> None:
    file, home = tmp_path / "campaign.toml", tmp_path / "home"
    file.write_text(f'{FILE}[agent]\nkind = "nope"\n')
    ended = await run("train", str(file), *how, "--home", str(home))
    expect(ended, 2, "nothing was stored; missing: ", 'the lines "missing"')
    told = " ".join(ended.output.split())
    assert "no agent is called 'nope'" in told and "choose from bash, bundled" in told
    assert not home.exists()


async def test_what_the_store_refuses_is_not_stored(stack: StackInfo, tmp_path: Path) -> None:
    file = tmp_path / "campaign.toml"
    common = ["campaign", "start", str(file), "--home", str(stack.home), "--force"]
    for text, message, remedy in (
        (FILE + '[tasks]\nsource = "nowhere"\n', "'nowhere' has no tasks", "import the tasks"),
        (FILE + '[[reward.parts]]\nname = "outcom"\n', "outcom", "choose from outcome"),
    ):
        file.write_text(text)
        expect(await run(*common), 2, message, remedy)
    async with Database.open(stack.database_url) as db:
        assert "mistaken" not in {each.id for each in await campaigns.list_all(db)}


LISTS = {"advantage": "grpo, dr_grpo", "filter": "mixed, none", "loss": "clip", "engine": "plain"}
SHAPES = (
    ("advantage", "math:pi", "is a float, expected a plain function"),
    ("advantage", "math:sqrt", "cannot be called as (rewards_G, trainer)"),
    ("filter", "builtins:list", "is a type, expected a plain function"),
    ("filter", "math:hypot2", "cannot be imported: AttributeError"),
    ("loss", "math:sqrt", "cannot be called as (tokens, trainer)"),
    ("loss", "asyncio:sleep", "is a coroutine function, expected"),
    ("engine", "math:sqrt", "is a builtin_function_or_method, expected a class"),
    ("engine", "builtins:dict", "lacks optimizer, logprobs, forward_backward"),
)


async def test_an_algorithm_that_cannot_be_used_is_not_stored(
    stack: StackInfo, tmp_path: Path
) -> None:
    file = tmp_path / "campaign.toml"
    wrong = [(field, "grpoo", f"no {field} is called 'grpoo'") for field in LISTS]
    wrong += [(each, "no_such:f", f"{each} 'no_such:f' cannot be imported") for each in LISTS]
    for field, value, message in (*wrong, *SHAPES):
        file.write_text(f'{FILE}[trainer]\n{field} = "{value}"\n')
        ended = await run("campaign", "start", str(file), "--home", str(stack.home), "--force")
        expect(ended, 2, message, LISTS[field])
        assert repr(value) in str(ended.exception) and field in str(ended.exception)
    async with Database.open(stack.database_url) as db:
        assert "mistaken" not in {each.id for each in await campaigns.list_all(db)}


@pytest.mark.parametrize(
    "arguments",
    [
        ["campaign", "show", "no-such"],
        ["campaign", "watch", "no-such"],
        ["campaign", "pause", "no-such"],
        ["campaign", "cancel", "no-such"],
        ["campaign", "report", "no-such"],
        ["rollout", "list", "no-such"],
        ["rollout", "show", "no-such/g000000/000"],
        ["rollout", "export", "out", "--campaign", "no-such"],
        ["eval", "regrade", "no-such"],
    ],
    ids=" ".join,
)
async def test_an_unknown_id(stack: StackInfo, arguments: list[str]) -> None:
    ended = await run(*arguments, "--home", str(stack.home))
    expect(ended, 2, "no-such", "")
    assert isinstance(ended.exception, MainspringError) and ended.exception.remedy


async def test_watching_a_campaign_that_failed_tells_why(stack: StackInfo) -> None:
    name = CampaignId("watched")
    async with Database.open(stack.database_url) as db:
        await campaigns.create(db, CampaignConfig(name=name, policy=PolicyConfig(model="m")))
        await campaigns.set_status(
            db, name, CampaignStatus.FAILED, f"campaign {name}: no GPU\n  start one"
        )
    ended = await run("campaign", "watch", name, "--home", str(stack.home))
    expect(ended, 4, "campaign watched ended as failed: no GPU", "mainspring campaign show watched")


async def test_a_temporal_that_does_not_answer(
    stack: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setenv("MAINSPRING_TEMPORAL_ADDRESS", address)
    async with Database.open(stack.database_url) as db:
        await campaigns.create(db, CampaignConfig(name="paused", policy=PolicyConfig(model="m")))
    ended = await run("campaign", "pause", "paused", "--home", str(stack.home))
    expect(ended, 3, f"Temporal at {address} does not answer: ", "mainspring status")
    assert "tonic" not in str(ended.exception) and "Os {" not in str(ended.exception)


@pytest.mark.parametrize("words", [["campain", "list"], ["campaign", "lst"]], ids=" ".join)
async def test_a_typing_error_in_the_command(words: list[str]) -> None:
    ended = await run(*words)
    assert ended.exit_code == 2
    assert "Did you mean" in ended.output


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments))


def expect(ended: Result, code: int, message: str, remedy: str) -> None:
    error = ended.exception
    assert isinstance(error, MainspringError), ended.output + repr(error)
    assert error.exit_code == code
    assert message in error.message and remedy in error.remedy, str(error)
