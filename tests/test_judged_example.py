"""The example of a judge of turns: its tasks, its agent, its judge, and its two campaigns."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bundled.generator import TEST_FILE
from mainspring.agents.bash_block import SUBMIT_SENTINEL
from mainspring.agents.record import Record
from mainspring.config.files.reading import load_campaign
from mainspring.tasks.swe_task import SweTask
from mainspring.trajectories.turns import Call, Execution

EXAMPLE = Path(__file__).parents[1] / "examples" / "judged-turns"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of the example, which stand in no package."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import three_bugs  # pyright: ignore[reportMissingImports]
    import useful  # pyright: ignore[reportMissingImports]

    yield three_bugs, useful
    for name in ("three_bugs", "useful"):
        sys.modules.pop(name)


def passes(task: SweTask, files: dict[str, str], place: Path) -> bool:
    for name, text in (files | task.tests).items():
        (place / name).write_text(text)
    ran = subprocess.run(
        [sys.executable, "-S", "-E", "-B", TEST_FILE], cwd=place, capture_output=True, timeout=30
    )
    return ran.returncode == 0


def test_a_task_is_solved_when_all_of_its_bugs_are_fixed(modules: Any, tmp_path: Path) -> None:
    three_bugs, _ = modules
    for number, parts in enumerate(three_bugs.together("heldout")[:4]):
        task = three_bugs.joined(parts, f"task-{number}")
        fixed = {p.module: p.fix.apply(p.task.files[p.module]) for p in parts}
        assert passes(task, fixed, tmp_path)
        for part in parts:
            broken = {part.module: part.task.files[part.module]}
            assert not passes(task, fixed | broken, tmp_path), task.id


def test_the_judge_finds_the_fix_alone_useful_among_all_edits(modules: Any) -> None:
    three_bugs, useful = modules
    for parts in three_bugs.together("train")[:60]:
        issue = three_bugs.joined(parts, "task").issue
        before = ""
        for part in parts:
            assert useful.is_useful(issue, before, f"cat {part.module}")
            assert not useful.is_useful(issue, before, part.fix.sed_command(part.module))
            before += f"\ncat {part.module}\n{part.task.files[part.module]}"
            for edit in part.edits:
                command = edit.sed_command(part.module)
                assert useful.is_useful(issue, before, command) == (edit == part.fix), command
            assert not useful.is_useful(issue, before, part.fix.sed_command("other.py"))
        assert not useful.is_useful(issue, before, "cat nothing.py")
        assert not useful.is_useful(issue, before, f"echo {SUBMIT_SENTINEL}")


def test_each_issue_is_asked_about_in_three_turns_of_its_own(modules: Any) -> None:
    three_bugs, _ = modules
    agent = three_bugs.OneByOne(load_campaign(EXAMPLE / "outcome.toml").agent)
    task = three_bugs.joined(three_bugs.together("heldout")[0], "task")
    calls: list[Call] = []
    ran: list[Execution] = []
    for turn in range(9):
        messages = agent.request(task, Record(calls, ran)).messages
        issues = [issue for issue in task.issue.split("\n") if issue == messages[1].text]
        assert issues == [task.issue.split("\n")[turn // 3]]
        assert len(messages) == 2 + 2 * (turn % 3)
        text = f"THOUGHT: x\n\n```bash\necho {SUBMIT_SENTINEL}\n```"
        calls.append(Call(turn, None, 0, (), (), (), (), text=text, finish_reason="stop"))
        output = f"{SUBMIT_SENTINEL}\n".encode()
        ran.append(Execution(turn, 0, f"echo {SUBMIT_SENTINEL}", 0, output, False, False, 0.0))
        assert agent.is_done(ran[-1]) == (turn == 8)


def test_the_two_campaigns_differ_in_the_judge_alone(modules: Any) -> None:
    outcome, judged = (load_campaign(EXAMPLE / f"{name}.toml") for name in ("outcome", "judged"))
    same = {
        "name": outcome.name,
        "judges": outcome.judges,
        "reward": outcome.reward,
        "trainer": judged.trainer.model_copy(update={"advantage": outcome.trainer.advantage}),
    }
    assert judged.model_copy(update=same) == outcome
    assert judged.trainer.advantage == "step_wise"
