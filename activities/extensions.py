"""Whether this process can import what a run would name: asked before the run is stored.

Importing runs the module's code, as the run itself would.
"""

import asyncio

from activities.implements import implements
from mainspring.errors import ConfigError
from mainspring.extensions import Extension
from mainspring.named import find
from mainspring.protocol.activities import CHECK_EXTENSIONS
from mainspring.protocol.extensions import ExtensionsInput, ExtensionsResult


class ExtensionActivities:
    @implements(CHECK_EXTENSIONS)
    async def check_extensions(self, ask: ExtensionsInput) -> ExtensionsResult:
        # In a thread: a module that loads for seconds must not hold up heartbeats.
        problems = await asyncio.to_thread(lambda: [*map(_problem, ask.extensions)])
        return ExtensionsResult(problems=[each for each in problems if each])


def _problem(extension: Extension) -> str:
    try:
        find(extension.what, extension.path, {})
    except ConfigError as error:
        return error.message
    return ""
