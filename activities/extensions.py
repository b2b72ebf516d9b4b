"""Whether this process can import what a run would name: asked before the run is stored.

Importing runs the module's code, as the run itself would.
"""

import asyncio

from activities.implements import implements
from infra.functions.process import problem_of
from infra.harbor import checking
from mainspring.config.registry import Registry
from mainspring.errors import ConfigError
from mainspring.extensions import Extension
from mainspring.programs.functions import FUNCTIONS
from mainspring.programs.harbor import HARBOR_AGENTS
from mainspring.protocol.activities import CHECK_EXTENSIONS
from mainspring.protocol.extensions import ExtensionsInput, ExtensionsResult


class ExtensionActivities:
    @implements(CHECK_EXTENSIONS)
    async def check_extensions(self, ask: ExtensionsInput) -> ExtensionsResult:
        problems = [await _problem(extension) for extension in ask.extensions]
        return ExtensionsResult(problems=[problem for problem in problems if problem])


async def _problem(extension: Extension) -> str:
    if extension.what == FUNCTIONS.what:
        return await problem_of(extension.path)  # it will run in a process of its own, too
    if extension.what == HARBOR_AGENTS.what:
        return await asyncio.to_thread(checking.problem_of, extension.path)
    try:
        # In a thread: a module that loads for seconds must not hold up heartbeats.
        await asyncio.to_thread(Registry[object](extension.what).find, extension.path)
    except ConfigError as error:
        return error.message
    return ""
