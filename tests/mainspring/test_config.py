"""Campaign files: what is wrong is named with file and field."""

from pathlib import Path

import pytest

import mainspring.bundled
from mainspring.config import load_campaign
from mainspring.errors import ConfigError

VALID = 'name = "a"\n[policy]\nmodel = "/models/m"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (VALID + "stepz = 3\n", "policy.stepz"),
        (VALID + "[trainer]\nnum_steps = 'ten'\n", "trainer.num_steps"),
        (VALID + "[trainer]\ngroup_size = 1\n", "trainer.group_size"),
        (VALID + "[trainer]\ntensor_parallel = 2\n[trainer.optimizer]\nname = 'muon'\n", "muon"),
        (VALID.replace('"a"', '"A b"'), "name: "),
        (VALID + "max_context = 100\nmax_new_tokens = 100\n", "below max_context"),
        (VALID + "engines = ['localhost:3']\n", "policy.engines"),
        ('name = "a"\n', "trainer.warm_start"),
        ("name = \n", "not TOML"),
    ],
)
def test_a_wrong_file_names_the_field(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "campaign.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_campaign(file)
    assert str(file) in str(raised.value)
    assert says in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_campaign(tmp_path / "none.toml")


def test_the_bundled_campaign_is_valid() -> None:
    config = load_campaign(Path(mainspring.bundled.__file__).parent / "quickstart.toml")
    assert config.split_size("heldout") == 128
    assert config.task_source == "bundled-s0"
