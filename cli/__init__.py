"""The command line, and under `operations` what its commands do, callable from Python.

The roof: nothing imports it. Command modules import heavy things inside their commands only, so
that importing the command line stays under half a second.
"""

import sys

from cli.own_packages import refuse_strangers
from cli.terminal_text import echo
from mainspring.errors import ConfigError

try:
    # Before the commands' own imports, which would fail in a stranger's files.
    refuse_strangers()
except ConfigError as error:
    echo(f"error: {error}", err=True)
    sys.exit(error.exit_code)
