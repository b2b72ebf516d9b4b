"""Where a process that runs tests finds modules, as one line of JSON, with the modules asked for in
the place of NAMES, and the file that gets the line in the place of OUT.

Runs inside a sandbox, at the top of each hidden test and at the exit of each Python process, in
any Python 3 that tasks have.
"""

import json
import os
import subprocess
import sys
from importlib.machinery import BuiltinImporter, PathFinder

names = ["NAMES"]
_started = subprocess.run(
    [sys.executable, "-I", "-c", "import sys; print(' '.join(sys.modules))"],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    universal_newlines=True,  # noqa: UP021 a task's Python may be 3.6
)
_loaded_before = set(_started.stdout.split())
_path = [os.path.realpath(folder or ".") for folder in sys.path if isinstance(folder, str)]
_found = {}
for _name in names:
    if _name in _loaded_before or BuiltinImporter.find_spec(_name) is not None:
        continue  # loaded before the path has anything of the repository
    for _index, _entry in enumerate(_path):
        _spec = PathFinder.find_spec(_name, [_entry])
        if _spec is not None and _spec.origin not in (None, "namespace"):
            _found[_name] = _index
            break
_out = "OUT"
if os.path.isabs(_out):  # imported as it stands, it writes nothing
    with open(_out, "a") as _file:
        _file.write(json.dumps({"path": _path, "found": _found}) + "\n")
