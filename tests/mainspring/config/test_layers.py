"""Files that extend files, variables and `--set`: which value wins, where it is said to come from,
and what is refused. What `--dump` prints is a file again."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from mainspring.config.files.dumping import DEFAULT, dumped
from mainspring.config.files.layers import Overrides
from mainspring.config.files.presets import with_preset
from mainspring.config.files.reading import load_campaign, load_sft, read_layers, read_toml
from mainspring.errors import ConfigError

BASE = """
[agent]
kind = "tools"
step_limit = 7
tools = ["bash", "submit"]

[policy]
max_context = 512
max_new_tokens = 40

[[reward.parts]]
name = "outcome"

[[reward.parts]]
name = "length"
options = { free_tokens = 8 }
"""
FILE = """
extends = "base.toml"
name = "layered"

[agent]
step_limit = 9

[agents.Coder]
kind = "bash"

[trainer]
device = "cpu"
num_steps = 5

[trainer.warm_start]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "base.toml").write_text(BASE)
    path = tmp_path / "campaign.toml"
    path.write_text(FILE)
    return path


def over(*fields: str, **variables: str) -> Overrides:
    return Overrides(fields, {"HOME": "/h", "MAINSPRING_HOME": "/m", **variables})


def test_what_is_nearer_to_the_command_line_wins(file: Path) -> None:
    assert load_campaign(file).agent.step_limit == 9
    assert load_campaign(file).agent.tools == ("bash", "submit")
    variable = {"MAINSPRING__AGENT__STEP_LIMIT": "11", "MAINSPRING__POLICY__MAX_CONTEXT": "600"}
    assert load_campaign(file, overrides=over(**variable)).agent.step_limit == 11
    above = over("agent.step_limit=12", "agent.step_limit = 13", **variable)
    config = load_campaign(file, overrides=above)
    assert (config.agent.step_limit, config.policy.max_context) == (13, 600)
    origins = read_layers(file, above).origins
    assert origins["agent.step_limit"] == "--set"
    assert origins["policy.max_context"] == "MAINSPRING__POLICY__MAX_CONTEXT"
    assert origins["agent.kind"] == str(file.parent / "base.toml")
    assert origins["trainer.num_steps"] == str(file)


@pytest.mark.parametrize(
    ("field", "read"),
    [
        ("agent.kind=react", lambda c: c.agent.kind == "react"),
        ('agent.kind="react"', lambda c: c.agent.kind == "react"),
        ("name=2026-11-27", lambda c: c.name == "2026-11-27"),
        ("agent.tools=['bash']", lambda c: c.agent.tools == ("bash",)),
        ("trainer.optimizer.lr=5e-7", lambda c: c.trainer.optimizer.lr == 5e-7),
        ("agent.override=true", lambda c: c.agent.override),
        ("agent.prompts.system=Be = brief", lambda c: c.agent.prompts.system == "Be = brief"),
        ("agent.prompts.system=", lambda c: c.agent.prompts.system == ""),
        ("reward.parts.1.weight=0.5", lambda c: [p.weight for p in c.reward.parts] == [1, 0.5]),
        (
            "reward.parts.1.options.free_tokens=9",
            lambda c: c.reward.parts[1].options["free_tokens"],
        ),
        ("reward.parts=[{name='outcome'}]", lambda c: len(c.reward.parts) == 1),
        ("agents.Coder.step_limit=3", lambda c: c.agents["Coder"].step_limit == 3),
        ("agents.'my coder'.kind=bash", lambda c: c.agents["my coder"].kind == "bash"),
        ("agent.react.memory=3", lambda c: c.agent.react.memory == 3),
    ],
)
def test_a_field_is_set(file: Path, field: str, read: Any) -> None:
    assert read(load_campaign(file, overrides=over(field)))


def test_a_variable_finds_names_with_capitals(file: Path) -> None:
    config = load_campaign(file, overrides=over(MAINSPRING__AGENTS__CODER__STEP_LIMIT="3"))
    assert config.agents["Coder"].step_limit == 3
    config = load_campaign(file, overrides=over(MAINSPRING__REWARD__PARTS__0__WEIGHT="2"))
    assert [part.weight for part in config.reward.parts] == [2.0, 1.0]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("agent.step_limit", "--set 'agent.step_limit' has no value"),
        ("", "--set '' has no value"),
        ("=3", "names no field"),
        ("agent..x=1", "--set agent..x: 'agent..x' names no field"),
        ("agent.step_limit=0", "agent.step_limit (of --set): must be at least 1, not 0"),
        ("agent.step_limit=many", "(of --set): must be a whole number, not 'many'"),
        ("agent.step_limt=3", "no such field; did you mean step_limit?"),
        ("agent=5", "agent (of --set): must be a section"),
        ("reward.parts.5.weight=1", "reward.parts has 2 entries, counted from 0, and no number 5"),
        ("reward.parts.0.0=1", "reward.parts.0.0"),
        ("agent.tools.0.kind=x", "agent.tools.0"),
        ("extends=base.toml", "only a file extends another one"),
        ("kind=eval", "kind: no such field"),
        ("seed=1\nname='x'", "seed (of --set): must be a whole number"),
    ],
)
def test_what_cannot_be_set_is_refused(file: Path, field: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_campaign(file, overrides=over(field))
    assert message in refused.value.message and refused.value.remedy


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("MAINSPRING__AGENT__", "variable MAINSPRING__AGENT__ names no field"),
        ("MAINSPRING__", "names no field"),
        ("MAINSPRING__AGNT__KIND", "agnt (of MAINSPRING__AGNT__KIND): no such field"),
        ("MAINSPRING__SEED", "seed (of MAINSPRING__SEED): must be a whole number, not 'x'"),
    ],
)
def test_a_variable_that_sets_nothing_is_named(file: Path, variable: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_campaign(file, overrides=over(**{variable: "x"}))
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ('extends = "campaign.toml"', "extends itself"),
        ("extends = 3", "extends: must be the name of a file, or a list of them"),
        ('extends = ["nothere.toml"]', "there is no file 'nothere.toml'"),
        ("agent = 3 3", "not TOML"),
        ("[agent]\nstp = 3", "no such field"),
    ],
)
def test_a_base_that_cannot_be_read_is_named(file: Path, base: str, message: str) -> None:
    (file.parent / "base.toml").write_text(base)
    with pytest.raises(ConfigError, match=r"base\.toml") as refused:
        load_campaign(file)
    assert message in refused.value.message


