"""The log of a command in the foreground: errors as text, and nothing between its sentences."""

import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys
import structlog
from infra.log_setup import set_up
from mainspring.config.settings import LogFormat
set_up(LogFormat(sys.argv[1]), for_a_person=sys.argv[2] == "person")
log = structlog.get_logger()
log.info("told in passing")
log.warning("the model refuses a field", field="temperature")
logging.getLogger("asyncpg").warning("late")
logging.getLogger("sqlalchemy.pool.impl").error("Exception closing connection")
log.error("it broke", where="here")
"""


def told(wanted: str, who: str) -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, wanted, who], capture_output=True, text=True, check=True
    )
    assert ended.stdout == ""
    return ended.stderr.splitlines()


@pytest.mark.parametrize("wanted", ["auto", "text"])
def test_a_person_sees_errors_as_text(wanted: str) -> None:
    [line] = told(wanted, "person")
    assert "it broke" in line and "where" in line and not line.startswith("{")


def test_what_reads_json_gets_everything() -> None:
    assert len(told("json", "person")) == len(told("auto", "worker")) == 5
    assert all(line.startswith("{") for line in told("json", "person"))
