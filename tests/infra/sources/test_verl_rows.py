"""Rows in verl's columns: tasks that are answered, tasks with a repository, and files that are
refused as a whole."""

from pathlib import Path
from typing import Any

import pytest
from source_rows import DJANGO, SKLEARN, Row, read, tasks_of, write_lines

from infra.sources.protocol import RowError
from mainspring.agents.single import SingleAgent
from mainspring.config.agents.agent import AgentConfig, SingleAnswer
from mainspring.config.agents.prompts import PromptsConfig
from mainspring.errors import UsageError
from mainspring.tasks.own_task import OwnTask

pyarrow = pytest.importorskip("pyarrow")


def gsm8k(index: object = 0, **columns: Any) -> Row:
    """As verl's script for GSM8K with tools writes it."""
    question = f"A pair has {index} clips. How many have two pairs?"
    row: Row = {
        "data_source": "openai/gsm8k",
        "agent_name": "tool_agent",
        "prompt": [
            {"role": "system", "content": "You are a math expert."},
            {"role": "user", "content": question},
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "1,072"},
        "extra_info": {
            "split": "test",
            "index": index,
            "answer": "1072",
            "question": question,
            "need_tools_kwargs": True,
            "tools_kwargs": {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "1072"}}},
            "interaction_kwargs": {"query": question, "ground_truth": "1072"},
        },
    }
    return row | columns


def written(path: Path, *rows: Row) -> Path:
    import pyarrow.parquet

    columns = dict.fromkeys(column for row in rows for column in row)
    table = pyarrow.table({column: [row.get(column) for row in rows] for column in columns})
    pyarrow.parquet.write_table(table, path)
    return path


def answered(path: Path, **options: Any) -> list[OwnTask]:
    found = [row.result for row in read(path, **options)]
    tasks = [task for task in found if isinstance(task, OwnTask)]
    assert len(tasks) == len(found), found
    return tasks


def test_a_row_is_a_task_that_is_answered_and_no_column_is_lost(tmp_path: Path) -> None:
    rows = [gsm8k(0, note=None), gsm8k(1, note="kept")]
    first, second = answered(written(tmp_path / "test.parquet", *rows))
    assert (first.id, first.source, first.split) == (
        "openai-gsm8k-test-0",
        "openai/gsm8k",
        "test",
    )
    assert (first.kind, first.agent_name) == ("answer", "tool_agent")
    assert first.metadata == {"data_source": "openai/gsm8k", "ability": "math"}
    assert first.data["answers"] == ["1,072"]
    kept = {key: value for key, value in rows[1].items() if key not in ("prompt", "agent_name")}
    assert second.data["row"] == kept and second.data["prompt"] == rows[1]["prompt"]
    assert "expert" in first.issue and "0 clips" in first.issue
    # Of another split, or under another name.
    assert read(tmp_path / "test.parquet", split="train") == []
    assert {task.source for task in answered(tmp_path / "test.parquet", name="mine")} == {"mine"}
    # Lines of the same rows are the same tasks.
    again = answered(write_lines(tmp_path / "test.jsonl", *rows))
    assert again[1].content_hash == second.content_hash


def test_the_single_agent_asks_what_the_row_asks(tmp_path: Path) -> None:
    chat = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "And 2 + 2?"},
    ]
    [task] = answered(written(tmp_path / "a.parquet", gsm8k(prompt=chat)))
    config = AgentConfig(kind="single", single=SingleAnswer.TEXT)
    assert list(SingleAgent(config).opening(task)) == chat
    assert "User: 1 + 1?\n\nAssistant: 2\n\nUser:" in task.issue
    own = config.model_copy(update={"prompts": PromptsConfig(system="Be short.")})
    assert SingleAgent(own).opening(task)[0]["content"] == "Be short."


@pytest.mark.parametrize(
    ("truth", "answers"),
    [("72", ["72"]), (72, ["72"]), (0.5, ["0.5"]), (["a", " b"], ["a", "b"])],
)
def test_text_and_numbers_are_compared(tmp_path: Path, truth: object, answers: list[str]) -> None:
    row = gsm8k(reward_model={"style": "rule", "ground_truth": truth})
    [task] = answered(written(tmp_path / "a.parquet", row))
    assert (task.kind, task.data["answers"]) == ("answer", answers)


def test_a_style_may_name_its_rule(tmp_path: Path) -> None:
    """As in DAPO-Math-17k, whose rows are stored a hundred times each."""
    reward = {"style": "rule-lighteval/MATH_v2", "ground_truth": "34"}
    row = gsm8k(reward_model=reward, extra_info={"index": "9a9b6eb4-a1cb-49d1"})
    [task, again] = answered(written(tmp_path / "a.parquet", row, row))
    assert task == again and task.id == "openai-gsm8k-9a9b6eb4-a1cb-49d1"
    assert (task.kind, task.data["answers"]) == ("answer", ["34"])


@pytest.mark.parametrize(
    "columns",
    [
        {"reward_model": {"style": "rule", "ground_truth": '{"inputs": ["1"], "outputs": ["2"]}'}},
        {"reward_model": {"style": "rule", "ground_truth": {"target": 98, "numbers": [44, 19]}}},
        {"reward_model": {"style": "model", "ground_truth": "72"}},
        {"reward_model": {"style": "model", "ground_truth": None}},
        {"ability": "code"},
        {"data_source": "taco"},
    ],
)
def test_what_comparing_cannot_tell_waits_for_a_class_of_ones_own(
    tmp_path: Path, columns: Row
) -> None:
    [task] = answered(written(tmp_path / "a.parquet", gsm8k(**columns)))
    assert task.kind == "scored_answer" and "answers" not in task.data


