"""`rollout show` in plain text: who wrote what, how a program ended, nothing cut inside a word."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cli.rollout.rollout_screen import print_list, print_one
from infra.db.rollouts.labels import Marks
from mainspring.status import Player, RolloutPhase, StopReason, Verdict
from mainspring.tasks.criterion import GradeReport
from reports.one_rollout import CommandView, TurnView
from reports.program_view import LifeView, ProgramView
from tests.cli.test_terminal_text import HOSTILE, SHOWN

INSTRUCTIONS = "\n".join(f"Line {n} of what the client tells its model." for n in range(200))
CLAUDE = {"type": "result", "subtype": "success", "is_error": True, "result": "gave up"}


def turn(number: int, told: str, reply: str) -> TurnView:
    return TurnView(
        number=number,
        extends=number - 1 or None,
        reply=reply,
        num_prompt_tokens=10,
        num_completion_tokens=2,
        policy_versions=[],
        reply_s=1.0,
        finish_reason="stop",
        not_run=None,
        commands=[CommandView("ls", 0, HOSTILE, False, False, 0.1, None, False)],
        branch="main",
        told=told,
    )


def rollout(printed: str = "", text: str = "Fix it.") -> Any:
    record = SimpleNamespace(
        id="c/r000000/000",
        task=text,
        player=Player.POLICY,
        phase=RolloutPhase.DONE,
        verdict=Verdict.NOT_RESOLVED,
        reward=0.0,
        stop_reason=StopReason.EXITED,
        num_turns=2,
        spent_s=10.0,
        epoch=0,
        patch_note=text,
        started_at=None,
        phase_s={},
        fault=text,
        suspicions=[],
        reward_parts={"tests": 0.0},
    )
    return SimpleNamespace(
        record=record,
        split="train",
        policy_version=0,
        agent=None,
        task=SimpleNamespace(issue=text),
        cost=0.0042,
        training=None,
        marks=Marks(),
        model=None,
        patch=text,
        report=None,
        grade_output=text,
        judgements=[],
        program=ProgramView("claude-code", [LifeView(1, 1, printed)], 2, 0, 0, 0, 0),
        turns=[
            turn(1, f"[system] {INSTRUCTIONS}\n[user] Please fix this issue.", "I look at it."),
            turn(2, f"[tool] {text}", text),
        ],
    )


def shown(capsys: pytest.CaptureFixture[str], seen: Any, only_turn: int | None = None) -> str:
    print_one(seen, only_turn=only_turn)
    return capsys.readouterr().out


def test_a_reply_is_told_from_what_it_answers(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, rollout()).splitlines()
    assert "[user] Please fix this issue." in lines
    assert "[assistant] I look at it." in lines
    assert lines.index("[user] Please fix this issue.") < lines.index("[assistant] I look at it.")


def test_an_evaluations_rollout_names_its_model(capsys: pytest.CaptureFixture[str]) -> None:
    seen = rollout()
    assert "(train, policy version 0)" in shown(capsys, seen)
    seen.model = "qwen3-8b"
    assert "(train, model qwen3-8b)" in shown(capsys, seen)


def test_a_patch_of_megabytes_is_shown_by_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    seen = rollout()
    seen.patch = "+line of a build\n" * 100_000
    told = shown(capsys, seen)
    assert len(told) < 250_000
    assert (
        "characters more; `mainspring rollout show c/r000000/000 --patch` prints it whole" in told
    )


def test_a_system_prompt_is_whole_only_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    short = shown(capsys, rollout())
    assert "Line 0 of" in short and "Line 199 of" not in short
    assert "characters more: --turn 1 shows them]" in short
    assert INSTRUCTIONS in shown(capsys, rollout(), only_turn=1)


@pytest.mark.parametrize(
    ("printed", "line"),
    [
        (
            json.dumps({**CLAUDE, "terminal_reason": "rapid_refill_breaker"}),
            "its words: error, rapid_refill_breaker: gave up",
        ),
        (
            '{"type":"turn.failed","error":{"message":"no stream"}}',
            "its words: turn.failed: no str",
        ),
        ("words " * 200, "printed: ... words words"),
        ("\x1b[1mProvider List: https://example.com/docs\x1b[0m\n", "printed: Provider List: http"),
        (f"{'x' * 310}\x1b[31m{'word ' * 59}end", "printed: ... word word"),
        ('half of a line","exit_code":0}\n{"type":"note"}\n', 'printed: {"type":"note"}'),
        ("z" * 1000, "printed: ... zzz"),
    ],
)
def test_what_a_program_printed_is_cut_between_words(
    capsys: pytest.CaptureFixture[str], printed: str, line: str
) -> None:
    text = shown(capsys, rollout(printed))
    [found] = [each.strip() for each in text.splitlines() if each.startswith("    ")]
    assert found.startswith(line)
    assert len(found) < 330


def test_calls_of_a_program_are_not_called_turns(capsys: pytest.CaptureFixture[str]) -> None:
    assert "ended by the program, after 2 calls" in shown(capsys, rollout())


def test_text_of_a_rollout_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, rollout(HOSTILE, HOSTILE))
    assert text.count(SHOWN) >= 9 and "\x1b" not in text and "\x9b" not in text


@pytest.mark.parametrize("with_time", [True, False])
def test_a_list_shows_what_it_is_sorted_by(
    capsys: pytest.CaptureFixture[str], with_time: bool
) -> None:
    row = rollout().record
    row.num_turns, row.epoch, row.labels = 3, 0, []
    print_list("c", [row], 1, 10, with_time=with_time)
    printed = capsys.readouterr().out
    assert ("10 s" in printed) == with_time and ("time" in printed.splitlines()[1]) == with_time


def test_a_game_is_told_in_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    seen = rollout()
    seen.record.reward_parts = {"score": 0.5}
    seen.record.reward, seen.record.stop_reason = 0.5, StopReason.SUBMITTED
    seen.report = GradeReport(judge="agentgym", score=0.5)
    seen.task.kind = "rooms"
    seen.program = None
    ran = CommandView("go left", 0, "A door.", False, False, 0.1, 0.5, True)
    seen.turns[-1] = replace(seen.turns[-1], commands=[ran])
    lines = shown(capsys, seen).splitlines()
    assert "result     not resolved: it scored 0.5; reward 0.50" in lines
    assert "ended by   its environment, after 2 turns, 10 s" in lines
    assert "cost       $0.0042" in lines
    assert any(line.endswith(", reward 0.5]") for line in lines)
    assert len([line for line in lines if line.split()[:1] == ["score"]]) == 1
    assert not [line for line in lines if line.startswith("test output")]
