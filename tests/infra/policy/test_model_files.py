"""Model directories as people and crashes leave them: each refusal names what is wrong."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from infra.policy.model.model_files import check_model_directory, check_servable, read_facts
from infra.policy.model.weight_files import check_same_weights, weights_digest
from mainspring.errors import ModelError
from mainspring.model_folder.refusals import FolderUse
from mainspring.model_folder.weights import INDEX, SINGLE, read_weights
from tests.infra.policy.tiny_model import make_tokenizer, save_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model")


def edit(file: Path, **fields: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def sharded(model: Path) -> Path:
    AutoModelForCausalLM.from_pretrained(model).save_pretrained(model, max_shard_size="60KB")
    (model / SINGLE).unlink()
    assert len(list(model.glob("model-*.safetensors"))) > 1
    return model


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def test_a_whole_directory_passes(model: Path) -> None:
    check_model_directory(model)
    facts = read_facts(model)
    assert (facts.model_type, facts.architectures) == ("qwen3", ("Qwen3ForCausalLM",))
    assert (facts.vocab_size, facts.max_context) == (320, 2048)
    check_model_directory(sharded(model))


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no tokenizer": (
        lambda d: [file.unlink() for file in d.glob("tokenizer*")],
        "no tokenizer (tokenizer.json or tokenizer_config.json)",
    ),
    "no config": (lambda d: (d / "config.json").unlink(), "no config.json"),
    "config cut": (lambda d: cut(d / "config.json"), "config.json: cannot be read"),
    "config a list": (lambda d: (d / "config.json").write_text("[]"), "expected a JSON object"),
    "no model type": (lambda d: edit(d / "config.json", model_type=""), "names no model_type"),
    "no text": (
        lambda d: edit(d / "config.json", architectures=["BertForMaskedLM"]),
        "architecture BertForMaskedLM generates no text",
    ),
    "family": (
        lambda d: edit(d / "config.json", model_type="gpt_oss"),
        "model_type 'gpt_oss' (Qwen3ForCausalLM) cannot be trained",
    ),
    "vocabulary": (
        lambda d: edit(d / "config.json", vocab_size=9),
        "config.json has vocab_size = 9, the embedding in model.safetensors has ",
    ),
    "no weights": (lambda d: (d / SINGLE).unlink(), "no *.safetensors"),
    "weights cut": (lambda d: cut(d / SINGLE), f"{SINGLE}: "),
    "weights empty": (lambda d: (d / SINGLE).write_bytes(b""), f"{SINGLE}: 0 bytes"),
    "a pointer": (
        lambda d: (d / SINGLE).write_text("version https://git-lfs.github.com/spec/v1\n"),
        f"{SINGLE}: ",
    ),
    "header damaged": (
        lambda d: (d / SINGLE).write_bytes(b"\x08" + bytes(7) + b"notjson}"),
        f"{SINGLE}: cannot be read",
    ),
    "shard missing": (
        lambda d: next(sharded(d).glob("model-00002*")).unlink(),
        f".safetensors is missing, {INDEX} names it",
    ),
    "shard cut": (lambda d: cut(next(sharded(d).glob("model-00001*"))), "the file is cut"),
    "index cut": (lambda d: cut(sharded(d) / INDEX), f"{INDEX}: cannot be read"),
    "no template": (
        lambda d: (
            (d / "chat_template.jinja").unlink(),
            edit(d / "tokenizer_config.json", chat_template=None),
        ),
        "no chat template",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_wrong_is_named(model: Path, kind: str) -> None:
    breaking, words = BROKEN[kind]
    breaking(model)
    with pytest.raises(ModelError) as caught:
        check_model_directory(model)
    assert words in caught.value.message and str(model) in caught.value.message
    assert caught.value.remedy and caught.value.exit_code == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_weights_of_another_user_have_a_remedy_of_their_own(model: Path) -> None:
    """safetensors keeps what it writes for its owner; a container's user is another one."""
    program = (
        "import os, sys; from pathlib import Path\n"
        "from mainspring.model_folder import weights as files\n"
        "os.seteuid(65534)\n"
        "try: files.read_weights(Path(sys.argv[1]))\n"
        "except files.ModelError as error: print(error.message, '|', error.remedy)"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        shared = shutil.copytree(model, Path(folder, "model"))
        (shared / SINGLE).chmod(0o600)
        said = subprocess.run(
            [sys.executable, "-c", program, str(shared)], capture_output=True, text=True, check=True
        )
    assert f"{SINGLE}: may not be read by user 65534 | " in said.stdout
    assert f"chmod -R a+rX {shared}" in said.stdout


@pytest.mark.parametrize("use", [FolderUse.SERVED, FolderUse.ANY_MODEL])
def test_what_transformers_does_not_know_is_refused_before_weights_are_read(
    model: Path, use: FolderUse
) -> None:
    edit(model / "config.json", model_type="qwen99", architectures=["Qwen99ForCausalLM"])
    with pytest.raises(ModelError, match="does not know model_type 'qwen99'"):
        check_model_directory(model, use)
    check_servable(model)  # SGLang judges for itself


def test_an_engine_may_serve_what_cannot_be_trained(model: Path) -> None:
    edit(model / "config.json", model_type="gpt_oss", architectures=["GptOssForCausalLM"])
    check_servable(model)


def test_a_hub_id_is_answered_with_how_to_download_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (Path("Qwen/Qwen3-8B"), Path("Qwen/Qwen3-8B").absolute()):
        with pytest.raises(ModelError, match="no such directory") as caught:
            check_model_directory(given)
        assert "hf download Qwen/Qwen3-8B --local-dir Qwen/Qwen3-8B" in caught.value.remedy


def change(source: Path, target: Path, **weights: torch.Tensor | None) -> Path:
    target.mkdir()
    kept = load_file(source / SINGLE) | {n: w for n, w in weights.items() if w is not None}
    save_file({n: w for n, w in kept.items() if weights.get(n, w) is not None}, target / SINGLE)
    return target


def test_weights_are_compared_by_name_and_shape(model: Path, tmp_path: Path) -> None:
    name = "model.norm.weight"
    norm = load_file(model / SINGLE)[name]
    check_same_weights(change(model, tmp_path / "other values", **{name: norm + 1}), model)
    check_same_weights(change(model, tmp_path / "other dtype", **{name: norm.half()}), model)
    for target, new, words in (
        ("short", {name: norm[:-1].clone()}, f"weight {name} is [31], expected [32]"),
        ("missing", {name: None}, f"weight {name} is missing"),
        ("more", {"model.bias": norm.clone()}, "weight model.bias is unknown"),
    ):
        with pytest.raises(ModelError) as caught:
            check_same_weights(change(model, tmp_path / target, **new), model)
        assert words in caught.value.message and target in caught.value.message


def test_the_digest_tells_values_apart_and_not_how_they_are_stored(
    model: Path, tmp_path: Path
) -> None:
    digest = weights_digest(model)
    assert digest is not None and len(digest) == 64
    norm = load_file(model / SINGLE)["model.norm.weight"]
    other = change(model, tmp_path / "other", **{"model.norm.weight": norm + 1})
    assert weights_digest(other) != digest
    for dtype in (torch.bfloat16, torch.float16):
        low = {name: weight.to(dtype) for name, weight in load_file(other / SINGLE).items()}
        for directory, weights in (
            (tmp_path / f"low {dtype}", low),
            (tmp_path / f"wide {dtype}", {name: weight.float() for name, weight in low.items()}),
        ):
            directory.mkdir()
            save_file(weights, directory / SINGLE)
        low_digest = weights_digest(tmp_path / f"low {dtype}")
        assert low_digest == weights_digest(tmp_path / f"wide {dtype}") != digest
    whole = change(model, tmp_path / "whole", steps=torch.tensor([1]))
    assert weights_digest(whole) is None
    assert weights_digest(sharded(model)) == digest


def test_headers_say_what_the_library_reads(model: Path) -> None:
    assert make_tokenizer().chat_template
    loaded = load_file(model / SINGLE)
    found = read_weights(model)
    assert {n: w.shape for n, w in found.items()} == {n: tuple(w.shape) for n, w in loaded.items()}
