"""`mainspring campaign archive` and `mainspring campaign restore`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import CopiedCheckpoints, Home, Json, RunName, hint, with_database
from cli.terminal_text import echo
from mainspring.artifacts.retention import Checkpoints
from mainspring.words.figures import file_size


def archive(
    name: RunName,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder to write.")],
    checkpoints: CopiedCheckpoints = Checkpoints.NONE,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Archive an ended campaign or other run: its rows as parquet files, and a manifest.

    `mainspring campaign restore` reads the folder. Needs the package pyarrow.
    """
    from cli.operations.keeping import campaign_archive
    from cli.progress import counting
    from mainspring.config.settings import load_settings

    settings = load_settings(home)

    async def go(db: Any) -> Any:
        return await campaign_archive.archive(
            db, settings.home, name, folder, checkpoints, counting
        )

    done = with_database(home, go, what="")
    if as_json:
        echo(json.dumps(done.as_dict()))
        return
    manifest = done.manifest
    echo(
        f"archived {manifest.campaign} to {folder}: {manifest.num_rollouts} rollouts, "
        f"{file_size(done.num_bytes)}"
    )
    copied = [str(version.version) for version in manifest.versions if version.is_copied]
    if copied:
        echo(f"with the files of versions {', '.join(copied)}")
    elif manifest.versions:
        echo("without checkpoints: `campaign delete` would remove them (--checkpoints newest)")
    hint(f"`mainspring campaign restore {folder}` reads it back into a store")


def restore(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder that `campaign archive` wrote.")
    ],
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Restore an archived campaign or other run. If it is interrupted, repeat it.

    The store must be at the archive's migration, and must not have a run of the name.
    """
    from cli.operations.keeping import campaign_restore
    from cli.progress import counting
    from mainspring.config.settings import load_settings

    settings = load_settings(home)

    async def go(db: Any) -> Any:
        return await campaign_restore.restore(db, settings.home, folder, counting)

    done = with_database(home, go, what="")
    if as_json:
        echo(json.dumps(done.as_dict()))
        return
    manifest = done.manifest
    echo(f"restored {manifest.campaign} ({manifest.status}): {manifest.num_rollouts} rollouts")
    hint(f"`mainspring campaign show {manifest.campaign}`")
