"""The house: what the README promises exists, what is pinned is enough, what starts is light."""

import json
import re
import runpy
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from mainspring.config.files.reading import load_campaign
from mainspring.config.settings import Settings
from tests.test_dependency_rule import PACKAGES, sources

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = (
    *("README.md", "AGENTS.md", "CONTRIBUTING.md"),
    *sorted(str(path.relative_to(ROOT)) for path in DOCS.rglob("*.md")),
)
HEAVY = (
    *("torch", "ray", "temporalio", "sqlalchemy", "docker", "transformers", "matplotlib"),
    *("pydantic", "structlog", "numpy", "mlflow", "wandb", "opentelemetry"),
)
_FIGURE = r"\d[\d,.]*\d(?:e-?\d+)?|\d"
_COMMAND = re.compile(r"mainspring((?: [a-z]+(?:-[a-z]+)*)+)")


def test_the_command_line_starts_without_anything_heavy() -> None:
    program = "import json, sys, cli.main; print(json.dumps(list(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {module.partition(".")[0] for module in json.loads(run.stdout)}
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_pages_exist(page: str) -> None:
    from cli.main import app

    found = _commands(ROOT / page)
    assert found or page != "README.md"
    for words in found:
        command: Any = typer.main.get_command(app)
        for word in words:
            if not hasattr(command, "commands"):
                break
            assert word in command.commands, f"{page}: `mainspring {' '.join(words)}`"
            command = command.commands[word]


def test_every_command_has_its_page() -> None:
    from cli.main import app

    documented = {words[:2] for words in _commands(DOCS / "commands.md")}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        for words in [(name, sub) for sub in getattr(command, "commands", ())] or [(name,)]:
            assert any(each[: len(words)] == words for each in documented), " ".join(words)


def test_every_variable_of_the_settings_has_its_page() -> None:
    told = set(re.findall(r"`MAINSPRING_(\w+)`", (DOCS / "variables.md").read_text()))
    assert told == {name.upper() for name in Settings.model_fields}


def test_readme_is_short_and_names_the_test_command() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 250
    found = re.search(r"^<!-- test-command -->\n```\w*\n(.*?)\n```", text, re.MULTILINE | re.DOTALL)
    assert found is not None and found[1] == "make test"


def test_what_it_reaches_is_short_and_in_the_log() -> None:
    lines = (DOCS / "performance.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    rows = [each for each in cells if each[0] != "what"]
    assert 20 <= len(rows) <= 40
    assert [each for each in rows if len(each) != 5] == []
    log = "\n".join(path.read_text() for path in (DOCS / "measurements").glob("*.md"))
    logged = set(re.findall(_FIGURE, log))
    unknown = {
        row[0]: number for row in rows for number in set(re.findall(_FIGURE, row[1])) - logged
    }
    assert unknown == {}, "add the row to docs/measurements first"


def test_make_targets_in_the_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        used = set(re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / page).read_text(), re.MULTILINE))
        assert used <= targets, page


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text()):
            assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"


def test_agents_page_is_short_and_shared() -> None:
    assert (ROOT / "AGENTS.md").read_text().count("\n") < 100
    assert (ROOT / "CLAUDE.md").read_text() == "@AGENTS.md\n"


def pins_of(file: str) -> dict[str, str]:
    """By name."""
    lines = (ROOT / file).read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name.partition("[")[0]): pin for name, pin in pins.items()}


@pytest.mark.parametrize(
    ("file", "more"), [("constraints.txt", ()), ("constraints-harbor.txt", ("harbor",))]
)
def test_constraints_pin_every_requirement_within_its_bounds(
    file: str, more: tuple[str, ...]
) -> None:
    pins = pins_of(file)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for line in [
        *project["dependencies"],
        *extras["train"],
        *extras["mlflow"],
        *extras["wandb"],
        *extras["otel"],
        *extras["dev"],
        *(line for extra in more for line in extras[extra]),
    ]:
        requirement = Requirement(line)
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{file} lacks {requirement.name}: make constraints"
        assert requirement.specifier.contains(pin), f"{line}, pinned {pin}"
    assert "+" not in pins["torch"], "a local version exists on one machine's index only"


