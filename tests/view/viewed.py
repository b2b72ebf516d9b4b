"""A viewer over the tests' own store, rollouts to look at, and what a page must not hold."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import httpx
from store_records import RUN, begin_campaign, call, execution

from infra.db.database import Database
from infra.db.rollouts import groups, rollouts, turns
from infra.db.rollouts.groups import NewRollout
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.tasks import TasksConfig
from mainspring.ids import CampaignId, RolloutId, TaskId, rollout_id, run_group_id
from mainspring.status import GroupKind, StopReason, Unverified, Verdict
from mainspring.tasks.criterion import GradeReport
from mainspring.tasks.swe_task import SweTask
from mainspring.trajectories.turns import Call
from view.actions.protocol import Action
from view.app import make_app
from view.viewer import Viewer, WaitsHere

BASE = "http://127.0.0.1:8600"


def home_of(folder: Path, database_url: str) -> Path:
    """A home folder whose recorded database is this one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stack.json").write_text(json.dumps({"database_url": database_url}))
    return folder


@asynccontextmanager
async def viewer_of(
    home: Path,
    *,
    token: str = "",
    hosts: tuple[str, ...] = (),
    timeout_s: float = 5.0,
    actions: Sequence[Action] = (),
    waits_here: WaitsHere = lambda _, found: found,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the pages, without a socket between."""
    viewer = Viewer(home, statement_timeout_s=timeout_s, waits_here=waits_here)
    transport = httpx.ASGITransport(make_app(viewer, hosts=hosts, token=token, actions=actions))
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
        yield client
    await viewer.close()


def task_of(id: str, issue: str = "Fix it.", **fields: str) -> SweTask:
    return SweTask(
        id=TaskId(id),
        source="made-up",
        split="train",
        issue=issue,
        files={"a.py": "x = 1\n"},
        test_command=fields.get("test_command", "true"),
        gold_patch=fields.get("gold_patch"),
    )


def reply_of(number: int, text: str, parent: int | None, start: int) -> Call:
    drawn = call(number, start)
    return Call(
        number=number,
        parent=parent,
        prompt_start=start,
        prompt_ids=drawn.prompt_ids,
        completion_ids=drawn.completion_ids,
        logprobs=drawn.logprobs,
        spans=drawn.spans,
        text=text,
        finish_reason="stop",
        latency_s=0.25,
    )


@dataclass(frozen=True, slots=True)
class Told:
    """Texts of one rollout."""

    reply: str = "I look.\n\n```bash\nls\n```"
    command: str = "ls"
    output: bytes = b"a.py\n"
    patch: bytes = b"diff --git a/a.py b/a.py\n-x = 1\n+x = 2\n"
    note: str = ""
    tests: str = "1 passed"
    test: str = "tests/test_a.py::test_x"
    fault: str | None = None


async def play(
    db: Database, rollout: RolloutId, told: Told, num_turns: int = 1, verdict: Verdict | None = None
) -> None:
    """Play a rollout to its end; resolved, unless a verdict is given."""
    claim = await rollouts.claim(db, rollout, RUN)
    start = 0
    for number in range(num_turns):
        reply = reply_of(number, told.reply, number - 1 if number else None, start)
        await turns.put_call(db, rollout, claim.epoch, reply)
        start = reply.end
        ran = execution(number, told.output)
        ran = type(ran)(
            number, 0, told.command, number % 2, told.output, False, False, 0.5, None, False
        )
        await turns.put_execution(db, rollout, claim.epoch, ran)
    await rollouts.put_patch(db, rollout, claim.epoch, told.patch, told.note or None)
    decided = verdict or Verdict.RESOLVED
    report = GradeReport(fail_to_pass_failed=(told.test,), note=told.note)
    await rollouts.put_grade(db, rollout, claim.epoch, decided, told.tests, told.fault, report)
    await rollouts.finish(
        db,
        rollout,
        claim.epoch,
        stop_reason=StopReason.INFRA_FAULT if told.fault else StopReason.SUBMITTED,
        verdict=decided,
        reward=None if told.fault else float(decided is Verdict.RESOLVED),
        fault=told.fault,
        num_turns=num_turns,
        phase_s={"generate": 1.5, "execute": 0.5},
    )


async def add_evaluation(db: Database, name: str, task_ids: list[str]) -> list[RolloutId]:
    """An evaluation with one rollout of each task, none of which has begun."""
    await begin_campaign(db)
    await tasks.put_tasks(db, [task_of(id) for id in task_ids])
    config = EvaluationConfig(
        name=name,
        tasks=TasksConfig(source="made-up", unverified=Unverified.USE),
        policy=PolicyConfig(model="scripted", max_context=100_000, max_new_tokens=1000),
        split="train",
    )
    await campaigns.create(db, config)
    group = run_group_id(CampaignId(name), 0)
    made = [NewRollout(rollout_id(group, n), TaskId(id), n, 1.0) for n, id in enumerate(task_ids)]
    await groups.create_group(
        db,
        group,
        CampaignId(name),
        GroupKind.EVAL,
        index=0,
        policy_version=0,
        split="train",
        rollouts=made,
    )
    return [each.id for each in made]


UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff"
    r"\U000e0000-\U000e007f]"
)
"""Characters that would be invisible, steer, or turn the reading direction."""
TAGS = frozenset(
    re.split(
        " ",
        "html head meta title link script body a header nav button main div h1 h2 p dl dt "
        "dd span strong code br details summary pre ol ul li em article time noscript "
        "section figure figcaption svg line text polyline circle rect table thead tbody "
        "tr th td aside small i del form label input mark footer textarea",
    )
)


class PageCheck(HTMLParser):
    """Collects what a page has that no page may have."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.links: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS and tag != "title":
            self.wrong.append(f"<{tag}>")
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.wrong.append(f"{tag} {name}={value}")
            if name in ("href", "src") and value is not None:
                self.links.append(value)
                if not value.startswith(("/", "#", "http://127.0.0.1")):
                    self.wrong.append(f"{tag} {name}={value}")
        if tag == "script" and dict(attrs).get("src") != "/static/view.js":
            self.wrong.append("a script of its own")


def wrong_in(page: str) -> list[str]:
    """Faults of a page's markup; empty for one that is safe."""
    check = PageCheck()
    check.feed(page)
    return check.wrong + [f"U+{ord(each):04X}" for each in UNSEEN.findall(page)]


def links_of(page: str) -> list[str]:
    check = PageCheck()
    check.feed(page)
    return check.links
