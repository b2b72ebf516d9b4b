"""Write docs/commands.md from the command line itself: `python docs/make_command_reference.py`.

A test compares, so the page never differs from `--help`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from cli.main import app

PAGE = Path(__file__).parent / "commands.md"
HEAD = """\
# Commands

<!-- Written by docs/make_command_reference.py from the commands' own help. -->

Every listing and summary takes `--json`. `--home DIR`, before or after the command, chooses another
state folder than `.mainspring`. `--no-color` or `NO_COLOR=1` prints without colours. Exit codes: 0
done, 2 wrong input, 3 a service is missing or unfit, 4 the work failed, 130 interrupted. Addresses
and keys are [environment variables](variables.md).
"""
MORE = {
    "mainspring sft": "supervised.md",
    "mainspring tasks import": "tasks.md",
    "mainspring tasks new": "tasks.md",
    "mainspring campaign start": "campaign.md",
    "mainspring campaign plan": "planning.md",
    "mainspring campaign key": "gateway.md",
    "mainspring campaign fingerprint": "reproducible.md",
    "mainspring eval run": "evaluations.md",
    "mainspring eval one": "evaluations.md",
    "mainspring eval compare": "evaluations.md",
    "mainspring worker sandbox": "nodes.md",
    "mainspring worker gateway": "gateway.md",
    "mainspring worker edge": "gateway.md#an-edge",
    "mainspring node drain": "nodes.md",
    "mainspring agents add": "agents.md",
    "mainspring bench simulate": "measurements/simulated.md",
}
"""Pages that explain a command."""
EVERYWHERE = {"home", "help", "as_json"}
"""Options of nearly every command; the page's head tells of them."""


def page() -> str:
    commands = list(_commands(typer.main.get_command(app), ("mainspring",)))
    rows = [
        f"| [`{name}`](#{_anchor(name)}) | {_short(command)}{_more(name)} |"
        for name, command in commands
    ]
    table = "\n".join(["| command | does |", "|---|---|", *rows])
    sections = "\n".join(_section(name, command) for name, command in commands)
    return f"{HEAD}\n{table}\n\n{sections}"


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(words), command
        return
    for name, inner_command in inner.items():
        if not inner_command.hidden:
            yield from _commands(inner_command, (*words, name))


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _short(command: Any) -> str:
    """The help's first sentence."""
    return _cell(command.help.split("\n\n")[0].split(". ")[0].rstrip(".") + ".")


def _more(name: str) -> str:
    return f" See [{MORE[name].partition('#')[0]}]({MORE[name]})." if name in MORE else ""


def _section(name: str, command: Any) -> str:
    arguments = [
        parameter for parameter in command.params if parameter.param_type_name == "argument"
    ]
    options = [
        parameter
        for parameter in command.params
        if parameter.param_type_name == "option"
        and parameter.name not in EVERYWHERE
        and not parameter.hidden
    ]
    usage = " ".join([name, *(_argument(parameter) for parameter in arguments)])
    lines = [f"## {name}", "", f"    {usage}{' [OPTIONS]' if options else ''}", "", command.help]
    if arguments or options:
        lines += ["", "| argument or option | meaning | default |", "|---|---|---|"]
        lines += [_row(_argument(argument), argument) for argument in arguments]
        lines += [_row(_names(parameter, command), parameter) for parameter in options]
    return "\n".join([*lines, ""])


def _row(name: str, parameter: Any) -> str:
    meaning = _cell(parameter.help or "")
    return f"| `{name.replace('|', ', ')}` | {meaning} | {_default(parameter)} |"


def _names(option: Any, command: Any) -> str:
    """With the word that `--help` shows for its value."""
    names = ", ".join([*option.opts, *option.secondary_opts])
    kind = option.metavar or option.display_type(typer.Context(command)).strip("<>")
    return names if option.is_flag else f"{names} {kind.removesuffix(' range').upper()}"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if value is None or value is False or value == "" or callable(value):
        return "-"
    return f"`{getattr(value, 'value', value)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    name = f"{name.removesuffix('...')}..." if argument.nargs == -1 else name
    return name if argument.required else f"[{name}]"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
