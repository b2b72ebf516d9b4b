"""Campaign files: TOML in, a checked configuration out, without any heavy import.

Invariant: an error names the file and each wrong field.
"""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig, EvaluationFile
from mainspring.config.evaluations.verification import VerificationConfig
from mainspring.config.files import errors
from mainspring.config.files.layers import NONE, Layered, Overrides, Table, layered
from mainspring.config.files.model_path import (
    with_data_files,
    with_model_path,
    with_service_folders,
)
from mainspring.config.files.presets import expanded
from mainspring.config.files.prompt_files import with_judges_prompts, with_prompts
from mainspring.config.files.renamed import renamed
from mainspring.config.run import NamedConfig, NamedEnvironment
from mainspring.config.sft import SftConfig, SftFile
from mainspring.errors import ConfigError

ConfigT = TypeVar("ConfigT", bound=NamedConfig)
_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "kind": "no such field",
        "run": "a campaign has no such section; only `mainspring eval run FILE` reads it",
    }
)
"""Names at the top of a file that stand for something else in a configuration or a command."""


def load_campaign(
    path: Path, tell: Callable[[str], None] | None = None, overrides: Overrides = NONE
) -> CampaignConfig:
    """Read a campaign file. What an earlier version called otherwise is read under its new name,
    and told; without `tell` it is a mistake. Raises ConfigError naming the file and each wrong
    field."""
    return check_layers(read_layers(path, overrides), path, tell)


def check_layers(
    layers: Layered, path: Path, tell: Callable[[str], None] | None = None
) -> CampaignConfig:
    """The campaign of a file that was read. Raises ConfigError as above."""
    raw, notes = renamed(layers.table)
    lines = [f"{path}: {note}" for note in notes]
    if lines and tell is None:
        raise ConfigError("\n".join(lines), remedy="write the new name into the file")
    config = check_campaign(raw, str(path), named_after(layers, path))
    if tell is not None:
        for line in lines:
            tell(line)
    return config


def load_sft(path: Path, overrides: Overrides = NONE) -> SftConfig:
    """Read the file of a supervised run. Raises ConfigError naming the file and each wrong
    field."""
    return check_sft_layers(read_sft_layers(path, overrides), path).config()


def check_sft_layers(layers: Layered, path: Path) -> SftFile:
    """The file of a supervised run that was read. Raises ConfigError as above."""
    return _checked(SftFile, layers.table, str(path), named_after(layers, path))


def read_sft_layers(path: Path, overrides: Overrides = NONE) -> Layered:
    """The file of a supervised run with what stands below and above it; its paths are absolute.
    Raises ConfigError."""

    def placed(raw: Table, file: Path) -> Table:
        return with_data_files(with_model_path(raw, file), file)

    return layered(path, overrides, read_toml, placed)


def read_layers(path: Path | None, overrides: Overrides = NONE) -> Layered:
    """The table of a file with rollouts, with what stands below and above it and with what its
    paths name: the directories of the model and of services are absolute, and the texts of agents
    and judges are read. Raises ConfigError."""

    def placed(raw: Table, file: Path) -> Table:
        raw = with_service_folders(with_model_path(raw, file), file)
        return with_judges_prompts(with_prompts(raw, file, read_toml), file)

    return layered(path, overrides, read_toml, placed)


def named_after(layers: Layered, path: Path | None) -> dict[str, str]:
    """Names of the fields that come from elsewhere than the file, for messages."""
    return {name: f"{name} (of {origin})" for name, origin in layers.elsewhere(path).items()}


class _Environments(BaseModel):
    """That section of a file alone."""

    environments: dict[str, NamedEnvironment] = Field(default_factory=dict)


def read_environments(path: Path) -> dict[str, EnvironmentConfig]:
    """The services that a file with rollouts names, by kind of task; its other sections are not
    looked at. Raises ConfigError."""
    raw = layered(path, NONE, read_toml, with_service_folders).table
    try:
        section = {name: raw[name] for name in _Environments.model_fields if name in raw}
        named = _Environments.model_validate(section).environments
    except ValidationError as error:
        raise ConfigError(
            "\n".join(f"{path}: {line}" for line in errors.explain(error, _Environments)),
            remedy="see docs/campaign.md for every field and its bounds",
        ) from None
    return {kind: each for kind, each in named.items() if isinstance(each, EnvironmentConfig)}


def read_toml(path: Path) -> dict[str, Any]:
    """Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}", remedy="give the path of a TOML file"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not TOML: {error}", remedy="save the file as UTF-8 text"
        ) from None
    try:
        table = tomllib.loads(text)
        if (field := _with_nul(table)) is not None:
            raise ConfigError(
                f"{path}: {field}: holds NUL, which no path and no stored text can",
                remedy="take the \\u0000 out",
            )
        return table
    except RecursionError:
        raise ConfigError(
            f"{path}: it is nested too deeply", remedy="see docs/campaign.md for its sections"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path}: not TOML: {errors.syntax_lines(error, text)}",
            remedy='write key = value: text in quotes ("..."), lists as [1, 2], sections as [name]',
        ) from None


def _with_nul(data: object, field: str = "") -> str | None:
    """The first field that holds the character; None when none does."""
    if isinstance(data, str):
        return field if "\0" in data else None
    inner: Mapping[str, object] = {}
    if isinstance(data, dict):
        inner = {f"{field}.{key}".lstrip("."): value for key, value in data.items()}
    elif isinstance(data, list):
        inner = {f"{field}.{number}": value for number, value in enumerate(data)}
    fields = (repr(name) if "\0" in name else _with_nul(inner[name], name) for name in inner)
    return next((name for name in fields if name is not None), None)


def check_campaign(
    raw: dict[str, Any], where: str, named: Mapping[str, str] = MappingProxyType({})
) -> CampaignConfig:
    """Raises ConfigError naming `where` and each wrong field; `named` gives what a field is called
    there."""
    return _checked(CampaignConfig, raw, where, named)


def check_evaluation(
    raw: dict[str, Any], where: str, named: Mapping[str, str] = MappingProxyType({})
) -> EvaluationConfig:
    """Evaluation that a file asks for. Raises ConfigError as above."""
    return check_evaluation_file(raw, where, named).config()


def check_evaluation_file(
    raw: dict[str, Any], where: str, named: Mapping[str, str]
) -> EvaluationFile:
    """A file, with options that have its form. Raises ConfigError as above."""
    return _checked(EvaluationFile, raw, where, named)


def check_verification(raw: dict[str, Any], where: str) -> VerificationConfig:
    """Raises ConfigError as above."""
    return _checked(VerificationConfig, raw, where, {})


def _checked(
    model: type[ConfigT], raw: dict[str, Any], where: str, named: Mapping[str, str]
) -> ConfigT:
    refused = {name: why for name, why in _REFUSED.items() if name in raw}
    if "run" in model.model_fields:
        refused.pop("run", None)
    lines = [f"{name}: {why}" for name, why in refused.items()]
    try:
        accepted = {name: value for name, value in raw.items() if name not in refused}
        checked = model.model_validate(expanded(accepted))
        if not lines:
            return checked
    except ValidationError as error:
        lines += errors.explain(error, model, named)
    raise ConfigError(
        "\n".join(f"{where}: {line}" for line in lines),
        remedy="see docs/campaign.md for every field and its bounds",
    )
