"""Generated tasks against real bash, sed and python3, and the splits against each other."""

import re
import subprocess
from pathlib import Path

import pytest

from bundled.bugs import EDITS, Edit
from bundled.generator import Split, TaskInstance, make_instances, make_tasks
from bundled.templates import HELDOUT_TEMPLATES, PLACEHOLDERS, TRAIN_TEMPLATES

WAIT_S = 120.0
SPLITS: tuple[Split, ...] = ("train", "heldout", "heldout_templates")


def function_name(instance: TaskInstance) -> str:
    found = re.match(r"def (\w+)\(", instance.task.files[instance.module])
    assert found
    return found[1]


def write(instance: TaskInstance, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    for name, text in instance.task.files.items():
        (directory / name).write_text(text)


def resolved(instance: TaskInstance, directory: Path) -> bool:
    for name, text in instance.task.tests.items():
        (directory / name).write_text(text)
    ran = subprocess.run(
        ["bash", "-c", instance.task.test_command],
        cwd=directory,
        capture_output=True,
        timeout=WAIT_S,
    )
    return ran.returncode == 0


def edited_by_sed(instance: TaskInstance, edit: Edit, directory: Path) -> str:
    command = edit.sed_command(instance.module)
    subprocess.run(["bash", "-c", command], cwd=directory, check=True, timeout=WAIT_S)
    return (directory / instance.module).read_text()


@pytest.mark.parametrize("split", SPLITS)
def test_the_fix_resolves_and_nothing_else_was_needed(split: Split, tmp_path: Path) -> None:
    for instance in make_instances(3, split, 14):
        directory = tmp_path / instance.task.id
        write(instance, directory)
        assert not resolved(instance, directory), instance.task.id
        expected = instance.fix.apply(instance.task.files[instance.module])
        assert edited_by_sed(instance, instance.fix, directory) == expected
        assert resolved(instance, directory), instance.task.id


def test_sed_does_what_every_edit_says(tmp_path: Path) -> None:
    for instance in make_instances(4, "train", 20):
        source = instance.task.files[instance.module]
        for edit in instance.edits:
            (tmp_path / instance.module).write_text(source)
            assert edited_by_sed(instance, edit, tmp_path) == edit.apply(source), edit


def test_a_seed_gives_the_same_tasks_and_another_seed_others() -> None:
    tasks = make_tasks(0, "train", 5)
    assert tasks == make_tasks(0, "train", 5)
    assert tasks == make_tasks(0, "train", 9)[:5]
    assert tasks != make_tasks(1, "train", 5)
    assert tasks[4].id == "bundled-s0-train-00004"
    assert tasks[4].split == "train"


def test_held_out_bugs_and_files_never_occur_in_training() -> None:
    train = make_instances(0, "train", 1500)
    files = {text for instance in train for text in instance.task.files.values()}
    for split in ("heldout", "heldout_templates"):
        for seed in (0, 1):
            for instance in make_instances(seed, split, 300):
                assert not files & set(instance.task.files.values())


def test_held_out_names_are_new_but_their_words_are_not() -> None:
    trained = {function_name(instance) for instance in make_instances(0, "train", 1500)}
    held = {function_name(instance) for instance in make_instances(0, "heldout", 500)}
    assert not trained & held
    assert {word for name in held for word in name.split("_")} <= {
        word for name in trained for word in name.split("_")
    }


def test_held_out_templates_never_occur_in_training() -> None:
    assert len(TRAIN_TEMPLATES) >= 14 and 4 <= len(HELDOUT_TEMPLATES) <= 6
    assert not {t.code for t in TRAIN_TEMPLATES} & {t.code for t in HELDOUT_TEMPLATES}
    trained = {i.template for s in ("train", "heldout") for i in make_instances(0, s, 1000)}
    held = {i.template for i in make_instances(0, "heldout_templates", 300)}
    assert trained == {t.name for t in TRAIN_TEMPLATES}
    assert held == {t.name for t in HELDOUT_TEMPLATES}


def test_the_fix_is_one_of_several_plausible_edits() -> None:
    instances = make_instances(0, "train", 500)
    assert all(instance.fix in instance.edits for instance in instances)
    assert all(3 <= len(instance.edits) <= 5 for instance in instances)
    blind = sum(1 / len(instance.edits) for instance in instances) / len(instances)
    assert 0.28 < blind < 0.34


def test_every_edit_has_its_reverse() -> None:
    assert {edit.reverse for edit in EDITS} == set(EDITS)


def test_names_of_one_function_cannot_collide() -> None:
    words = [word for choices in PLACEHOLDERS.values() for word in choices]
    assert len(words) == len(set(words))


def test_the_hidden_tests_also_guard_the_other_module(tmp_path: Path) -> None:
    for instance in make_instances(5, "train", 5):
        write(instance, tmp_path)
        (tmp_path / instance.module).write_text(
            instance.fix.apply(instance.task.files[instance.module])
        )
        assert resolved(instance, tmp_path)
        (other,) = instance.task.files.keys() - {instance.module}
        kept = instance.task.files[other]
        (tmp_path / other).write_text(kept.replace("return ", "return not "))
        assert not resolved(instance, tmp_path)
