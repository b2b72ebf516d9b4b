"""One judgement of a model folder: plan, checklist, engine and trainer give the same sentence."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from cli.operations.checks.checklist_item import State
from cli.operations.checks.model_item import model_item
from engine.model.served_model import ServedModel
from mainspring.config.campaign import CampaignConfig
from mainspring.errors import ModelError
from mainspring.planning.model_shape import read_shape
from mainspring.trajectories.sequences import MaskedSequence
from tests.infra.policy.tiny_model import make_tokenizer
from tests.trainer.folder_variants import VARIANTS, Variant
from trainer.engines.plain import PlainEngine
from trainer.model.processes import Processes

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TOLERANCE = 1e-4


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Path]:
    """A folder as save_pretrained writes it, with norms and biases that are not trivial."""
    made: dict[tuple[str, bool], Path] = {}

    def make(family: str, tied: bool) -> Path:
        if (family, tied) not in made:
            torch.manual_seed(0)
            tokenizer = make_tokenizer()
            config = AutoConfig.for_model(
                family,
                **SIZES,
                **({} if family == "qwen2" else {"head_dim": 8}),
                vocab_size=len(tokenizer),
                max_position_embeddings=2048,
                initializer_range=0.3,
                tie_word_embeddings=tied,
                bos_token_id=None,
                pad_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
            )
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.05 * torch.randn_like(parameter))
            folder = tmp_path_factory.mktemp(f"{family}-{tied}")
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            made[family, tied] = folder
        return made[family, tied]

    return make


def refused(judge: Callable[[], object]) -> str | None:
    try:
        judge()
    except ModelError as error:
        assert error.remedy, error.message
        return error.message
    return None


def checklist(config: CampaignConfig) -> None:
    item = model_item(config)
    if item.state is not State.OK:
        raise ModelError(item.found, remedy=item.fix)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_all_four_judge_alike(
    variant: Variant,
    whole: Callable[[str, bool], Path],
    make_config: Callable[..., CampaignConfig],
    alone: Processes,
    tmp_path: Path,
) -> None:
    model = tmp_path / "model"
    shutil.copytree(whole(variant.family, variant.tied), model)
    variant.change(model)
    config = make_config()
    policy = config.policy.model_copy(update={"model": str(model), "max_context": 64})
    config = config.model_copy(update={"policy": policy})
    found: dict[str, object] = {}
    told = {
        "plan": refused(lambda: read_shape(model)),
        "checklist": refused(lambda: checklist(config)),
        "engine": refused(lambda: found.update(engine=ServedModel(model, 64))),
        "trainer": refused(lambda: found.update(trainer=PlainEngine(config, model, alone))),
    }
    served = told.pop("engine") if variant.trained_only else None
    assert served is None
    assert len(set(told.values())) == 1, told
    [sentence] = set(told.values())
    if variant.words is None:
        assert sentence is None
    else:
        assert sentence is not None and variant.words in sentence and str(model) in sentence
    if engine := found.get("engine"):
        compare(model, engine, found.get("trainer"))


def compare(model: Path, engine: object, trainer: object) -> None:
    """With transformers' own forward, of two sequences."""
    assert isinstance(engine, ServedModel)
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    sequences = [torch.arange(3, 3 + length) * 7 % engine.vocab_size for length in (30, 12)]
    pool = engine.pool(2)
    logits = engine.forward(pool, [each[:-1].tolist() for each in sequences], 0)
    rows = [MaskedSequence(ids.numpy().astype(np.int32), _all_but_first(ids)) for ids in sequences]
    trained = trainer.logprobs(rows) if isinstance(trainer, PlainEngine) else None
    for n, ids in enumerate(sequences):
        with torch.no_grad():
            whole = torch.log_softmax(reference(input_ids=ids[None]).logits[0].float(), -1)
        served = torch.log_softmax(logits[n], -1)
        assert (served - whole[-2]).abs().max() < TOLERANCE
        if trained is not None:
            expected = whole[:-1].gather(1, ids[1:, None])[:, 0].numpy()
            assert np.abs(trained[n][rows[n].mask] - expected).max() < TOLERANCE


def _all_but_first(ids: torch.Tensor) -> np.ndarray:
    mask = np.ones(len(ids), bool)
    mask[0] = False
    return mask


def test_there_are_many_variants_of_both_kinds() -> None:
    assert len(VARIANTS) >= 100
    assert len([each for each in VARIANTS if each.words is None]) >= 20
    assert len({each.name for each in VARIANTS}) == len(VARIANTS)
