"""Runs a module of a bundle's packages: arguments are the LD_LIBRARY_PATH of the programs that it
starts (empty: none), the packages' folder, the module, and its own.

Nothing of it reaches those programs: no variable, no path. Runs alone, with the standard library
only; imported by no module.
"""

import os
import runpy
import site
import sys


def main(libraries: str, packages: str, module: str, arguments: list) -> None:
    # The loader has read it: this process keeps the libraries of the bundle's Python.
    os.environ.pop("LD_LIBRARY_PATH", None)
    if libraries:
        os.environ["LD_LIBRARY_PATH"] = libraries
    again = os.path.join(sys.prefix, "bin", "again")  # as bundles have it, and no other Python
    if os.path.exists(again):
        sys.executable = again
    site.addsitedir(packages)
    if module == "runpy":  # a script, which is the first argument
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
        return
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