def test_every_pin_installs_on_every_python_that_is_promised() -> None:
    """Distributions stay at an early patch release, and nodes are made with their Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.14"
    of_harbor = pins_of("constraints-harbor.txt").keys() - pins_of("constraints.txt").keys()
    wanted = {
        package.name: SpecifierSet(package.metadata["Requires-Python"])
        for package in distributions()
        if "Requires-Python" in package.metadata
        and canonicalize_name(package.name) not in of_harbor
        and package.name != project["name"]
    }
    for python in ("3.11.2", "3.12.0", "3.13.0"):  # Debian 12's, and the first of the others
        refusing = [name for name, pythons in wanted.items() if not pythons.contains(python)]
        assert not refusing, f"Python {python}: pin an earlier version of {refusing}"


def test_hooks_need_no_network() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert {repo["repo"] for repo in hooks["repos"]} == {"local"}
    assert {hook["language"] for repo in hooks["repos"] for hook in repo["hooks"]} == {"system"}


def test_campaign_reference_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "make_campaign_reference.py"))
    for name, page in (("campaign", script["page"]), ("supervised-file", script["sft_page"])):
        assert (ROOT / "docs" / f"{name}.md").read_text() == page(), (
            "run `python docs/make_campaign_reference.py`"
        )


def test_command_reference_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "make_command_reference.py"))
    assert (ROOT / "docs" / "commands.md").read_text() == script["page"](), (
        "run `python docs/make_command_reference.py`"
    )


def test_store_reference_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "make_store_reference.py"))
    assert (ROOT / "docs" / "store.md").read_text() == script["page"](), (
        "run `python docs/make_store_reference.py`"
    )


def test_every_function_of_the_store_begins_with_what_it_does_or_gives() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "make_store_reference.py"))
    told = {
        f"{path.relative_to(ROOT)}: {name}": script["sentence"](node)
        for path in sorted((ROOT / "infra" / "db").rglob("*.py"))
        for name, node in script["functions"](path)
        if "." not in name
    }
    assert len(told) > 150
    bare = re.compile(r"$|(Of|What|Raises|In|By|Those|None|True|False)\b")
    assert [where for where, sentence in told.items() if bare.match(sentence)] == []


def test_every_campaign_field_says_what_it_means() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "make_campaign_reference.py"))
    rows = re.findall(r"^\| `(\w+)` \|.*\|[ ]*([^|]*?) \|$", script["page"](), re.MULTILINE)
    rows += re.findall(r"^\| `(\w+)` \|.*\|[ ]*([^|]*?) \|$", script["sft_page"](), re.MULTILINE)
    assert len(rows) > 40
    assert [name for name, meaning in rows if not meaning] == []


def test_examples_in_the_campaign_reference_are_valid(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "campaign.md").read_text()
    examples = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 3
    # The last one extends a file: the one before it.
    (tmp_path / "base.toml").write_text(examples[1])
    for number, example in enumerate(examples):
        file = tmp_path / f"{number}.toml"
        file.write_text(example)
        assert load_campaign(file).name == tomllib.loads(example)["name"]


def _commands(page: Path) -> set[tuple[str, ...]]:
    """Words after `mainspring` in code: fenced blocks and backticks."""
    text = page.read_text()
    code = re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL)
    return {
        tuple(match[1].split()) for block in code for match in _COMMAND.finditer(block) if match[1]
    }


OWN_CLOCK = {
    "cli/tasks/verify.py": "a name of a run, as its person's day has it",
    "cli/eval/eval.py": "a name of a run",
    "cli/eval/performing.py": "a name of a run",
    "cli/operations/keeping/home_backup.py": "when it was made, for people",
    "cli/operations/keeping/campaign_archive.py": "when it was made, for people",
    "cli/bench/bench_grade.py": "a name of a run",
    "cli/bench/bench_scale.py": "one machine measures itself",
    "cli/bench/simulate/playing.py": "one machine measures itself",
    "engine/app.py": "what SGLang's routes tell, read by nothing of ours",
    "engine/load_routes.py": "likewise",
    "engine/sequences.py": "what SGLang's routes tell, read by nothing of ours",
    "infra/sandbox/containers/images.py": "images of this host, by a file of this host",
    "infra/sandbox/containers/image_record.py": "images of this host, by a file of this host",
    "infra/sandbox/bubblewrap/cgroup.py": "groups of this host, by their own time",
    "infra/sandbox/variables.py": "the date that a task's sandbox is given",
    "infra/policy/replies/openai.py": "an endpoint that gives a date and does not tell its own",
    "infra/policy/model/tokenizer.py": "the date of a first look; a campaign's is in the store",
    "infra/stack/service_process.py": "a line of a log",
    "infra/db/store.py": "how far this clock is off",
    "node/beat.py": "how far this clock is off",
}
"""Files that ask this machine for the time of day, each with its reason."""


def test_no_process_decides_by_its_own_clock() -> None:
    """Machines' clocks differ by seconds, wrong ones by hours: a time that another process wrote is
    compared with the store's or the server's, and a duration is measured by a monotonic clock."""
    asks = re.compile(r"\bdatetime\.(?:now|utcnow|today)\(|\btime\.time\(\)")
    found = {
        str(path.relative_to(ROOT)) for path in sources(*PACKAGES) if asks.search(path.read_text())
    }
    assert found == set(OWN_CLOCK)
