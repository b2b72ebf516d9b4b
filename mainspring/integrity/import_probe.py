"""Where a process that runs tests finds modules, as one line of JSON. Set before it: `names`, the
modules asked for, and `out`, the file that gets the line.

Runs inside a sandbox, at the top of each hidden test and at the exit of each Python process, in
any Python 3 that tasks have.
"""

import json
import os
import subprocess
import sys
from importlib.machinery import BuiltinImporter, PathFinder

names: list
out: str
_started = subprocess.run(
    [sys.executable, "-I", "-c", "import sys; print(' '.join(sys.modules))"],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    universal_newlines=True,
)
_loaded_before = set(_started.stdout.split())
_path = [os.path.realpath(each or ".") for each in sys.path if isinstance(each, str)]
_found = {}
for _name in names:
    if _name in _loaded_before or BuiltinImporter.find_spec(_name) is not None:
        continue  # loaded before the path has anything of the repository
    for _index, _entry in enumerate(_path):
        _spec = PathFinder.find_spec(_name, [_entry])
        if _spec is not None and _spec.origin not in (None, "namespace"):
            _found[_name] = _index
            break
with open(out, "a") as _file:
    _file.write(json.dumps({"path": _path, "found": _found}) + "\n")