def test_a_row_with_a_repository_is_that_row(tmp_path: Path) -> None:
    verl = gsm8k(data_source="swe", agent_name="mini", ability="code")
    inside = [verl | {"extra_info": {**row, "split": "test", "index": 7}} for row in (DJANGO,)]
    carried = verl | {"extra_info": {"instance": SKLEARN, "index": 8}}
    beside = verl | SKLEARN
    expected = tasks_of(read(write_lines(tmp_path / "plain.jsonl", DJANGO, SKLEARN)))
    for row, plain in ((inside[0], expected[0]), (carried, expected[1]), (beside, expected[1])):
        [task] = tasks_of(read(written(tmp_path / "swe.parquet", row)))
        assert (task.source, task.agent_name) == ("swe", "mini")
        assert (task.id, task.test_command) == (plain.id, plain.test_command)
        assert (task.image, task.judge, task.issue) == (plain.image, plain.judge, plain.issue)


def test_rows_without_an_index_are_named_by_their_place(tmp_path: Path) -> None:
    rows = [gsm8k(extra_info=None), gsm8k(extra_info={"index": None, "split": "dev/1"})]
    tasks = answered(written(tmp_path / "a.parquet", *rows))
    assert [task.id for task in tasks] == ["openai-gsm8k-row-1", "openai-gsm8k-dev-1-row-2"]
    assert [task.split for task in tasks] == ["train", "dev/1"]


def test_a_row_that_stands_twice_is_one_task(tmp_path: Path) -> None:
    tasks = answered(written(tmp_path / "a.parquet", gsm8k(3), gsm8k(3)))
    assert tasks[0] == tasks[1]


USER = {"role": "user", "content": "x"}
BAD = [
    ({"prompt": None}, "prompt is missing or empty"),
    ({"prompt": []}, "prompt is missing or empty"),
    ({"prompt": "How many?"}, "prompt must be a list of chat messages"),
    ({"prompt": [USER, {"role": "human", "content": "x"}]}, r"prompt[1].role is 'human'"),
    ({"prompt": [{"role": "user", "content": " "}]}, "prompt[0].content must be text"),
    ({"prompt": [{"role": "user", "content": ["x"]}]}, "prompt[0].content must be text"),
    ({"prompt": [USER, {"role": "assistant", "content": "x"}]}, "ends with a message of the assis"),
    ({"reward_model": None}, "reward_model is missing or empty"),
    ({"reward_model": {"style": "rule", "ground_truth": None}}, "reward_model.ground_truth is mi"),
    ({"reward_model": {"style": "rule", "ground_truth": " "}}, "reward_model.ground_truth is mi"),
    ({"reward_model": {"style": "rule"}}, "reward_model.ground_truth is missing"),
    ({"reward_model": {"style": "vote", "ground_truth": "1"}}, "reward_model.style is 'vote'"),
    ({"data_source": None}, "data_source is missing or empty"),
    ({"data_source": 7}, "data_source must be text"),
    ({"extra_info": "x"}, "extra_info must be an object"),
    ({"extra_info": {"index": True}}, "extra_info.index must be a whole number or a text"),
    ({"extra_info": {"split": 3}}, "split must be text"),
    ({"images": [{"bytes": b"x"}]}, "images: only prompts of text"),
    ({"local_task_path": "/tasks/1"}, "local_task_path names a folder"),
    ({"note": b"\xff"}, "note must be text, numbers"),
    (
        {"note": float("nan")},
        "objects of these, or empty: Out of range",
    ),
    ({"note": "a\0b"}, "one of its columns holds what Postgres cannot store"),
    ({"agent_name": 3}, "agent_name must be text"),
]


@pytest.mark.parametrize(("columns", "said"), BAD, ids=[said for _, said in BAD])
def test_one_bad_row_refuses_the_file_and_is_named(tmp_path: Path, columns: Row, said: str) -> None:
    bad = gsm8k(1) | columns
    # Columns of one file are of one type: the good row takes that of the bad one where they differ.
    path = tmp_path / "bad.parquet"
    try:
        written(path, gsm8k(0), bad)
        place = 2
    except pyarrow.ArrowException:
        written(path, bad)
        place = 1
    with pytest.raises(UsageError) as error:
        read(path)
    assert error.value.exit_code == 2 and not isinstance(error.value, RowError)
    assert error.value.message.startswith(f"{path}:{place}: ") and said in error.value.message
    assert error.value.message.endswith("; nothing was imported") and error.value.remedy


def test_two_rows_of_one_index_are_named(tmp_path: Path) -> None:
    other = gsm8k(4, prompt=[USER])
    path = written(tmp_path / "twice.parquet", gsm8k(4), gsm8k(5), other)
    with pytest.raises(UsageError, match=r"twice\.parquet:3: .*row 1.*extra_info\.index"):
        read(path)


def test_a_table_without_a_reward_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", {"data_source": "s", "prompt": [USER]})
    with pytest.raises(UsageError, match=r"a\.parquet:1: reward_model is missing"):
        read(path)


def test_files_of_pandas_are_read(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([gsm8k(0), gsm8k(1)])
    frame.to_parquet(tmp_path / "a.parquet")
    written(tmp_path / "b.parquet", gsm8k(0), gsm8k(1))
    assert answered(tmp_path / "a.parquet") == answered(tmp_path / "b.parquet")
