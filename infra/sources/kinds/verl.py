"""Rows in verl's columns, as rows of the kinds that are read here.

A row with a repository in its columns or in `extra_info` is that row of a data set. All others are
answered with a text: of the kind `answer` where their ground truth is text or numbers, else of the
kind `scored_answer`, which a class of one's own scores. Invariants: a prompt reaches the policy as
the row has it, or the row is refused; no column is lost. Pure. Imported by `rows` and `files`.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from infra.sources.fields import Row, from_json, text, text_or
from infra.sources.protocol import RowError, RowProblem
from infra.sources.wrapped import unwrapped
from mainspring.tasks.answer import ANSWER, ANSWERS, PROMPT, ROLES, SCORED_ANSWER

REWARD = "reward_model"
SOURCE = "data_source"
EXTRA = "extra_info"
RULE, MODEL = "rule", "model"
_MEDIA = ("images", "videos", "audios")
_OF_PROGRAMS = frozenset({"codecontests", "apps", "codeforces", "taco"})
"""Data sets whose answers are programs that verl runs."""
_OF_REPOSITORIES = frozenset(
    ("base_commit", "FAIL_TO_PASS", "eval_script", "docker_image", "test_command")
)
_CARRIED = frozenset(("instance", "instance_dict"))
_OF_VERL = (SOURCE, PROMPT, "ability", REWARD, EXTRA, "agent_name")
_NO_NAME = re.compile(r"[^\w.:@+~=,-]+")


def is_verl(columns: Collection[str]) -> bool:
    """Whether rows with these columns are verl's."""
    names = set(columns)
    return REWARD in names or ({PROMPT, SOURCE} <= names and not _OF_REPOSITORIES & names)


def as_row(raw: Row, number: int | None) -> tuple[Row, str]:
    """The row of another kind, and its data set. `number`: its place in the file, its name where
    `extra_info` has no index. Raises RowError naming a column."""
    source = text(raw, SOURCE)
    extra = _mapping(raw, EXTRA) if raw.get(EXTRA) is not None else {}
    rest = {key: value for key, value in raw.items() if key not in _OF_VERL}
    kept = {key: text(raw, key) for key in ("agent_name",) if raw.get(key) not in (None, "")}
    if split := text_or(extra, "split", ""):
        kept["split"] = split
    if raw.get("local_task_path"):
        raise RowError(
            RowProblem.UNSUPPORTED,
            "local_task_path names a folder with a Harbor task, which the row does not hold",
            remedy="import the folder itself (`mainspring tasks import FOLDER`)",
        )
    messages = _messages(raw)
    # Parquet gives every row each field that one of them has.
    swe = {key: value for key, value in {**rest, **extra}.items() if value is not None}
    if any(swe.get(field) not in (None, "", [], {}) for field in _OF_REPOSITORIES | _CARRIED):
        row = unwrapped({"problem_statement": messages[-1]["content"], **swe})[0]
        return {**row, **kept}, source
    if media := [column for column in _MEDIA if raw.get(column)]:
        raise RowError(
            RowProblem.UNSUPPORTED, f"{media[0]}: only prompts of text can be asked here"
        )
    style, truth = _reward(raw)
    answers = None if _is_scored(raw, source, style) else _answers(truth)
    left_out = (PROMPT, "agent_name")
    columns = {key: value for key, value in raw.items() if key not in left_out}
    for column, value in columns.items():
        _check_kept(column, value)
    data: dict[str, Any] = {PROMPT: messages, "row": columns}
    if answers is not None:
        data[ANSWERS] = answers
    return {
        "id": _id(source, split, extra, number),
        "kind": SCORED_ANSWER if answers is None else ANSWER,
        "issue": _shown(messages),
        "data": data,
        "metadata": {SOURCE: source} | _ability(raw),
        **kept,
    }, source


