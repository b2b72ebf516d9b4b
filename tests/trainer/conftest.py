"""Tiny real models on disk, batches for them, and plain Hugging Face as the oracle."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.lora import LoraConfig
from mainspring.config.training.parallel import Device, ParallelConfig
from mainspring.trajectories.samples import NOT_SAMPLED, Sample
from trainer.model.hf_directory import load_weights
from trainer.model.processes import Processes, join
from trainer.process.driver import TrainerDriver
from trainer.process.rank import TrainerRank

FAMILIES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    "qwen3_moe": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
    ),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "llama": (
        LlamaConfig,
        LlamaForCausalLM,
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    ),
}
VOCAB_SIZE = 97
"""Odd, so that two ranks need padding rows."""

MakeModel = Callable[..., tuple[PreTrainedModel, Path]]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """A Hugging Face model and the directory it is saved in; norms and biases are not trivial."""

    def make(family: str = "qwen3", *, tied: bool = True) -> tuple[PreTrainedModel, Path]:
        config_class, model_class, extra = FAMILIES[family]
        config = config_class(
            vocab_size=VOCAB_SIZE,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=tied,
            max_position_embeddings=128,
            **extra,
        )
        torch.manual_seed(0)
        model = model_class(config).float()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                scale = 0.1 if "norm" in name or "bias" in name else 0.05
                parameter.add_(scale * torch.randn_like(parameter))
        directory = tmp_path_factory.mktemp(f"{family}-{tied}")
        model.save_pretrained(directory)
        (directory / "tokenizer.json").write_text('{"kept": "as it is"}')
        return model, directory

    return make


@pytest.fixture(scope="session")
def alone() -> Processes:
    """The groups of a single process."""
    return join(0, ParallelConfig(device=Device.CPU))


@pytest.fixture(scope="session")
def make_config() -> Callable[..., CampaignConfig]:
    """Of the bundled model, which has adapters (`lora`) in these tests alone."""

    def make(*, lora: dict[str, Any] | None = None, **trainer: Any) -> CampaignConfig:
        optimizer = {"lr": 5e-3, "warmup_steps": 0, "final_lr_fraction": 1.0, "max_grad_norm": 0.5}
        optimizer |= trainer.pop("optimizer", {})
        defaults = {"warm_start": {}, "num_steps": 10, "gap": {"max": 100.0}, "device": "cpu"}
        config = CampaignConfig.model_validate(
            {"name": "t", "trainer": defaults | trainer | {"optimizer": optimizer}}
        )
        adapted = config.trainer.model_copy(update={"lora": LoraConfig(**(lora or {}))})
        return config.model_copy(update={"trainer": adapted})

    return make


@pytest.fixture(scope="session")
def batch() -> list[Sample]:
    """Eight samples of unequal lengths, log-probs near uniform, one without advantage."""
    rng = np.random.default_rng(7)
    samples = []
    for index in range(8):
        length = int(rng.integers(9, 30))
        mask = rng.random(length) < 0.6
        mask[0], mask[-1] = False, True
        logprobs = np.where(mask, -np.log(VOCAB_SIZE) + 0.2 * rng.standard_normal(length), 0)
        samples.append(
            Sample(
                rollout=f"r{index}",
                token_ids=rng.integers(0, VOCAB_SIZE, length).astype(np.int32),
                action_mask=mask,
                logprobs=logprobs.astype(np.float32),
                versions=np.where(mask, index % 2, NOT_SAMPLED).astype(np.int32),
                branch=0,
                advantages=_advantages(mask, 0.0 if index == 3 else rng.standard_normal()),
            )
        )
    return samples


def _advantages(mask: np.ndarray, value: float) -> np.ndarray:
    return np.where(mask, np.float32(value), np.float32(0))


def weights_of(rank: TrainerRank, directory: Path) -> dict[str, torch.Tensor]:
    rank.export_hf(directory)
    return load_weights(directory)


def largest_gap(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def oracle_logprobs(model: PreTrainedModel, sample: Sample) -> torch.Tensor:
    """[T - 1] log-probs of tokens 1.. by plain Hugging Face."""
    ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
    logits = model(input_ids=ids).logits[0, :-1]
    return torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]


@pytest.fixture(scope="session")
def oracle() -> Callable[[PreTrainedModel, Sample], torch.Tensor]:
    return oracle_logprobs


@pytest.fixture(scope="session")
def oracle_step() -> Callable[..., float]:
    """One policy-gradient step on a Hugging Face model, written out by hand; returns its loss."""

    def step(
        model: PreTrainedModel, samples: list[Sample], optimizer: torch.optim.Optimizer
    ) -> float:
        kept = [sample for sample in samples if sample.carries_advantage]
        num_tokens = sum(sample.num_action_tokens for sample in kept)
        total = torch.zeros(())
        for sample in kept:
            mask = torch.from_numpy(sample.action_mask[1:])
            served = torch.from_numpy(sample.logprobs[1:])[mask]
            ratio = (oracle_logprobs(model, sample)[mask] - served).exp()
            bounded = ratio.clamp(0.8, 1.28)
            advantages = torch.from_numpy(sample.advantages[1:])[mask]
            total -= torch.min(ratio * advantages, bounded * advantages).sum()
        loss = total / num_tokens
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return float(loss)

    return step


@pytest.fixture(scope="session")
def driver() -> Iterator[TrainerDriver]:
    driver = TrainerDriver()
    yield driver
    driver.shutdown()
