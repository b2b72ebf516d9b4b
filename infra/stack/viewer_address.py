"""Where the viewer of a home folder answers: recorded by it, and read by commands that print links.

Invariants: the record is written whole; one whose process has ended counts as none; a viewer that
ends takes away its own record alone. Imported by `view` and by commands.
"""

import json
from pathlib import Path
from urllib.parse import quote

from infra.process_start import has_ended, this_process
from infra.stack.home import write_private
from mainspring.errors import ServiceError

FILE = Path("run") / "view.json"


def record(home: Path, url: str) -> None:
    """Raises ServiceError when the folder cannot be written."""
    try:
        (home / FILE).parent.mkdir(parents=True, exist_ok=True)
        content = {"url": url, "process": this_process()}
        write_private(home / FILE, json.dumps(content) + "\n")
    except OSError as error:
        raise ServiceError(
            f"home folder {home} cannot be used: {error.strerror}",
            remedy="give a writable folder with --home or MAINSPRING_HOME",
        ) from None


def forget(home: Path) -> None:
    """Take away the record of this process; another viewer's stays."""
    if _read(home).get("process") == this_process():
        (home / FILE).unlink(missing_ok=True)


def found(home: Path) -> str | None:
    """The viewer's address; None where none runs on this machine."""
    known = _read(home)
    url, process = known.get("url"), known.get("process")
    if not url or not process:
        return None
    try:
        return None if has_ended(process) else url
    except ValueError:
        return None  # damaged: no viewer wrote it


def page_of(home: Path, *parts: str) -> str | None:
    """Address of one of its pages; None where none runs."""
    url = found(home)
    if url is None:
        return None
    return "/".join((url, *(quote(part, safe="/-._~") for part in parts)))


def _read(home: Path) -> dict[str, str]:
    """Empty where none is recorded, or the record is damaged."""
    try:
        known = json.loads((home / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