def _messages(raw: Row) -> list[dict[str, str]]:
    messages = from_json(raw.get(PROMPT))
    if raw.get(PROMPT) in (None, "") or messages == []:
        raise RowError(RowProblem.MISSING_FIELD, f"{PROMPT} is missing or empty")
    if not isinstance(messages, list):
        raise RowError(RowProblem.WRONG_TYPE, f"{PROMPT} must be a list of chat messages")
    found = []
    for i, message in enumerate(messages):
        where = f"{PROMPT}[{i}]"
        if not isinstance(message, Mapping):
            raise RowError(
                RowProblem.WRONG_TYPE, f"{where} must be a message with role and content"
            )
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise RowError(
                RowProblem.WRONG_TYPE,
                f"{where}.role is {str(role)[:40]!r}, expected one of {', '.join(ROLES)}",
            )
        if not isinstance(content, str) or not content.strip():
            raise RowError(RowProblem.WRONG_TYPE, f"{where}.content must be text, and not empty")
        found.append({"role": role, "content": content})
    if found[-1]["role"] != "user":
        raise RowError(
            RowProblem.WRONG_TYPE,
            f"{PROMPT} ends with a message of the {found[-1]['role']}, expected the user's",
        )
    return found


def _reward(raw: Row) -> tuple[str, object]:
    """The style, and the ground truth: None where a model scores without one."""
    reward = _mapping(raw, REWARD)
    style, truth = reward.get("style"), reward.get("ground_truth")
    # Some data sets name their rule in the style, as DAPO's "rule-lighteval/MATH_v2".
    is_rule = style == RULE or str(style).startswith(f"{RULE}-")
    if not is_rule and style != MODEL:
        raise RowError(
            RowProblem.WRONG_TYPE,
            f"{REWARD}.style is {str(style)[:40]!r}, expected {RULE!r} or {MODEL!r}",
        )
    is_empty = isinstance(truth, str) and not truth.strip()
    if is_rule and (truth is None or is_empty or truth in ([], {})):
        raise RowError(RowProblem.MISSING_FIELD, f"{REWARD}.ground_truth is missing or empty")
    return RULE if is_rule else MODEL, truth


def _is_scored(raw: Row, source: str, style: str) -> bool:
    """Whether comparing could never tell."""
    return style == MODEL or raw.get("ability") == "code" or source in _OF_PROGRAMS


def _answers(truth: object) -> list[str] | None:
    """The accepted answers; None for what is no text and no number."""
    listed = truth if isinstance(truth, list) else [truth]
    # Test cases and the like are kept as JSON text.
    if any(isinstance(each, Mapping | list) for each in (*listed, *map(from_json, listed))):
        return None
    if any(isinstance(each, bool) or not isinstance(each, str | int | float) for each in listed):
        return None
    texts = [each.strip() if isinstance(each, str) else str(each) for each in listed]
    if not all(texts):
        raise RowError(RowProblem.MISSING_FIELD, f"{REWARD}.ground_truth holds an empty text")
    return texts


def _id(source: str, split: str, extra: Row, number: int | None) -> str:
    index = extra.get("index")
    if index is None or index == "":
        index = f"row-{number}"
    elif isinstance(index, bool) or not isinstance(index, str | int):
        raise RowError(RowProblem.WRONG_TYPE, f"{EXTRA}.index must be a whole number or a text")
    words = filter(None, (source, split, str(index)))
    return "-".join(_NO_NAME.sub("-", word).strip("-") for word in words)


def _shown(messages: list[dict[str, str]]) -> str:
    """The prompt as one text, for screens and for agents with system texts of their own."""
    if all(message["role"] != "assistant" for message in messages):
        return "\n\n".join(message["content"] for message in messages)
    return "\n\n".join(f"{each['role'].capitalize()}: {each['content']}" for each in messages)


def _ability(raw: Row) -> dict[str, str]:
    return {"ability": text(raw, "ability")} if raw.get("ability") not in (None, "") else {}


def _check_kept(column: str, value: object) -> None:
    """Raises RowError for what is not kept as it is: bytes, dates, NaN."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RowError(
            RowProblem.WRONG_TYPE,
            f"{column} must be text, numbers, lists and objects of these, or empty: {error}",
            remedy="leave the column out, or make it text",
        ) from None


def _mapping(raw: Row, column: str) -> Row:
    value = from_json(raw.get(column))
    if raw.get(column) in (None, ""):
        raise RowError(RowProblem.MISSING_FIELD, f"{column} is missing or empty")
    if not isinstance(value, Mapping):
        raise RowError(RowProblem.WRONG_TYPE, f"{column} must be an object")
    return value
