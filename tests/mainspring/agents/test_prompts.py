"""Texts of an agent: its own, a file's, or fields; a wrong one is refused before it is used."""

from pathlib import Path

import pytest

from mainspring.agents.bash import BashAgent
from mainspring.agents.choice import check_agent
from mainspring.agents.record import Record
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.agents.prompts import PromptsConfig
from mainspring.config.files.reading import load_campaign
from mainspring.errors import ConfigError
from mainspring.ids import TaskId
from mainspring.tasks.swe_task import SweTask
from mainspring.trajectories.turns import Call, Execution

TASK = SweTask(
    id=TaskId("t-1"),
    source="s",
    split="train",
    issue="{{ system }} breaks.",
    workdir="/repo",
    files={"a": ""},
    test_command="true",
    metadata={"repo": "a/b"},
)
CAMPAIGN = 'name = "c"\n[trainer.warm_start]\n'


def agent(**texts: str) -> BashAgent:
    return BashAgent(AgentConfig(step_limit=5, prompts=PromptsConfig(**texts)))


def call(text: str, finish_reason: str = "stop") -> Call:
    return Call(0, None, 0, (), (), (), (), text, finish_reason)


def test_each_text_has_its_names() -> None:
    mine = agent(
        system="{{ step_limit }} turns of {{ timeout_s }} s, then {{ sentinel }}. {{ tools }}",
        task="{{ task_id }} {{ metadata.repo }} {{ workdir }}: {{ issue | upper }}",
        observation="{{ returncode }}|{{ output }}|{{ turns_left }}|{{ timed_out }}",
        format_error="{{ num_found }}|{{ reason }}|{{ cut_off }}",
    )
    system, task = mine.request(TASK, Record((), ())).messages
    assert system.text == "5 turns of 60 s, then COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT. []"
    assert task.text == "t-1 a/b /repo: {{ SYSTEM }} BREAKS."  # a value is no template
    done = Execution(0, 0, "ls", 3, b"a", False, False, 0.1)
    assert mine.after(call("```bash\nls\n```"), [done]) == "3|a\n|4|False"
    assert mine.after(call("nothing"), []) == "0||False"
    assert mine.after(call("```bash\n", finish_reason="length"), []) == "0||True"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ nothing }}", "agent.prompts.task uses 'nothing', which it lacks"),
        ("{{ output }}", "agent.prompts.task uses 'output', which it lacks"),
        ("{{ issue", "agent.prompts.task, line 1: unexpected end of template"),
        ("\n{% if issue %}", "agent.prompts.task, line 2: Unexpected end of template"),
        ("{{ issue | nofilter }}", "agent.prompts.task, line 1: No filter named 'nofilter'"),
        ("{{ issue.nothing.more }}", "agent.prompts.task: .* has no attribute 'nothing'"),
        ("{{ issue.__class__.__mro__ }}", "agent.prompts.task: access to attribute '__class__'"),
        ("{{ 1 / 0 }}", "agent.prompts.task: ZeroDivisionError"),
        ("{{ issue + 1 }}", "agent.prompts.task: TypeError"),
        ("{% include 'other' %}", "agent.prompts.task: TypeError: no loader"),
        ("{% for i in range(10000000) %}{% endfor %}", "agent.prompts.task: OverflowError"),
    ],
)
def test_a_text_that_cannot_be_filled_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        check_agent(AgentConfig(prompts=PromptsConfig(task=text)))
    assert "its names are issue, workdir" in (refused.value.remedy or "")


def test_every_branch_of_a_text_is_filled() -> None:
    for field, text in (
        ("observation", "{% if num_elided %}{{ nothing }}{% endif %}"),
        ("observation", "{% if timed_out %}{{ head.nothing.more }}{% endif %}"),
        ("format_error", "{% if cut_off %}{{ reason.nothing.more }}{% endif %}"),
    ):
        with pytest.raises(ConfigError, match=f"agent.prompts.{field}"):
            check_agent(AgentConfig(prompts=PromptsConfig.model_validate({field: text})))


def test_a_file_has_texts_and_fields_beside_it_come_first(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('system = "From the file."\ntask = "{{ issue }}"\n')
    file = tmp_path / "c.toml"
    file.write_text(
        CAMPAIGN
        + '[agent.prompts]\nfile = "mine.toml"\nsystem = "From the field."\n'
        + '[agents.second.prompts]\nfile = "mine.toml"\n'
    )
    config = load_campaign(file)
    assert config.agent.prompts.system == "From the field."
    assert config.agent.prompts.task == "{{ issue }}"
    assert config.agent.prompts.file == str(tmp_path / "mine.toml")
    assert config.agents["second"].prompts.system == "From the file."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "mine.toml: cannot be read: No such file"),
        ("system = ", "mine.toml: not TOML"),
        ('sytem = "x"', "agent.prompts.sytem: no such field; did you mean system"),
        ("system = 3", "agent.prompts.system: must be text"),
        ('file = "x"', "names a further file"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "mine.toml").write_text(content)
    file = tmp_path / "c.toml"
    file.write_text(CAMPAIGN + '[agent.prompts]\nfile = "mine.toml"\n')
    with pytest.raises(ConfigError, match=message):
        load_campaign(file)
