"""Where gateways are: as configured, or as those of this home folder tell.

Invariants: a gateway of a home writes its address into a file of its own once it listens, and
removes it at its end; one that was killed leaves a file behind, whose address refuses connections
until the next gateway of this home removes it. Written by gateways, read by nodes whenever they
connect.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mainspring.config.settings import Settings

FOLDER = "gateways"


@contextmanager
def announced(home: Path, pid: int, address: str) -> Iterator[None]:
    """While the block runs, nodes of this home find `address`, "host:port"."""
    import psutil  # commands that look for gateways do without it

    folder = home / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.iterdir():
        if not (left.name.isdigit() and psutil.pid_exists(int(left.name))):
            left.unlink(missing_ok=True)
    own = folder / str(pid)
    # A reader never sees half an address.
    draft = folder / f".{pid}"
    draft.write_text(address)
    draft.replace(own)
    try:
        yield
    finally:
        own.unlink(missing_ok=True)


def found(settings: Settings) -> list[str]:
    """Addresses to try, in order; none when no gateway is up or configured."""
    configured = [
        address.strip() for address in settings.gateway_addresses.split(",") if address.strip()
    ]
    if configured:
        return configured
    folder = settings.home / FOLDER
    files = sorted(folder.glob("[0-9]*")) if folder.is_dir() else []
    return [text for file in files if (text := _read(file))]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""  # its gateway ended
