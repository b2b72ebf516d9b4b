"""Start the service: `PYTHON start.py --port N --environment ID --args JSON --folder FOLDER`.

Invariants: it is run by the Python that has `verifiers`, which need not have Mainspring, so of
Mainspring only this folder can be imported; what can never start ends with the code REFUSED, and
its last line tells why. Nothing imports it.
"""

import argparse
import json
import os
import sys
import types
from typing import NoReturn

REFUSED = 78
"""As EX_CONFIG: a service that ends with it is not started again."""
OLDEST_PYTHON = (3, 11)
OLDEST = (0, 3, 1)
BELOW = (0, 5)
WANTED = "verifiers>=0.4,<0.5"


def refuse(why) -> NoReturn:
    print(why, flush=True)
    sys.stdout.flush()
    os._exit(REFUSED)


def require_verifiers():
    """Before anything is imported that takes seconds."""
    here = sys.executable
    if sys.version_info < OLDEST_PYTHON:
        version = "%d.%d" % sys.version_info[:2]  # noqa: UP031 - an old Python reads this file
        refuse("its Python {} is {}; verifiers needs 3.11 or newer".format(here, version))  # noqa: UP032
    from importlib import metadata

    try:
        version = metadata.version("verifiers")
    except metadata.PackageNotFoundError:
        refuse(f"its Python {here} has no verifiers: run {here} -m pip install '{WANTED}'")
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    if numbers < OLDEST or numbers[:2] >= BELOW:
        wanted = f"run {here} -m pip install '{WANTED}'"
        refuse(f"its Python {here} has verifiers {version}, which is not played: {wanted}")


def only_this_folder():
    """Make this folder importable by its name in Mainspring, and nothing beside it."""
    for name in ("infra", "infra.environments"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    sys.modules["infra.environments"].__path__ = [os.path.dirname(os.path.dirname(__file__))]
    from infra.environments.verifiers import serving

    # An environment may have modules of these names.
    for name in ("infra", "infra.environments"):
        del sys.modules[name]
    return serving


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--environment", required=True)
    parser.add_argument("--args", required=True)
    parser.add_argument("--folder", required=True)
    given = parser.parse_args()
    require_verifiers()
    # Where the environment may be a module, also for the tool servers that it starts.
    folder = os.path.abspath(given.folder)
    sys.path[0] = folder
    paths = [folder, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    try:
        serving = only_this_folder()
    except ImportError as error:
        refuse(f"its Python {sys.executable} cannot import verifiers: {error}")
    why = serving.serve(given.port, given.environment, json.loads(given.args))
    if why:
        refuse(why)


if __name__ == "__main__":
    main()
