"""A copy of pages in files: a browser shows them without a server, and any web server serves them.

Invariants: the pages are those that the viewer answers with; the first one holds its style, so that
it can be sent alone; a link to a page that the copy lacks is text; nothing half-made stays: pages
are written beside their place and moved there at the end. Imported by the command line and tests.
"""

import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from html import escape, unescape
from math import inf
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from infra.stack.whole_folder import whole_folder
from mainspring.errors import DatabaseError
from view.app import make_app
from view.frozen.extent import Extent
from view.viewer import Viewer

PAGES = "pages"
"""Folder of all pages but the first."""
STATIC = "static"
_SOURCE = Path(__file__).parents[1] / "static"
_LINK = re.compile(r' (href|src)="(/(?!/)[^"]*)"')
_LIVE = re.compile(r' data-(?:live|refresh-s)="[^"]*"|<noscript>.*?</noscript>')
_STYLE = '<link rel="stylesheet" href="/static/view.css">'
_FORM = re.compile(r"<form\b.*?</form>", re.DOTALL)
_STALE_S = 3600.0
"""Unfinished folders of killed commands are removed when they are this old."""

Told = Callable[[int, int], None]
"""Told after each page: how many are written, and of how many that are known so far."""


def untold(done: int, of: int) -> None:
    """For copies whose progress is not shown."""


@dataclass(frozen=True, slots=True)
class FrozenCopy:
    first: Path
    num_pages: int


async def freeze(
    viewer: Viewer,
    extent: Extent,
    folder: Path,
    first: str = "index.html",
    told: Told = untold,
) -> FrozenCopy:
    """Write the pages of `extent` into `folder`, which is new or empty. Raises UsageError,
    ServiceError, DatabaseError."""
    with whole_folder(folder, mode=0o755) as partial:
        num_pages = await _write(viewer, extent, partial, first, told)
    return FrozenCopy(folder / first, num_pages)


async def freeze_into(
    viewer: Viewer, extent: Extent, folder: Path, first: str, told: Told = untold
) -> FrozenCopy:
    """The same in a folder of other files, in place of the copy that it had. A reader of that one
    may meet pages of both for a moment. Raises DatabaseError."""
    folder.mkdir(parents=True, exist_ok=True)
    with _partial(folder) as partial:
        num_pages = await _write(viewer, extent, partial, first, told)
        # Two reports of one run may be made at one time: the last one stays.
        while True:
            with _partial(folder) as old:
                if (folder / PAGES).exists():
                    _move(folder / PAGES, old / PAGES)
            if _move(partial / PAGES, folder / PAGES):
                break
        (partial / first).replace(folder / first)
    return FrozenCopy(folder / first, num_pages)


async def _write(viewer: Viewer, extent: Extent, folder: Path, first: str, told: Told) -> int:
    (folder / PAGES).mkdir(parents=True)
    shutil.copytree(_SOURCE, folder / PAGES / STATIC)
    start = "/" if len(extent.runs) != 1 else f"/c/{next(iter(extent.runs))}"
    written = {start: first}
    waiting = deque([start])
    transport = httpx.ASGITransport(make_app(viewer))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        while waiting:
            address = waiting.popleft()
            answer = await client.get(address)
            if answer.status_code >= 500 or (address == start and answer.is_error):
                raise DatabaseError(
                    f"page {address} could not be read", remedy="see that the store answers; repeat"
                )
            page = _rewritten(answer.text, written, waiting, extent, is_first=address == start)
            (folder / written[address]).write_text(page, encoding="utf-8")
            told(len(written) - len(waiting), len(written))
    return len(written)


def _rewritten(
    page: str, written: dict[str, str], waiting: "deque[str]", extent: Extent, *, is_first: bool
) -> str:
    """The page as a file: links lead to files, and those to pages that are new here are added."""

    def link(found: re.Match[str]) -> str:
        address = urlsplit(unescape(found[2]))
        if address.path.startswith(f"/{STATIC}/"):
            name = f"{PAGES}{address.path}" if is_first else address.path.removeprefix("/")
            return f' {found[1]}="{escape(name)}"'
        whole = f"{address.path}?{address.query}" if address.query else address.path
        if whole not in written:
            if not extent.has(whole):
                return ""
            written[whole] = f"{PAGES}/{file_name(whole)}"
            waiting.append(whole)
        name = written[whole] if is_first else _from_pages(written[whole])
        anchor = f"#{address.fragment}" if address.fragment else ""
        return f' {found[1]}="{escape(name + anchor)}"'

    page = _FORM.sub("", _LIVE.sub("", page))
    if is_first:
        style = (_SOURCE / "view.css").read_text()
        page = page.replace(_STYLE, f"<style>\n{style}</style>", 1)
    return _LINK.sub(link, page)


def _from_pages(name: str) -> str:
    return name.removeprefix(f"{PAGES}/") if name.startswith(f"{PAGES}/") else f"../{name}"


def file_name(address: str) -> str:
    """A name that every file system takes, one for each address."""
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", address).strip("-.")[:80]
    return f"{readable}-{sha256(address.encode()).hexdigest()[:10]}.html"


@contextmanager
def _partial(parent: Path) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix=".freezing-", dir=parent))
    try:
        for old in parent.glob(".freezing-*"):
            if _changed_at(old) < _changed_at(made) - _STALE_S:
                shutil.rmtree(old, ignore_errors=True)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # its command has just ended
        return inf


def _move(source: Path, target: Path) -> bool:
    """False: the target has files, or another command has moved the source."""
    try:
        os.rename(source, target)
    except (FileNotFoundError, FileExistsError, NotADirectoryError):
        return False
    except OSError:
        if target.is_dir() and any(target.iterdir()):
            return False
        raise
    return True
