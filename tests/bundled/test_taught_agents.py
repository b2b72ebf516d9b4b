"""What the bundled model is taught of an agent is what a served rollout has, token by token."""

import random
from functools import cache

import pytest

from bundled.forms import SUBMIT, speech_of, taught_agent
from bundled.generator import make_instances
from bundled.trajectories import steps_of
from bundled.warm_start_data import sequences_of
from cli.operations.checks.checklist_item import State
from cli.operations.checks.model_item import model_item
from mainspring.agents.protocol import Command, commands_in
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.errors import ConfigError
from tests.bundled.taught_agents import TAUGHT, Taught, served, taught

known = cache(taught)
WITH_CONTEXT = [name for name, agent in TAUGHT.items() if "context" in agent]
NUM_TASKS = 4


@pytest.mark.parametrize("name", TAUGHT)
def test_written_rollouts_have_the_tokens_of_served_ones(name: str) -> None:
    case = known(name)
    rng = random.Random(name)
    for instance in make_instances(1, "train", NUM_TASKS):
        edit = rng.choice(instance.edits)
        written = case.writer.rollout(instance, edit).calls
        outputs = [step.output for step in steps_of(instance, edit)]
        calls = served(case.config, case.tokenizer, instance, written, outputs)
        for one, other in zip(written, calls, strict=True):
            assert one.prompt_ids == other.prompt_ids
            assert one.completion_ids == other.completion_ids
            assert (one.parent, one.prompt_start) == (other.parent, other.prompt_start)
            assert (one.text, one.parts) == (other.text, other.parts)
            assert (one.rewritten, one.is_summary) == (other.rewritten, other.is_summary)


@pytest.mark.parametrize("name", TAUGHT)
def test_the_agent_reads_each_written_command(name: str) -> None:
    case = known(name)
    agent = speech_of(case.config).agent
    for instance in make_instances(2, "train", NUM_TASKS):
        for edit in instance.edits:
            calls = case.writer.rollout(instance, edit).calls
            commands = [commands_in(agent, call.reply) for call in calls if not call.is_summary]
            steps = steps_of(instance, edit)
            assert commands == [(Command(step.command),) for step in steps]
            assert steps[-1].command == SUBMIT


@pytest.mark.parametrize("name", TAUGHT)
def test_each_reply_counts_once(name: str) -> None:
    case = known(name)
    (instance,) = make_instances(3, "train", 1)
    calls = case.writer.rollout(instance, instance.fix).calls
    counted = [
        token
        for sequence in sequences_of(calls, 0.2)
        for token in sequence.token_ids[sequence.weights == 1].tolist()
    ]
    assert counted == [token for call in calls for token in call.completion_ids]


@pytest.mark.parametrize("name", WITH_CONTEXT)
def test_contexts_are_reached_and_kept(name: str) -> None:
    case = known(name)
    used = 0
    for instance in make_instances(4, "train", 20):
        calls = case.writer.rollout(instance, instance.fix).calls
        used += any(call.rewritten is not None for call in calls)
        assert all(call.end <= 160 for call in calls)
        for call in calls:
            if call.is_summary:
                assert call.text == f"I read {instance.module}."
    assert used >= 15, used


@pytest.mark.parametrize("name", TAUGHT)
def test_words_of_tasks_and_long_texts_are_a_token_each(name: str) -> None:
    case = known(name)
    assert len(_encoded(case, "calc_value")) == len(_encoded(case, "find_metric")) == 3
    (instance,) = make_instances(5, "heldout_templates", 1)
    first = case.writer.rollout(instance, instance.fix).calls[0]
    assert len(first.prompt_ids) < 60
    assert len(first.completion_ids) < 25


def _encoded(case: Taught, text: str) -> list[int]:
    return case.tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    "agent",
    [
        {"kind": "single"},
        {"kind": "tools", "tools": ["view", "edit", "submit"]},
        {"kind": "tools", "tool_parser": "qwen_xml"},
        {"kind": "react", "tools": ["bash"]},
    ],
    ids=str,
)
def test_an_agent_that_cannot_be_taught_is_refused_before_anything_starts(agent: dict) -> None:
    with pytest.raises(ConfigError, match=f"cannot be taught the agent '{agent['kind']}'"):
        speech_of(AgentConfig.model_validate(agent))
    config = CampaignConfig.model_validate(
        {"name": "c", "agent": agent, "trainer": {"warm_start": {}}}
    )
    item = model_item(config)
    assert item.state is State.MISSING and "cannot be taught" in item.found and item.fix


def test_a_program_is_taught_the_bundled_agents_form() -> None:
    program = AgentConfig(kind="command", options={"command": "true"})
    assert taught_agent(program) == AgentConfig(kind="bundled")
