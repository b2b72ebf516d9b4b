"""Runs a module of a bundle's packages: arguments are their folder, the module, and its own.

Nothing of it reaches the programs that the module starts: no variable, no path. Runs alone, with
the standard library only; imported by no module.
"""

import runpy
import site
import sys


def main(packages: str, module: str, arguments: list) -> None:
    site.addsitedir(packages)
    if module == "runpy":  # a script, which is the first argument
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
        return
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
