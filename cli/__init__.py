"""The command line, and under `operations` what its commands do, callable from Python.

The roof: nothing imports it. Command modules import heavy things inside their commands only, so
that importing the command line stays under half a second.
"""

import gc
import sys

# Before the imports, which make objects that stay: with Python's own limit of 700 the collector
# looks at them again and again, a tenth of the time of a command that only reads.
gc.set_threshold(50_000)

from cli.own_packages import refuse_strangers  # noqa: E402
from cli.terminal_text import echo  # noqa: E402
from mainspring.errors import ConfigError  # noqa: E402

try:
    # Before the commands' own imports, which would fail in a stranger's files.
    refuse_strangers()
except ConfigError as error:
    echo(f"error: {error}", err=True)
    sys.exit(error.exit_code)
