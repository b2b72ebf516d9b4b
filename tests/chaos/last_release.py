"""Trees of other releases, whose processes a test runs beside today's.

The last one is taken from git; the next one is today's with one more migration. Imported by
`test_upgraded_while_it_runs`. A release moves `LAST_RELEASE` to its own commit (CONTRIBUTING.md).
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra.db.database import NEEDED_REVISION

ROOT = Path(__file__).parents[2]
LAST_RELEASE = "2e054f958c61962ef8028f70af4977e9ca98c548"
"""The last commit before migration 0039. There is no released version yet: of all older programs it
is the one that a database of today still accepts."""
NEXT_REVISION = f"{int(NEEDED_REVISION) + 1:04}"
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "*.log")
_NEXT_MIGRATION = f'''"""All that a release may add while the one before it runs."""

import sqlalchemy as sa
from alembic import op

revision = "{NEXT_REVISION}"
down_revision = "{NEEDED_REVISION}"


def upgrade() -> None:
    op.create_table("next_notes", sa.Column("id", sa.Text(), primary_key=True))
    for table in ("calls", "rollouts", "steps", "sandboxes"):
        op.add_column(table, sa.Column("next_note", sa.Text(), nullable=True))
        op.add_column(
            table, sa.Column("next_number", sa.Integer(), server_default="0", nullable=False)
        )
        op.create_index(f"ix_{{table}}_next_number", table, ["next_number"])
'''


def last_release(folder: Path, commit: str = LAST_RELEASE) -> Path:
    """The files of the last release, or of another one. Skips the test where this is no git
    checkout with its history."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"no commit {commit[:8]} here: {archive.stderr.decode().strip()}")
    folder.mkdir()
    subprocess.run(["tar", "x"], cwd=folder, input=archive.stdout, check=True)
    return folder


def next_release(folder: Path) -> Path:
    """Today's files with one more migration, which only adds."""
    shutil.copytree(ROOT, folder, ignore=_LEFT_OUT)
    (folder / "migrations" / "versions" / f"{NEXT_REVISION}_next.py").write_text(_NEXT_MIGRATION)
    file = folder / "infra" / "db" / "database.py"
    needed = re.compile(r'^NEEDED_REVISION = "\d{4}"$', re.MULTILINE)
    text, number = needed.subn(f'NEEDED_REVISION = "{NEXT_REVISION}"', file.read_text())
    assert number == 1
    file.write_text(text)
    return folder


def of_tree(tree: Path) -> dict[str, str]:
    """Environment of a process that is to run the code of `tree`, wherever it is started."""
    return {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}


def mainspring(tree: Path, *words: str) -> str:
    """A command of the release in `tree`; what it printed."""
    told = subprocess.run(
        [sys.executable, "-m", "mainspring", *words],
        env={**os.environ, **of_tree(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return told.stdout
