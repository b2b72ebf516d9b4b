"""Stored tasks as the files that other tools start from: ids, images, and rows to evaluate.

Invariant: `eval.jsonl`, imported, gives tasks with the same content hashes. Files appear complete
or not at all. Imported by the command line.
"""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from infra.sandbox.containers.image_names import ImageName, mirrored
from infra.sources.fields import INSTANCE_ID
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.swe_task import SweTask

IDS = "instance_ids.txt"
IMAGES = "docker_images.txt"
ROWS = "eval.jsonl"


def export_tasks(tasks: Sequence[AnyTask], directory: Path, mirror: str | None) -> dict[str, int]:
    """How many lines each file has. `mirror` is a registry's prefix, as in `tasks images`."""
    with_code = [task for task in tasks if isinstance(task, SweTask)]
    images = dict.fromkeys(task.image for task in with_code if task.image is not None)
    if mirror is not None:
        images = {str(mirrored(ImageName.parse(image), mirror)): None for image in images}
    directory.mkdir(parents=True, exist_ok=True)
    return {
        IDS: _write(directory / IDS, map(instance_id, tasks)),
        IMAGES: _write(directory / IMAGES, images),
        ROWS: _write(directory / ROWS, map(eval_line, tasks)),
    }


def instance_id(task: AnyTask) -> str:
    """The data set's name for the task."""
    return task.metadata.get(INSTANCE_ID, task.id)


def eval_line(task: AnyTask) -> str:
    """A `{"text", "metadata": {"instance", "data_source"}}` line. The instance has the task's own
    fields, and the most needed ones under their usual names as well."""
    instance = task.model_dump(mode="json") | {
        "instance_id": instance_id(task),
        "problem_statement": task.issue,
    }
    if isinstance(task, SweTask):
        instance |= {
            "image_name": task.image,
            "eval_script": task.test_command,
            "patch": task.gold_patch,
        }
    line = {"text": task.issue, "metadata": {"instance": instance, "data_source": task.source}}
    return json.dumps(line)


def _write(path: Path, lines: Iterable[str]) -> int:
    num_lines = 0
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("w") as file:
            for line in lines:
                file.write(line + "\n")
                num_lines += 1
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return num_lines
