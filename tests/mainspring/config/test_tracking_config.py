"""Section [tracking]: what it refuses, and that it holds no secret."""

from typing import Any

import pytest

from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.reading import check_campaign
from mainspring.errors import ConfigError
from mainspring.training.tracking import chosen, parameters_of

FILE: dict[str, Any] = {"name": "tracked", "trainer": {"warm_start": {}, "device": "cpu"}}


def check(**sections: dict[str, Any]) -> CampaignConfig:
    return check_campaign(FILE | {"tracking": sections}, "campaign.toml")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("http://me:pa55word@host:5000", "does not belong into a campaign file"),
        ("https://pa55word@host", "does not belong into a campaign file"),
        ("/data/mlruns", "is a folder"),
        ("file:///data/mlruns", "is a folder"),
        ("mlflow.db", "is a folder"),
        ("sqlite:///mlflow.db", "has a relative path"),
        ("", "at least 1 character"),
    ],
)
def test_a_uri_that_cannot_be_used_is_refused(uri: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check(mlflow={"uri": uri})
    assert "campaign.toml: tracking.mlflow.uri" in caught.value.message
    assert "pa55word" not in str(caught.value)


@pytest.mark.parametrize("uri", ["http://host:5000", "sqlite:////data/mlflow.db", "databricks://p"])
def test_a_uri_of_mlflow_is_accepted(uri: str) -> None:
    assert chosen(check(mlflow={"uri": uri}).tracking) == ["mlflow"]


def test_both_and_none() -> None:
    assert chosen(check().tracking) == []
    both = check(mlflow={"uri": "http://host"}, wandb={"project": "p", "mode": "offline"})
    assert chosen(both.tracking) == ["mlflow", "wandb"]
    with pytest.raises(ConfigError, match=r"tracking\.wandb\.api_key"):
        check(wandb={"api_key": "k"})


def test_parameters_are_the_configuration_without_addresses() -> None:
    config = CampaignConfig.model_validate(
        FILE
        | {
            "policy": {"engines": ["http://user:pa55word@gpu-1:30000"]},
            "tracking": {"wandb": {}},
        }
    )
    found = parameters_of(config.model_dump(mode="json"))
    assert found["trainer.device"] == "cpu" and found["policy.model"] == "bundled"
    assert found["trainer.warm_start.steps"]
    assert not [name for name in found if name.startswith(("tracking", "policy.engines"))]
    assert not [value for value in found.values() if "pa55word" in value]