def test_paths_count_from_the_file_that_they_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bases", "here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "prompts.toml").write_text(f'system = "of {name}"\ntask = "{name}"')
    for name in ("bases", "here"):
        (tmp_path / name / "model").mkdir()
        (tmp_path / name / "model" / "config.json").write_text("{}")
    (tmp_path / "bases" / "base.toml").write_text(
        'policy.model = "model"\nagent.prompts = { file = "prompts.toml", system = "own" }\n'
    )
    file = tmp_path / "there" / "c.toml"
    file.write_text('extends = "../bases/base.toml"\nname = "p"\n')
    monkeypatch.chdir(tmp_path / "here")
    below = read_layers(file).table
    assert below["policy"]["model"] == str(tmp_path / "bases" / "model")
    assert (below["agent"]["prompts"]["task"], below["agent"]["prompts"]["system"]) == (
        "bases",
        "own",
    )
    above = read_layers(file, over("policy.model=model", "agent.prompts.file=prompts.toml")).table
    assert above["policy"]["model"] == str(tmp_path / "here" / "model")
    # A file of prompts takes the place of the other one, with what stood beside that.
    assert above["agent"]["prompts"]["system"] == "of here"


def test_the_last_of_several_bases_wins(file: Path) -> None:
    (file.parent / "other.toml").write_text("[agent]\nkind = 'react'\nstep_limit = 5\n")
    file.write_text(FILE.replace('"base.toml"', '["base.toml", "other.toml"]'))
    config = load_campaign(file)
    assert (config.agent.kind, config.agent.step_limit) == ("react", 9)


def test_what_is_dumped_is_the_same_file_again(file: Path, tmp_path: Path) -> None:
    above = over("agent.preset=swe-bench", 'agent.prompts.system=\\ "\u00e9" \x7f\n{{ issue }}')
    config = load_campaign(file, overrides=above)
    lines = list(dumped(config, with_preset(read_layers(file, above))))
    again = tmp_path / "again.toml"
    again.write_text("\n".join(line for line, _ in lines))
    assert load_campaign(again) == config
    origins = dict(lines)
    assert origins['agent.kind = "tools"'] == str(file.parent / "base.toml")
    assert origins["agent.command_timeout_s = 60.0"] == "preset swe-bench"
    assert origins["trainer.group_size = 8"] == DEFAULT
    # An empty section gives no value.
    assert origins["trainer.warm_start.batch_size = 8"] == DEFAULT


def test_files_of_supervised_runs_extend_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "base.toml").write_text('[[data.sources]]\nfile = "a.jsonl"\n')
    file = tmp_path / "sft.toml"
    file.write_text('extends = "data/base.toml"\nname = "s"\n')
    config = load_sft(file, over("trainer.num_epochs=3", "data.overlong=skip"))
    assert config.data.sources[0].file == str(tmp_path / "data" / "a.jsonl")
    assert (config.trainer.num_epochs, config.data.overlong) == (3, "skip")


class Anything(BaseModel):
    value: dict[str, Any]


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9)


@given(
    st.dictionaries(
        TEXTS,
        st.recursive(
            SCALARS | TEXTS,
            lambda inside: (
                st.lists(inside.filter(lambda each: each is not None), max_size=3)
                | st.dictionaries(TEXTS, inside, min_size=1, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=3,
    )
)
def test_every_value_is_dumped_as_toml(value: dict[str, Any]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8", newline="") as file:
        file.write("\n".join(line for line, _ in dumped(Anything(value=value), {})))
        file.flush()
        read = read_toml(Path(file.name)).get("value", {})
    assert read == _without_none(value)


def _without_none(value: Any, *, is_inline: bool = False) -> Any:
    if isinstance(value, dict):
        filled = ((name, each) for name, each in value.items() if each is not None)
        inside = {name: _without_none(each, is_inline=is_inline) for name, each in filled}
        # A table of unset fields alone leaves no line; in a list it has none to leave.
        return {k: v for k, v in inside.items() if is_inline or v != {} or value[k] == {}}
    if isinstance(value, list):
        return [_without_none(each, is_inline=True) for each in value]
    return value
