"""What `make test` leaves out is what slow.toml names, and `make test-changed` finds what a change
reaches."""

import ast
from pathlib import Path

import pytest

from tests import reached
from tests.conftest import KINDS_OF_CLUSTER, SLOW, is_slow

ROOT = Path(__file__).parents[1]


def test_every_file_of_the_table_exists() -> None:
    files = [*SLOW["whole"], *SLOW["some"], *SLOW["without"]]
    assert len(set(files)) == len(files)
    assert [file for file in files if not (ROOT / file).is_file()] == []


PARTS = {**SLOW["some"], **SLOW["without"]}


@pytest.mark.parametrize("file", PARTS)
def test_every_part_of_a_name_begins_with_a_test_or_is_of_a_parameter(file: str) -> None:
    """So that a renamed test does not leave `make test` unnoticed."""
    tree = ast.parse((ROOT / file).read_text())
    tests = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }
    for part in PARTS[file]:
        name = part.partition("[")[0]
        assert not name.startswith("test_") or any(name in each for each in tests), part


def test_a_file_may_leave_some_tests() -> None:
    assert is_slow("tests/cli/test_train_command.py::test_anything")
    assert not is_slow("tests/adversarial/test_exploits.py::test_x[script_task]")
    assert is_slow("tests/adversarial/test_exploits.py::test_x[pytest_task]")
    assert not is_slow("tests/mainspring/test_tally.py::test_x")


@pytest.mark.parametrize(
    ("changed", "test", "other"),
    [
        (
            "infra/db/rollouts/turns.py",
            "tests/infra/db/test_db_turns.py",
            "tests/engine/test_adapters.py",
        ),
        # By a registry, through a helper, by a conftest, and by `python -m`.
        (
            "trainer/losses/clip.py",
            "tests/trainer/test_policy_step.py",
            "tests/node/test_node_beat.py",
        ),
        ("tests/workflows/scripted.py", "tests/workflows/test_runs.py", "tests/test_style.py"),
        ("tests/gateway/conftest.py", "tests/gateway/test_edge.py", "tests/cli/test_fleet.py"),
        ("tests/trainer/placed_ranks.py", "tests/trainer/test_placement.py", "tests/test_style.py"),
    ],
)
def test_a_change_reaches_those_that_import_it(changed: str, test: str, other: str) -> None:
    names = reached.git(
        "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py"
    )
    files = sorted({ROOT / name for name in names if (ROOT / name).is_file()})
    found = {str(path.relative_to(ROOT)) for path in reached.reached({ROOT / changed}, files)}
    assert test in found and other not in found


def test_no_module_has_a_cluster_of_its_own_under_a_shared_name() -> None:
    """Else the shared one would not be shut down before it (tests/conftest.py)."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                is_shared = {each.arg for each in node.args.args} & KINDS_OF_CLUSTER
                assert is_shared or node.name not in KINDS_OF_CLUSTER, f"{path}: {node.name}"
