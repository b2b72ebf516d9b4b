"""The bundled model: an ordinary Hugging Face directory, the same for a seed, and really small."""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bundled import shape
from bundled.forms import BUNDLED_AGENT
from bundled.generator import make_instances
from bundled.model import IM_END, make_bundled_model, make_tokenizer
from bundled.trajectories import Writer
from mainspring.agents.bundled import BundledAgent
from mainspring.planning.model_shape import read_shape, shape_of
from mainspring.training.training_faults import CheckpointUnusable


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundled") / "seed0"
    make_bundled_model(directory, seed=0)
    return directory


def test_it_loads_like_any_model(model_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    assert model.config.model_type == "qwen3"
    assert model.dtype == torch.float32
    assert sum(p.numel() for p in model.parameters()) < 1_000_000
    assert tokenizer.eos_token == IM_END
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert len(tokenizer) == model.config.vocab_size
    logits = model(input_ids=torch.tensor([tokenizer.encode("def get_total(n):")])).logits
    assert logits.isfinite().all()


def test_its_sizes_are_those_that_it_is_planned_with(model_dir: Path) -> None:
    made = read_shape(model_dir)
    assert made == shape_of(shape.config(), "the bundled model")
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    assert made.num_parameters == sum(p.numel() for p in model.parameters())


def test_a_seed_gives_the_same_bytes_and_another_seed_other_weights(
    model_dir: Path, tmp_path: Path
) -> None:
    torch.manual_seed(99)
    make_bundled_model(tmp_path / "again", seed=0)
    make_bundled_model(tmp_path / "other", seed=1)
    for file in model_dir.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes(), file.name
    weights, tokens = "model.safetensors", "tokenizer.json"
    assert (model_dir / weights).read_bytes() != (tmp_path / "other" / weights).read_bytes()
    assert (model_dir / tokens).read_bytes() == (tmp_path / "other" / tokens).read_bytes()


def test_making_it_again_leaves_it_alone_and_nothing_half_made_behind(model_dir: Path) -> None:
    before = (model_dir / "model.safetensors").stat().st_mtime_ns
    make_bundled_model(model_dir, seed=0)
    assert (model_dir / "model.safetensors").stat().st_mtime_ns == before
    assert [path.name for path in model_dir.parent.iterdir()] == [model_dir.name]


def test_the_global_random_state_is_left_as_it_was(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    make_bundled_model(tmp_path / "m", seed=3)
    assert torch.equal(state, torch.get_rng_state())


def test_the_chat_template_is_chatml(model_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    text = tokenizer.apply_chat_template(
        [
            {"role": "system", "content": BundledAgent.texts.system},
            {"role": "user", "content": "Fix it."},
        ],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>user\nFix it.<|im_end|>\n<|im_start|>assistant\n")


def test_rollouts_survive_the_tokenizer_and_operators_stay_single() -> None:
    tokenizer = make_tokenizer()
    rng, writer = random.Random(0), Writer(BUNDLED_AGENT)
    for instance in make_instances(0, "heldout_templates", 30):
        for text in writer.draw(instance, rng).texts:
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids) == text
    assert len(tokenizer.encode("<=", add_special_tokens=False)) == 2
    assert len(tokenizer.encode("128", add_special_tokens=False)) == 3


@pytest.mark.parametrize("text", ["h\u00e9llo \u4e16\u754c\t\x00", "  \n\n   x\r\n", "\U0001f600"])
def test_any_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_another_seed_or_a_damaged_directory_is_refused(tmp_path):
    made = tmp_path / "base"
    make_bundled_model(made, seed=3)
    make_bundled_model(made, seed=3)
    with pytest.raises(CheckpointUnusable, match="made of seed 3, the campaign has seed 4"):
        make_bundled_model(made, seed=4)
    weights = made / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointUnusable, match=r"lacks its file model.safetensors"):
        make_bundled_model(made, seed=3)
