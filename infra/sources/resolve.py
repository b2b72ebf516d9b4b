"""From what a person names to the TaskSource that reads it. Imported by the importer."""

import re
from pathlib import Path

from infra.sources import files, harbor, service_tasks, swebench_repo
from infra.sources.files import FileSource
from infra.sources.harbor import HarborSource
from infra.sources.hub import HubSource
from infra.sources.image_rules import check_template
from infra.sources.own import OwnSource
from infra.sources.protocol import ImportOptions, TaskSource
from infra.sources.service_tasks import ServiceSource
from infra.sources.swebench_repo import SwebenchRepoSource
from mainspring.config.registry import is_path
from mainspring.errors import UsageError
from mainspring.tasks.allow_list import AllowList

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def open_source(name: str, options: ImportOptions) -> TaskSource:
    """A file, a folder, the services of a campaign file, a class of one's own, or a data set on the
    hub. Raises UsageError."""
    if options.image_template is not None:
        check_template(options.image_template)
    AllowList.parse(options.allow_hosts)
    path = Path(name)
    if path.is_dir():
        if (path / swebench_repo.CONFIG).is_file():
            return SwebenchRepoSource(path, options)
        if (path / harbor.TASK_FILE).is_file() or any(path.glob(f"*/{harbor.TASK_FILE}")):
            return HarborSource(path, options)
        raise UsageError(
            f"{name} is a folder without tasks",
            remedy=f"expected {swebench_repo.CONFIG} (a SWE-bench task repository), or "
            f"{harbor.TASK_FILE} in it or in the folders below it (Harbor tasks)",
        )
    if path.suffix == service_tasks.SUFFIX and path.is_file():
        return ServiceSource(path, options)
    if path.suffix in files.SUFFIXES or path.exists():
        if not path.is_file():
            raise UsageError(f"there is no file {name}", remedy="check the path")
        if path.suffix not in files.SUFFIXES:
            raise UsageError(
                f"{name} is not a file of rows", remedy=f"expected {', '.join(files.SUFFIXES)}"
            )
        return FileSource(path, options)
    if is_path(name):
        return OwnSource(name, options)
    if _HUB_NAME.fullmatch(name) and not name.startswith("."):
        return HubSource(name, options)
    raise UsageError(
        f"there is no file or folder {name}",
        remedy="a data set of the Hugging Face hub is named as in SWE-bench/SWE-bench_Verified, a "
        "source of your own as package.module:Class or FILE.py:Class",
    )
