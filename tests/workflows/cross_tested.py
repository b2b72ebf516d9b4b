"""An evaluation whose majority is wrong, and whose right candidate passes another one's test."""

import uuid
from collections.abc import Callable

from scripted import SUBMIT, bash

from infra.db.database import Database
from infra.db.nodes.sandboxes import Lease
from infra.db.tasks import tasks
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.evaluations.choosing import ChooseBy, ChooseConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.tasks import TasksConfig
from mainspring.ids import TaskId
from mainspring.status import Unverified
from mainspring.tasks.swe_task import SweTask

BUGGY = "def add(a, b):\n    return a - b\n"
WEAK = "from calc import add\nassert add(2, 2) == 4\n"
"""Fails before a patch, and passes with the wrong ones, too."""
STRICT = "from calc import add\nassert add(2, 3) == 5\n"


def writes(path: str, text: str, wait_s: float = 0.0) -> str:
    wait = f"import time; time.sleep({wait_s}); " if wait_s else ""
    return bash(f"cat >{path} <<'END'\n{wait}{text}END\ncd . && python3 ./{path} 2>&1 | tail -3")


def wrong() -> str:
    return bash("sed -i 's/a - b/a * b/' calc.py")


def right() -> str:
    return bash("sed -i 's/a - b/a + b/' calc.py")


def saying(wait_s: float = 0.0) -> Callable[[str, int], str]:
    """Samples 0 and 2 are wrong alike and write a test each; sample 1 is right and writes none."""
    by_sample = {
        "000": (wrong(), writes("test_weak.py", WEAK, wait_s), SUBMIT),
        "001": (right(), SUBMIT),
        "002": (wrong(), writes("test_strict.py", STRICT, wait_s), SUBMIT),
    }

    def say(rollout: str, turn: int) -> str:
        return by_sample[rollout.rpartition("/")[2]][turn]

    return say


async def put_task(db: Database) -> str:
    """The source of one task."""
    source = f"s-{uuid.uuid4().hex[:8]}"
    task = SweTask(
        id=TaskId(f"{source}-add"),
        source=source,
        split="train",
        issue="add subtracts",
        files={"calc.py": BUGGY},
        tests={"hidden_test.py": "from calc import add\nassert add(7, 5) == 12\n"},
        test_command="python3 hidden_test.py",
    )
    await tasks.put_tasks(db, [task])
    return source


def evaluation(source: str, by: ChooseBy = ChooseBy.CROSS_TESTS) -> EvaluationConfig:
    return EvaluationConfig(
        name=f"r-{uuid.uuid4().hex[:8]}",
        tasks=TasksConfig(source=source, unverified=Unverified.USE),
        agent=AgentConfig(step_limit=4, max_format_errors=2),
        policy=PolicyConfig(model="scripted", max_context=100_000, max_new_tokens=1000),
        split="train",
        samples=3,
        choose=ChooseConfig(by=by),
    )


def is_of_cross_test(lease: Lease) -> bool:
    use = lease.sandbox.rpartition(".e")[2].partition(".")[2]
    return use.startswith(("cross", "base"))
