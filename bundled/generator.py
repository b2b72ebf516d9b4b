"""Draws tasks: two modules of a function each, one of them broken, and the hidden tests of both.

Invariants: the same seed, split and count give the same tasks everywhere; the three splits are
disjoint by construction, for every seed: a function's name belongs either to training or to the
held-out splits, so neither a buggy function nor a whole file occurs on both sides; the templates
of "heldout_templates" are never used in the other two. Pure; anyone may import it.
"""

import random
from dataclasses import dataclass
from typing import Literal

from bundled.bugs import EDITS, Edit
from bundled.templates import (
    HELDOUT_TEMPLATES,
    PLACEHOLDERS,
    TRAIN_TEMPLATES,
    FunctionTemplate,
)
from mainspring.ids import TaskId
from mainspring.tasks.swe_task import SweTask

Split = Literal["train", "heldout", "heldout_templates"]

TEST_FILE = "hidden_test.py"
TEST_TIMEOUT_S = 10.0
"""The tests take milliseconds; this only ends what an agent's edit made endless."""
MIN_EDITS = 3
"""Fewer plausible edits would make a blind guess too good."""

_MODULES = ("stats", "tools", "core", "shapes", "checks", "mathx", "logic", "ops")
_VERBS = ("calc", "compute", "get", "find", "eval", "make", "derive", "solve", "run", "do")
_NOUNS = (
    "value", "total", "score", "count", "result", "stat",
    "item", "bound", "metric", "level", "size", "span",
)  # fmt: skip
# Every verb and every noun occurs in training, one combination of five never does.
_NAMES = {
    heldout: tuple(
        f"{verb}_{noun}"
        for i, verb in enumerate(_VERBS)
        for j, noun in enumerate(_NOUNS)
        if ((i + j) % 5 == 0) == heldout
    )
    for heldout in (False, True)
}


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """A task with what only the warm start and the tests may know about it."""

    task: SweTask
    template: str
    module: str
    fix: Edit
    """Restores the original module."""
    edits: tuple[Edit, ...]
    """The plausible edits: all of the family that change the module and leave it compiling;
    `fix` is among them."""


@dataclass(frozen=True, slots=True)
class _Function:
    """A template with its names filled in."""

    name: str
    description: str
    code: str
    template: FunctionTemplate

    @property
    def assertions(self) -> str:
        return "".join(
            f"assert {self.name}({', '.join(map(repr, case.args))}) == {case.expected!r}\n"
            for case in self.template.cases
        )

    def accepts(self, code: str) -> bool:
        """Whether `code` in place of this function's own passes its cases."""
        try:
            exec(f"{code}\n{self.assertions}", {})
        except Exception:  # a wrong edit may raise anything; all of it means "no"
            return False
        return True


def make_tasks(seed: int, split: Split, count: int) -> list[SweTask]:
    return [instance.task for instance in make_instances(seed, split, count)]


def make_instances(seed: int, split: Split, count: int) -> list[TaskInstance]:
    rng = random.Random(f"{seed}/{split}")
    return [draw_instance(rng, split, f"bundled-s{seed}-{split}-{n:05d}") for n in range(count)]


def draw_instance(rng: random.Random, split: Split, task_id: str) -> TaskInstance:
    """Draw until a module turns up whose bug the tests notice."""
    while True:
        instance = _try_instance(rng, split, task_id)
        if instance is not None:
            return instance


def _try_instance(rng: random.Random, split: Split, task_id: str) -> TaskInstance | None:
    templates = HELDOUT_TEMPLATES if split == "heldout_templates" else TRAIN_TEMPLATES
    names = rng.sample(_NAMES[split != "train"], 2)
    functions = [
        _fill(rng, name, template)
        for name, template in zip(names, rng.sample(templates, 2), strict=True)
    ]
    wrong = rng.choice(functions)
    bugs = [edit for edit in EDITS if _is_plausible(edit, wrong.code)]
    if not bugs:
        return None
    bug = rng.choice(bugs)
    broken = bug.apply(wrong.code)
    edits = tuple(edit for edit in EDITS if _is_plausible(edit, broken))
    if (
        len(edits) < MIN_EDITS
        or bug.reverse not in edits
        or bug.reverse.apply(broken) != wrong.code
        or wrong.accepts(broken)
    ):
        return None
    modules = rng.sample(_MODULES, 2)
    module = f"{modules[functions.index(wrong)]}.py"
    task = SweTask(
        id=TaskId(task_id),
        source="bundled",
        split=split,
        issue=f"`{wrong.name}` in {module} should return {wrong.description}.",
        files={
            f"{name}.py": broken if function is wrong else function.code
            for name, function in zip(modules, functions, strict=True)
        },
        tests={
            TEST_FILE: "".join(
                f"from {name} import {function.name}\n"
                for name, function in zip(modules, functions, strict=True)
            )
            + "\n"
            + "".join(function.assertions for function in functions)
        },
        # No site, no environment, no bytecode: the interpreter starts in a third of the time.
        test_command=f"python3 -S -E -B {TEST_FILE}",
        test_timeout_s=TEST_TIMEOUT_S,
        metadata={"template": wrong.template.name},
    )
    return TaskInstance(task, wrong.template.name, module, bug.reverse, edits)


def _fill(rng: random.Random, name: str, template: FunctionTemplate) -> _Function:
    names = {"fn": name} | {key: rng.choice(words) for key, words in PLACEHOLDERS.items()}
    return _Function(
        name, template.description.format(**names), template.code.format(**names), template
    )


def _is_plausible(edit: Edit, code: str) -> bool:
    edited = edit.apply(code)
    if edited == code:
        return False
    try:
        compile(edited, "<generated>", "exec")
    except SyntaxError:
        return False
    return True
