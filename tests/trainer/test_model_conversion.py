"""`mainspring model convert`: to Megatron's form under the shim, and back on a CPU as it is."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from cli.main import app
from mainspring.errors import MainspringError
from tests.trainer import rank_jobs
from tests.trainer.ranks import run
from trainer.model.hf_directory import load_weights


def convert(*words: object):
    return CliRunner().invoke(app, ["model", "convert", *map(str, words)])


@pytest.mark.parametrize(("family", "tied"), [("qwen3", True), ("qwen2", False), ("llama", False)])
def test_there_and_back_is_bit_exact(
    make_model, make_config, tmp_path: Path, family: str, tied: bool
) -> None:
    _, directory = make_model(family, tied=tied)
    config = make_config(engine="mcore")
    run(1, rank_jobs.converted, config, directory, tmp_path / "megatron")
    assert (tmp_path / "megatron" / "metadata.json").is_file()
    done = convert(
        tmp_path / "megatron", tmp_path / "back", "--to", "huggingface", "--like", directory
    )
    assert done.exception is None, done.exception
    assert done.stdout.strip() == str(tmp_path / "back")
    before, after = load_weights(directory), load_weights(tmp_path / "back")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "megatron"]


def test_what_cannot_be_converted_is_refused_and_leaves_nothing(
    make_model, make_config, tmp_path: Path
) -> None:
    _, directory = make_model("qwen3")
    _, other = make_model("qwen2")
    run(1, rank_jobs.converted, make_config(engine="mcore"), directory, tmp_path / "megatron")

    def refused(code: int, message: str, *words: object) -> None:
        done = convert(*words)
        error = done.exception
        assert isinstance(error, MainspringError), (done.output, error)
        assert error.exit_code == code and message in error.message and error.remedy
        assert sorted(path.name for path in tmp_path.iterdir()) == ["megatron"]

    source, new = tmp_path / "megatron", tmp_path / "new"
    to_hf = ("--to", "huggingface")
    refused(2, "neither config.json nor tokenizer", source, new, *to_hf)
    refused(2, "no metadata.json", directory, new, *to_hf, "--like", directory)
    refused(2, "does not hold the model of", source, new, *to_hf, "--like", other)
    refused(2, "exists", source, source, *to_hf, "--like", directory)
    if not torch.cuda.is_available():
        refused(3, "sees no GPU", directory, new, "--to", "torch-dist")
