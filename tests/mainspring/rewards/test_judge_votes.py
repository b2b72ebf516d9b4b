"""Votes read and put together, prompts with their caps, and judges that are refused: worked out."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.operations.checks.named_parts import check_named
from mainspring.config.agents.judges import JudgeConfig, JudgeScope, QuestionScope
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.pairs import warnings
from mainspring.config.files.reading import check_campaign, load_campaign
from mainspring.config.reward import RewardPart
from mainspring.errors import ConfigError, UsageError
from mainspring.programs.reply import Reply
from mainspring.programs.request import ChatMessage, ModelRequest, Role, ToolCall
from mainspring.rewards.judge_prompts import check_prompt, cut, prompt_of
from mainspring.rewards.judges import judge_plans
from mainspring.rewards.scoring import Outcome, RewardBroken, score
from mainspring.rewards.seen import SeenCommand, SeenRecord, SeenTurn, of_program
from mainspring.rewards.votes import (
    Judgement,
    RecentJudgements,
    Vote,
    score_of,
    values_of,
    vote_of,
    warnings_of,
)
from mainspring.status import StopReason, Verdict
from mainspring.trajectories.turn_rewards import TurnRewards


def judge(**fields: Any) -> JudgeConfig:
    return JudgeConfig.model_validate({"url": "http://judge:1/v1", "model": "m"} | fields)


NUMBER = judge(vote="number", low=0, high=10)
JSON = judge(vote="json", field="score")


@pytest.mark.parametrize(
    ("config", "reply", "value"),
    [
        (judge(), r"Good. \boxed{1}", 1.0),
        (judge(), r"Good. \boxed{+1}.", 1.0),
        (judge(), r"\boxed{ -1 }", -1.0),
        (judge(), r"\boxed{good} and so \boxed{-1}, not \boxed{1}", -1.0),
        (judge(), r"\boxed{0.5}", None),
        (judge(), r"\boxed{1.0}", None),
        (judge(), r"\boxed{2}", None),
        (judge(), "boxed{1}", None),
        (judge(), "1", None),
        (judge(), "", None),
        (NUMBER, "It is fine.\n7", 7.0),
        (NUMBER, "It is fine.\n\n**Score: 7.5**\n", 7.5),
        (NUMBER, "7\nI am not sure.", None),
        (NUMBER, "7/10", None),
        (NUMBER, "11", None),
        (NUMBER, "-1", None),
        (NUMBER, "", None),
        (JSON, '{"score": 0.25}', 0.25),
        (JSON, 'First {"score": 1}, no: ```json\n{"why": "{x}", "score": -2}\n```', -2.0),
        (JSON, '{"score": 1, "parts": {"score": 5}}', 1.0),
        (JSON, '{"score": true}', None),
        (JSON, '{"score": "1"}', None),
        (JSON, '{"score": 1e999}', None),
        (JSON, '{"score": NaN}', None),
        (JSON, "{" * 5000, None),
        (JSON, '{"a":' * 5000, None),
        (judge(vote="json", field="score", low=0, high=1), '{"score": 3}', None),
    ],
)
def test_a_vote_is_read_strictly(config: JudgeConfig, reply: str, value: float | None) -> None:
    assert vote_of(config, reply) == value


def votes(*values: float | None) -> list[Vote]:
    return [Vote("", value) for value in values]


@pytest.mark.parametrize(
    ("given", "wanted", "score"),
    [
        (votes(1, 1, -1), 3, 1 / 3),
        (votes(1, None, None), 3, 1.0),
        (votes(None, None, None), 3, 0.0),  # all were given, and none can be read
        (votes(None, None), 3, None),  # one is missing
        (votes(-1), 3, -1.0),
        (votes(), 3, None),
    ],
)
def test_a_judgement_is_the_mean_of_its_valid_votes(
    given: list[Vote], wanted: int, score: float | None
) -> None:
    assert score_of(given, wanted) == pytest.approx(score)


def judged(call: int, score: float | None, of: JudgeScope = JudgeScope.TURNS) -> Judgement:
    return Judgement("q", of, call, score, 0 if score is None else 3, 0)


def test_missing_judgements_are_no_zeros() -> None:
    found = [judged(0, 1.0), judged(1, None), judged(3, 0.0), judged(0, None, JudgeScope.ROLLOUT)]
    assert values_of(found) == {("q", JudgeScope.TURNS): 0.5, ("q", JudgeScope.ROLLOUT): None}
    assert values_of([]) == {}


def outcome(judged: dict[tuple[str, JudgeScope], float | None]) -> Outcome:
    return Outcome(
        rollout="r",
        task="t",
        stop_reason=StopReason.SUBMITTED,
        verdict=Verdict.RESOLVED,
        report=None,
        num_turns=3,
        step_limit=8,
        num_format_errors=0,
        num_completion_tokens=1,
        num_tokens=1,
        max_context=10,
        judged=judged,
    )


def campaign(
    *parts: dict[str, Any], judges: dict[str, Any] | None = None, **fields: Any
) -> CampaignConfig:
    given = {"q": {"url": "http://judge:1/v1", "model": "m"}} if judges is None else judges
    return check_campaign(
        {
            "name": "c",
            "trainer": {"device": "cpu", "warm_start": {}},
            "judges": given,
            "reward": {"parts": list(parts)},
        }
        | fields,
        "c.toml",
    )


def part(of: str = "turns", name: str = "q", **fields: Any) -> dict[str, Any]:
    return {"name": "judge", "judge": name, "of": of} | fields


def test_the_weight_is_the_coefficient_and_what_is_missing_is_not_counted() -> None:
    config = campaign({"name": "outcome"}, part(weight=0.5), part("rollout", weight=2.0))
    parts = config.reward.parts
    scored = score(parts, outcome({("q", JudgeScope.TURNS): -0.5, ("q", JudgeScope.ROLLOUT): 1.0}))
    assert scored.reward == 1.0 - 0.25 + 2.0
    scored = score(parts, outcome({("q", JudgeScope.TURNS): None, ("q", JudgeScope.ROLLOUT): 1.0}))
    assert scored.reward == 3.0
    assert scored.parts == {"outcome": 1.0, "judge.q.turns": None, "judge.q.rollout": 1.0}
    with pytest.raises(RewardBroken, match="no part that could be measured"):
        score(parts[1:], outcome({}))


def test_a_reward_is_taken_apart_by_turns_and_what_is_left_for_the_end() -> None:
    config = campaign({"name": "outcome"}, part(weight=0.5), part("rollout", weight=2.0))
    ended = replace(
        outcome({("q", JudgeScope.TURNS): 0.5, ("q", JudgeScope.ROLLOUT): 1.0}),
        judged_turns={"q": {0: 1.0, 2: None, 3: 0.0}},
    )
    scored = score(config.reward.parts, ended)
    assert scored.reward == 1.0 + 0.25 + 2.0
    assert scored.turns == TurnRewards(3.0, {0: 0.5, 2: None, 3: 0.0})
    assert TurnRewards.of_stored(json.loads(json.dumps(scored.turns.stored()))) == scored.turns
    assert (scored.turns.of(1), scored.turns.of(2)) == (0.0, None)
    without = campaign({"name": "outcome"}, part("rollout"))
    assert score(without.reward.parts, ended).turns is None


def test_rewards_of_steps_are_their_turns() -> None:
    parts = (
        RewardPart(name="score"),
        RewardPart(name="steps", weight=0.5),
        RewardPart.model_validate(part(weight=2.0)),
    )
    ended = replace(
        outcome({("q", JudgeScope.TURNS): 0.5}),
        step_rewards={0: 1.0, 2: -0.25},
        judged_turns={"q": {0: 1.0, 1: 0.0}},
    )
    scored = score(parts, ended)
    assert scored.parts == {"score": 1.0, "steps": 0.75, "judge.q.turns": 0.5}
    assert scored.reward == 1.0 + 0.375 + 1.0
    assert scored.turns == TurnRewards(1.0, {0: 2.5, 1: 0.0, 2: -0.125})
    assert score(parts[:2], replace(ended, step_rewards={})).turns == TurnRewards(1.0, {})


def test_two_judges_of_turns_add_up_and_one_that_is_missing_leaves_none() -> None:
    parts = (
        RewardPart.model_validate(part(name="a", weight=2.0)),
        RewardPart.model_validate(part(name="b", weight=-1.0)),
    )
    ended = replace(
        outcome({("a", JudgeScope.TURNS): 0.5, ("b", JudgeScope.TURNS): None}),
        judged_turns={"a": {0: 1.0, 1: 0.0}, "b": {0: None, 1: None}},
    )
    scored = score(parts, ended)
    assert scored.reward == 1.0
    assert scored.turns == TurnRewards(0.0, {0: None, 1: None})


def test_a_judge_that_is_all_of_a_reward_is_required() -> None:
    assert [plan.required for plan in judge_plans(campaign(part(), part("rollout")))] == [True] * 2
    assert [plan.required for plan in judge_plans(campaign({"name": "outcome"}, part()))] == [False]


ONE_JUDGE = {"url": "http://judge:1/v1", "model": "m"}


@pytest.mark.parametrize(
    ("judge", "part_of", "says"),
    [
        ({"votes": 0}, {}, r"judges\.q\.votes: must be at least 1"),
        ({}, {"judge": "z"}, r"no section \[judges\.z\]; there are: q"),
        ({}, {"of": "steps"}, "must be 'turns' or 'rollout'"),
        ({"vote": "json"}, {}, 'vote = "json" needs field'),
        ({"field": "score"}, {}, "field has no effect"),
        ({"vote": "number"}, {}, "needs low and high"),
        ({"vote": "number", "low": 2, "high": 2}, {}, "low = 2 must be below high = 2"),
        ({"low": 0, "high": 1}, {}, '"boxed" reads'),
        ({"url": "judge"}, {}, "not an http.s. URL"),
        ({"url": ""}, {}, "url is missing"),
        ({"model": ""}, {}, "model is missing"),
        ({"temprature": 1}, {}, "no such field; did you mean temperature"),
        ({}, {"options": {"x": 1}}, "takes no options"),
    ],
)
def test_a_judge_that_cannot_be_asked_is_refused(
    judge: dict[str, Any], part_of: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        campaign(part() | part_of, judges={"q": ONE_JUDGE | judge})


def test_parts_are_named_once_and_unused_judges_are_told() -> None:
    with pytest.raises(UsageError, match="named twice"):
        check_named(campaign(part(), part()))
    with pytest.raises(UsageError, match="no judge is called 'anthropic'"):
        check_named(campaign(part(), judges={"q": ONE_JUDGE | {"kind": "anthropic"}}))
    with pytest.raises(ConfigError, match="is no name of a judge"):
        campaign({"name": "outcome"}, judges={"a b": ONE_JUDGE})
    with pytest.raises(ConfigError, match='belong to name = "judge"'):
        campaign({"name": "outcome", "judge": "q"})
    unused = campaign({"name": "outcome"})
    assert any("[judges.q] is used by no part" in line for line in warnings(unused))
    assert not any("[judges.q]" in line for line in warnings(campaign(part())))
    with pytest.raises(
        ConfigError, match=r"reproducible.*deterministic in each section of \[judges"
    ):
        campaign(part(), schedule="reproducible")
    promised = campaign(
        part(), judges={"q": ONE_JUDGE | {"deterministic": True}}, schedule="reproducible"
    )
    assert promised.repeats


@pytest.mark.parametrize(
    ("prompt", "of", "says"),
    [
        ("{{ isue }}", "turns", "'isue' is undefined.*fields are answer, issue, steps, turn"),
        ("{{ turn.reply }}", "rollout", "'turn' is undefined.*answer, issue, patch, steps"),
        ("{{ turn.text }}", "turns", "no attribute 'text'"),
        ("a\n{% if %}", "turns", "line 2"),
        ("{{ issue.__class__ }}", "turns", "SecurityError"),
        ("{# nothing #}", "turns", "it is empty"),
        ("{{ 1 / 0 }}", "turns", "ZeroDivisionError"),
    ],
)
def test_a_prompt_is_tried_before_a_run_is_stored(prompt: str, of: str, says: str) -> None:
    config = campaign(part(of), judges={"q": ONE_JUDGE | {"prompt": prompt}})
    with pytest.raises(UsageError, match=r"judges\.q\.prompt") as refused:
        check_named(config)
    said = str(refused.value).replace("\n", " ")
    assert re.search(says, said), said


def test_a_prompts_file_is_read_with_the_campaign_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        'name = "c"\n[trainer]\ndevice = "cpu"\n[trainer.warm_start]\n'
        '[judges.q]\nurl = "http://judge:1/v1/"\nmodel = "m"\nprompt_file = "p/judge.txt"\n'
        '[[reward.parts]]\nname = "judge"\njudge = "q"\nof = "turns"\n'
    )
    with pytest.raises(ConfigError, match=r"judges\.q\.prompt_file: p/judge\.txt cannot be read"):
        load_campaign(file)
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "judge.txt").write_text("Judge {{ turn.number }}. {{ answer }}")
    config = load_campaign(file)
    read = config.judges["q"]
    assert (read.prompt, read.prompt_file) == ("Judge {{ turn.number }}. {{ answer }}", None)
    assert read.url == "http://judge:1/v1"
    file.write_text(file.read_text().replace("prompt_file", 'prompt = "x"\nprompt_file'))
    with pytest.raises(ConfigError, match="exclude each other"):
        load_campaign(file)


def ran(output: str, command: str = "ls") -> SeenCommand:
    return SeenCommand(command, 0, output)


def test_every_text_is_cut_in_its_middle() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("abcdefgh", 3) == "ab\n[5 characters are left out here]\nh"
    turns = [SeenTurn(n, f"r{n}" * 100, (ran(f"<{n}>" * 1000),)) for n in range(1, 21)]
    small = judge(steps=2, step_output_chars=30, output_chars=60, reply_chars=20, issue_chars=10)
    shown = prompt_of(small, JudgeScope.TURNS, SeenRecord("i" * 100, turns, 5))
    assert "Turn 18" in shown and "Turn 17" not in shown and "(22 turns are left out" in shown
    assert len(shown) < 2500 and "[90 characters are left out here]" in shown
    assert f"[{4000 - 60} characters are left out here]" in shown

    whole = judge(step_output_chars=30, reply_chars=20, rollout_chars=400, patch_chars=10)
    shown = prompt_of(whole, JudgeScope.ROLLOUT, SeenRecord("issue", turns, patch="p" * 99))
    # Both ends are shown.
    assert "Turn 1\n" in shown and "Turn 20" in shown and "turns are left out here" in shown
    assert len(shown) < 4000 and "[89 characters are left out here]" in shown


def test_what_an_agent_wrote_is_never_a_template() -> None:
    turn = SeenTurn(1, "{{ issue }}{% raise %}", (ran("{{ 7 * 7 }}", "echo '{{ turn }}'"),))
    shown = prompt_of(judge(), JudgeScope.TURNS, SeenRecord("{{ answer }}", [turn]))
    for text in ("{{ issue }}{% raise %}", "{{ 7 * 7 }}", "echo '{{ turn }}'", "{{ answer }}"):
        assert text in shown


@pytest.mark.parametrize("config", [judge(), NUMBER, JSON, judge(steps=0)])
@pytest.mark.parametrize("of", list(JudgeScope))
def test_the_built_in_prompts_can_be_filled(config: JudgeConfig, of: JudgeScope) -> None:
    check_prompt(config, of)
    nothing = SeenRecord("issue", [SeenTurn(1, "hm")])
    assert prompt_of(config, of, nothing).endswith((".", "\n"))


def test_a_programs_turns_are_those_of_its_last_request() -> None:
    call = ToolCall(name="bash", arguments='{"command": "ls"}', id="1")
    request = ModelRequest(
        messages=(
            ChatMessage(role=Role.SYSTEM, text="You are a client."),
            ChatMessage(role=Role.USER, text="Fix it."),
            ChatMessage(role=Role.ASSISTANT, text="I look.", tool_calls=(call,)),
            ChatMessage(role=Role.TOOL, text="calc.py", call_id="1"),
        )
    )
    assert of_program(request, Reply(text="Done.")) == [
        SeenTurn(1, "I look.", (SeenCommand('bash {"command": "ls"}', None, "calc.py"),)),
        SeenTurn(2, "Done."),
    ]


def test_a_form_that_is_never_met_is_told_once_there_are_enough_judgements() -> None:
    unread = Judgement("q", QuestionScope.TURNS, 0, 0.0, num_votes=2, num_valid=0)
    recent = RecentJudgements("q", (unread,) * 3, "I like it")
    assert list(warnings_of(recent)) == [] == list(warnings_of(recent, 4))
    [warning] = warnings_of(recent, 3)
    assert warning.startswith("judge q: no vote of its newest 3") and "I like it" in warning
    one_read = replace(unread, num_valid=1)
    assert list(warnings_of(replace(recent, judgements=(unread, one_read)), 1)) == []
    assert list(warnings_of(RecentJudgements("q", (), None), 1)) == []
