"""`mainspring backup | restore`: a home with its embedded stack, as one folder."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cli.options import CopiedCheckpoints, Home, Json, hint, run_spoken
from cli.terminal_text import echo
from mainspring.artifacts.retention import Checkpoints
from mainspring.words.figures import file_size

app = typer.Typer()


@app.command()
def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder to write.")],
    checkpoints: CopiedCheckpoints = Checkpoints.NEWEST,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Back up the embedded Postgres and Temporal with the files of campaigns.

    Campaigns may run meanwhile. Services that are down are started for it, and stopped.
    """
    from cli.operations.keeping import home_backup
    from cli.progress import counting
    from mainspring.config.settings import configured_settings

    work = home_backup.backup(configured_settings(home).home, folder, checkpoints, counting)
    done = run_spoken(home, work, "backing up")
    if as_json:
        echo(json.dumps(done.as_dict()))
        return
    echo(f"backed up {configured_settings(home).home} to {folder}: {file_size(done.num_bytes)}")
    for name, versions in done.manifest.versions.items():
        echo(f"{name}: files of versions {', '.join(map(str, versions))}")
    hint(f"`mainspring restore {folder} --home NEW` makes a home of it")


@app.command()
def restore(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder that `mainspring backup` wrote.")
    ],
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Restore over a stopped home. What it held is set aside."),
    ] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Restore a backup into a new home, or over a stopped one. If it is interrupted, repeat it."""
    from cli.operations.keeping import home_restore
    from cli.progress import counting
    from mainspring.config.settings import configured_settings

    to = configured_settings(home).home
    work = home_restore.restore(to, folder, replace=replace, counting=counting)
    done = run_spoken(home, work, "restoring the backup")
    if as_json:
        echo(json.dumps(done.as_dict()))
        return
    echo(f"restored {to} as of {done.manifest.backed_up_at}")
    if done.set_aside is not None:
        echo(f"what it held is in {done.set_aside}")
    hint("`mainspring train --name NAME` resumes a campaign that had not ended; `mainspring up`")
