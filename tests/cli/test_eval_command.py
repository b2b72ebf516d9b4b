"""`mainspring eval run` against a real engine with SGLang's API: the whole way, by the command."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from engines import serving
from tiny_model import save_tiny_model
from typer.testing import CliRunner, Result

from bundled.model import CHAT_TEMPLATE, make_bundled_model
from cli.main import app
from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.runs import campaign_launch as launch
from infra.db.database import Database
from infra.db.rollouts import rollouts, turns
from infra.db.runs import campaigns
from infra.policy.model.tokenizer import ChatTokenizer
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable
from mainspring.config.campaign import CampaignConfig
from mainspring.errors import EngineError, MainspringError, UsageError
from mainspring.ids import CampaignId
from tests.chat_endpoint import chat_endpoint

FILE = """
[tasks]
source = "bundled"
[agent]
step_limit = 3
max_format_errors = 2
kind = "bundled"
[policy]
max_context = 1024
max_new_tokens = 16
[run]
split = "heldout"
slice = "0:5"

[evaluation.choose]
by = "majority"
"""


async def evaluate(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mainspring", "eval", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    printed, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode(), said.decode()


async def in_this_process(*arguments: str) -> Result:
    """Sooner: what is imported already need not be imported again. In a thread, as the command
    runs a loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["eval", *arguments])


