"""The examples: campaign files that load, tasks that are tasks, a README in each folder."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from bundled.forms import speech_of
from mainspring.config.files.reading import (
    check_evaluation,
    load_campaign,
    load_sft,
    read_environments,
)
from mainspring.planning.assumptions import Given
from mainspring.planning.known_models import MODELS
from mainspring.planning.model_shape import read_shape
from mainspring.planning.plan import plan_of
from mainspring.tasks.any_task import read_task
from mainspring.tasks.own_task import OwnTask
from mainspring.trajectories.imported import ImportedChat, read_line

EXAMPLES = Path(__file__).parents[1] / "examples"
FOLDERS = sorted(path for path in EXAMPLES.iterdir() if path.is_dir())


def test_every_example_has_a_page_that_the_index_names() -> None:
    index = (EXAMPLES / "README.md").read_text()
    for folder in FOLDERS:
        assert (folder / "README.md").exists(), folder
        assert f"]({folder.name}/README.md)" in index, folder


@pytest.mark.parametrize(
    "file",
    [*sorted(EXAMPLES.glob("*/campaign.toml")), EXAMPLES / "agentgym" / "quickstart.toml"],
    ids=str,
)
def test_campaign_files_load(file: Path) -> None:
    config = load_campaign(file)
    assert config.name and config.trainer.device in ("cpu", "cuda")


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("bundled-agents/*.toml")), ids=str)
def test_campaigns_of_other_agents_are_the_quickstarts(file: Path) -> None:
    """But for the agent, its turns and what it may see, so that their figures can be compared."""
    config = load_campaign(file)
    speech_of(config.agent)
    quickstart = load_campaign(EXAMPLES.parent / "bundled" / "quickstart.toml")
    for section in ("tasks", "trainer", "evaluation", "sandbox"):
        assert getattr(config, section) == getattr(quickstart, section), section


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("qwen3-*/campaign.toml")), ids=str)
def test_campaigns_for_gpus_fit_gpus_of_80_gb(file: Path) -> None:
    config = load_campaign(file)
    shape = read_shape(MODELS / Path(config.policy.model).name.lower())
    plan = plan_of(config, shape, Given())
    assert plan.lacks_bytes(80_000_000_000) == 0
    assert config.trainer.world_size % 8 == 0 or file.parent.name == "qwen3-8b"
    assert config.policy.max_context == 16384 and config.trainer.group_size == 8


IMPORT = re.compile(r"mainspring tasks import (\S+)([^\n]*)")
WITH_SOURCE = [
    path
    for path in (*sorted(EXAMPLES.glob("*/campaign.toml")), EXAMPLES / "agentgym/quickstart.toml")
    if tomllib.loads(path.read_text()).get("tasks", {}).get("source", "bundled") != "bundled"
]


def imported_splits(line: re.Match[str], source: str) -> set[str]:
    """Those of `source` that the command makes."""
    named, options = line[1], line[2].split()
    given = dict(zip(options[::2], options[1::2], strict=False))
    if given.get("--name") != source:
        return set()
    file = EXAMPLES.parent / named
    if not file.is_file():  # a data set of the hub: which splits it has, only the option tells
        return {given["--split"]}
    if file.suffix == ".toml":
        sections = read_environments(file).values()
        train, heldout = (
            {split for each in sections if getattr(each, f"num_{number}")}
            for split, number in (("train", "tasks"), ("heldout", "heldout"))
        )
        return train | heldout
    rows = [json.loads(row) for row in file.read_text().splitlines()]
    return {row.get("split", given.get("--split", "train")) for row in rows}


@pytest.mark.parametrize("file", WITH_SOURCE, ids=str)
def test_the_splits_of_a_campaign_are_made_by_the_import_lines_beside_it(file: Path) -> None:
    raw = tomllib.loads(file.read_text())
    source = raw["tasks"]["source"]
    wanted = {"train", *raw.get("evaluation", {}).get("splits", ())}
    pages = [file.read_text(), (file.parent / "README.md").read_text()]
    made = [
        {split for each in IMPORT.finditer(page) for split in imported_splits(each, source)}
        for page in pages
    ]
    assert wanted <= set().union(*made), (file, made)
    # A page that tells how to import tells all of it.
    assert all(wanted <= each for each in made if each), (file, made)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*/eval.toml")), ids=str)
def test_evaluation_files_load_once_a_model_is_named(file: Path) -> None:
    raw = tomllib.loads(file.read_text())
    raw["policy"]["model"] = "my-model"
    assert check_evaluation({"name": "eval", **raw}, str(file)).policy.api == "openai"


def test_the_supervised_run_loads_with_its_chats() -> None:
    config = load_sft(EXAMPLES / "sft" / "sft.toml")
    [source] = config.data.sources
    assert source.file is not None
    chats = Path(source.file).read_text().splitlines()
    assert all(isinstance(read_line(line, "chats.jsonl"), ImportedChat) for line in chats)
    assert config.trainer.steps_of(len(chats)) == 8


ROWS = [path for path in EXAMPLES.glob("*/*.jsonl") if path.name != "chats.jsonl"]


@pytest.mark.parametrize("file", sorted(ROWS), ids=str)
def test_rows_are_tasks_with_a_fix(file: Path) -> None:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        task = read_task({"source": "examples", "split": "train", **row})
        assert isinstance(task, OwnTask) or (task.gold_patch and task.tests)
    assert len({row["id"] for row in rows}) == len(rows) >= 3
