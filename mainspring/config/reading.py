"""Campaign files: TOML in, a checked configuration out, without any heavy import.

Invariant: an error names the file and each wrong field.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from mainspring.config import errors
from mainspring.config.campaign import CampaignConfig
from mainspring.config.model_path import with_model_path
from mainspring.config.presets import expanded
from mainspring.errors import ConfigError


def load_campaign(path: Path) -> CampaignConfig:
    """Read a campaign file. Raises ConfigError naming the file and each wrong field."""
    return check_campaign(with_model_path(read_toml(path), path), str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}", remedy="give the path of a TOML file"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not TOML: {error}", remedy="save the file as UTF-8 text"
        ) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path}: not TOML: {errors.syntax_lines(error, text)}",
            remedy='write key = value: text in quotes ("..."), lists as [1, 2], sections as [name]',
        ) from None


def check_campaign(
    raw: dict[str, Any], where: str, named: Mapping[str, str] = MappingProxyType({})
) -> CampaignConfig:
    """Raises ConfigError naming `where` and each wrong field; `named` gives what a field is called
    there."""
    try:
        return CampaignConfig.model_validate(expanded(raw))
    except ValidationError as error:
        lines = errors.explain(error, CampaignConfig, named)
        raise ConfigError(
            "\n".join(f"{where}: {line}" for line in lines),
            remedy="see docs/campaign.md for every field and its bounds",
        ) from None
