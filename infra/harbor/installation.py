"""Whether this Python can make agents of Harbor.

Invariant: it imports nothing of Harbor, so that it can be asked in any process.
"""

import importlib.metadata
import importlib.util
import sys

from mainspring.errors import ConfigError
from mainspring.programs.harbor import HARBOR, VERSION

_MIN_PYTHON = (3, 12)
_EXTRA = "install the extra: `pip install 'mainspring[harbor]' -c constraints-harbor.txt`"


def require() -> None:
    """Raises ConfigError."""
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if sys.version_info < _MIN_PYTHON:
        raise ConfigError(
            f"Harbor's agents need Python 3.12, and this process has {here} ({sys.executable})",
            remedy="make the environment with it (`make install PYTHON=python3.12`), then "
            + _EXTRA,
        )
    if importlib.util.find_spec(HARBOR) is None:
        raise ConfigError(
            f"the package harbor, which has Harbor's agents, is not installed ({sys.executable})",
            remedy=_EXTRA,
        )
    version = importlib.metadata.version(HARBOR)
    if version != VERSION:
        raise ConfigError(
            f"the package harbor is installed at {version}, expected {VERSION} ({sys.executable})",
            remedy=_EXTRA,
        )
