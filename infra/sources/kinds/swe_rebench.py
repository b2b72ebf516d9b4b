"""SWE-rebench rows: SWE-bench's columns, and an `install_config` of the row's own.

Its commands are the row's, never those that `specs.toml` has for the same repository: the image was
made with them. The eval script is SWE-bench's, as the data set's own harness makes it: install,
test files as they were, test patch, test command with the test files. Its log parser must be one
of the official library's. Pure. Imported by `rows`.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from infra.sources.fields import Row, from_json, names, patch, text
from infra.sources.image_rules import image_for
from infra.sources.kinds.log_parsers import check_parser
from infra.sources.kinds.specs import Spec, check_reached, eval_script
from infra.sources.protocol import ImportOptions, RowError, RowProblem

CONFIG = "install_config"
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def spec_of(row: Row) -> Spec:
    """How the row itself wants to be tested. Raises RowError."""
    config = from_json(row[CONFIG])
    if not isinstance(config, Mapping):
        raise RowError(RowProblem.WRONG_TYPE, f"{CONFIG} must be an object, or one as JSON text")
    parser, test = _text(config, "log_parser"), _text(config, "test_cmd")
    if not parser or not test:
        missing = "log_parser" if test else "test_cmd"
        raise RowError(
            RowProblem.NO_SPEC,
            f"{CONFIG}.{missing} is missing or empty: how this row is tested is not known",
            remedy="give the row image, eval_script, log_parser and eval_type",
        )
    check_parser(parser)
    return Spec(
        images=None,
        parser=parser,
        test=test,
        install="\n".join(_lines(config, "install")),
        before=(*_variables(config), *_lines(config, "eval_commands")),
    )


def test_fields(row: Row, spec: Spec, options: ImportOptions) -> dict[str, object]:
    """Image and test command. Raises RowError."""
    test_patch, files = patch(row, "test_patch")
    check_reached(spec, files, names(row, "FAIL_TO_PASS"))
    return {
        "image": image_for(row, text(row, "instance_id"), None, options.image_template),
        "test_command": eval_script(spec, text(row, "base_commit"), test_patch, files),
    }


def _text(config: Mapping[str, Any], field: str) -> str:
    value = config.get(field)
    if value is not None and not isinstance(value, str):
        raise RowError(RowProblem.WRONG_TYPE, f"{CONFIG}.{field} must be text")
    return value or ""


def _lines(config: Mapping[str, Any], field: str) -> list[str]:
    value = config.get(field) or []
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
        raise RowError(RowProblem.WRONG_TYPE, f"{CONFIG}.{field} must be text, or a list of texts")
    return [line for line in value if line.strip()]


def _variables(config: Mapping[str, Any]) -> list[str]:
    variables = config.get("env_vars") or {}
    if not isinstance(variables, Mapping) or not all(
        _VARIABLE.fullmatch(str(name)) for name in variables
    ):
        raise RowError(RowProblem.WRONG_TYPE, f"{CONFIG}.env_vars must be texts by variable")
    # A table's columns are those of all its rows: a variable of another row is None here.
    return [
        f"export {name}={shlex.quote(str(value))}"
        for name, value in variables.items()
        if value is not None
    ]
