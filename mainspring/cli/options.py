"""Options that several commands take. Imported by the commands beside this file."""

from pathlib import Path
from typing import Annotated

import typer

Home = Annotated[Path | None, typer.Option(help="State folder (default .mainspring).")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Workers = Annotated[bool, typer.Option(help="Bring up a rollout worker and a sandbox node.")]