async def test_a_few_bundled_tasks(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        await BwrapBackend(tmp_path / "sandboxes").probe()
    except BackendUnavailable as error:
        pytest.skip(error.message)
    monkeypatch.setenv("MAINSPRING_NODE_ID", "eval-command")
    # The machine that runs the tests may be short of memory: that is not what they test.
    monkeypatch.setenv("MAINSPRING_NODE_MIN_FREE_MEMORY_MB", "0")
    model = await asyncio.to_thread(save_tiny_model, tmp_path / "model")
    file, output = tmp_path / "eval.toml", tmp_path / "output"
    file.write_text(FILE.replace('kind = "bundled"', 'kind = "bash"'))
    common = ["--home", str(stack.home), "--name", "eval-command", "--json"]
    with serving(model) as url:
        options = ["--model", str(model), "--base-url", url, "--slice", "0:2", "--n", "2"]
        options += ["--agent", "bundled", "--shuffle", "1"]
        code, printed, said = await evaluate(
            "run", str(file), *options, *common, "--output", str(output)
        )
    assert code == 0, said
    summary = json.loads(printed)
    assert (summary["total"], summary["tasks"], summary["scored"]) == (4, 2, 4)
    assert [each["k"] for each in summary["pass_at_k"]] == [1, 2]
    assert [(each["k"], each["num_tasks"]) for each in summary["chosen_at_n"]] == [(1, 2), (2, 2)]
    assert summary["chosen_by"] == "majority"
    assert json.loads((output / "summary.json").read_text())["campaign"] == "eval-command"
    assert len((output / "results.jsonl").read_text().splitlines()) == 4

    async with Database.open(stack.database_url) as db:
        record = await campaigns.get(db, CampaignId("eval-command"))
    # The option stands above the file's kind, and both are stored with the run.
    assert record.config.agent.kind == "bundled" and record.config.agent.step_limit == 3
    other = await in_this_process(
        *("run", str(file), *options[:-1], "2", *common, "--output", str(output))
    )
    assert "shuffle: 1 -> 2" in str(other.exception)

    # It is done: no engine is needed to hear so again, and nothing runs twice.
    again = await in_this_process("run", str(file), *options, *common, "--output", str(output))
    assert json.loads(again.stdout) == summary


SAMPLING = """
[policy.sampling]
top_k = 1
presence_penalty = 0.5
stop = ["e"]
chat_template_kwargs = { tone = "dry" }
"""


async def test_a_file_tells_how_its_model_is_sampled(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundled model with a template that has a variable: prompts have its value, the most
    likely token is taken at temperature 1, and replies end with the stop string, as served."""
    try:
        await BwrapBackend(tmp_path / "sandboxes").probe()
    except BackendUnavailable as error:
        pytest.skip(error.message)
    monkeypatch.setenv("MAINSPRING_NODE_ID", "eval-sampling")
    monkeypatch.setenv("MAINSPRING_NODE_MIN_FREE_MEMORY_MB", "0")
    model = tmp_path / "model"
    await asyncio.to_thread(make_bundled_model, model, 0)
    template = CHAT_TEMPLATE.replace(
        "assistant\n{% endif %}", "assistant\n{% if tone %}({{ tone }}){% endif %}{% endif %}"
    )
    assert template != CHAT_TEMPLATE
    (model / "chat_template.jinja").write_text(template)
    file = tmp_path / "eval.toml"
    file.write_text(FILE + SAMPLING)
    name = "eval-sampling"
    with serving(model) as url:
        options = ["--model", str(model), "--base-url", url, "--slice", "0:1", "--n", "2"]
        home = ["--home", str(stack.home), "--json", "--output", str(tmp_path / "out")]
        code, _, said = await evaluate("run", str(file), *options, "--name", name, *home)
        assert code == 0, said
        file.write_text(FILE + SAMPLING.replace("tone =", "tune ="))
        misspelled = await in_this_process(
            "run", str(file), *options, "--name", "misspelled", *home
        )
        assert "does not use 'tune'" in str(misspelled.exception)
    tokenizer = ChatTokenizer(model)
    async with Database.open(stack.database_url) as db:
        assert await campaigns.find(db, CampaignId("misspelled")) is None
        firsts: set[tuple[int, ...]] = set()
        for each in await rollouts.list_rollouts(db, campaign=CampaignId(name)):
            calls, _ = await turns.history(db, each.id, each.epoch)
            firsts.add(calls[0].completion_ids)
            for call in calls:
                reply = list(call.completion_ids)
                assert tokenizer.written(call.prompt_ids).endswith("assistant\n(dry)")
                has_ended = "e" in tokenizer.written(reply)
                ends_itself = reply[-1] in tokenizer.stop_token_ids
                assert (call.finish_reason == "stop") == (has_ended or ends_itself)
                assert "e" not in tokenizer.written(reply[:-1])
            assert any("e" in tokenizer.written(call.completion_ids) for call in calls)
        assert len(firsts) == 1


async def test_bad_input_is_one_message(stack: StackInfo, tmp_path: Path) -> None:
    file = tmp_path / "eval.toml"
    file.write_text(FILE)
    home = ["--home", str(stack.home)]
    engine = ["--api", "openai", "--model", "m", "--base-url", "http://127.0.0.1:9"]
    for arguments, code, message in (
        (["run"], 2, "an evaluation needs --source"),
        (
            ["run", "--source", "s", "--model", "m", "--api", "openai", "--base-url", "e:1"],
            2,
            "eval run: --base-url: 'e:1' is not an http(s) URL",
        ),
        (
            ["run", "--source", "s", *engine, "--slice", "five"],
            2,
            "eval run: --slice: 'five' is not",
        ),
        (
            ["run", "--source", "s", *engine, "--task", "a)"],
            2,
            "eval run: --task: 'a)' is not a regular expression: unbalanced parenthesis",
        ),
        (["run", "--source", "s", *engine, "--agent", "nope"], 2, "no agent is called 'nope'"),
        (
            ["run", str(file), *engine, "--no-workers", "--task", "no such id"],
            2,
            "no tasks in split 'heldout' within 0:5 whose id matches 'no such id'",
        ),
        (
            ["run", "--source", "nowhere", "--no-workers", *engine],
            2,
            "no tasks of source 'nowhere'",
        ),
        (["run", str(file), *engine], 3, "no reply from http://127.0.0.1:9: ConnectError"),
        (["run", str(file), "--model", "gone"], 2, f"directory {Path.cwd()}/gone: no such"),
        (["regrade", "no-such-campaign"], 2, "no campaign no-such-campaign is stored"),
    ):
        ended = await in_this_process(*arguments, *home)
        assert isinstance(ended.exception, MainspringError), ended.output
        assert ended.exception.exit_code == code and message in ended.exception.message
        assert ended.exception.remedy
    with chat_endpoint() as endpoint:
        endpoint.script.append((401, {}, {"error": "no such key"}))
        ended = await in_this_process("run", str(file), *engine[:-1], endpoint.url, *home)
        assert isinstance(ended.exception, EngineError) and "no such key" in str(ended.exception)
    async with Database.open(stack.database_url) as db:
        text_only = {"api": "openai", "model": "m"}
        training = CampaignConfig.model_validate({"name": "text-only", "policy": text_only})
        with pytest.raises(UsageError, match="no tokens to train on"):
            await launch.create(db, training)
        names = {each.id for each in await campaigns.list_all(db)}
        assert "text-only" not in names and not [name for name in names if "nowhere" in name]
