"""What the engine `fsdp` trains, the policy server serves: one log-prob, version after version.

A tiny qwen3_5, as its language model is published alone and in its real layout: vision, and a part
for the prediction of several tokens, lie beside it in the files.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

from engine.model.served_model import ServedModel
from engine.scheduler import PauseMode, Scheduler
from engine.sequences import SamplingOptions, Sequence
from infra.policy.model.weight_files import weights_digest
from mainspring.config.campaign import CampaignConfig
from mainspring.model_folder.weights import SINGLE
from mainspring.trajectories.samples import NOT_SAMPLED, Sample
from tests.infra.policy.tiny_model import make_tokenizer
from tests.trainer.any_models import save_model
from trainer.process.rank import TrainerRank

VOCAB = 320
MAX_GAP = 1e-5
SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 0]}
VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}


def text_model(directory: Path) -> Path:
    save_model("qwen3_5_text", directory, vocab_size=VOCAB)
    make_tokenizer().save_pretrained(directory)
    return directory


def whole_model(directory: Path) -> Path:
    text = json.loads((text_model(directory / "text") / "config.json").read_text())
    text["rope_parameters"] |= SECTIONS | {"mrope_interleaved": True}
    vision = VISION | {"out_hidden_size": 32}
    config = AutoConfig.for_model("qwen3_5", text_config=text, vision_config=vision)
    torch.manual_seed(1)
    whole = directory / "whole"
    AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(whole)
    weights = load_file(whole / SINGLE)
    more = {"mtp.fc.weight": torch.randn(3, 5).to(torch.bfloat16)}
    save_file(weights | more, whole / SINGLE, metadata={"format": "pt"})
    make_tokenizer().save_pretrained(whole)
    return whole


def generated(scheduler: Scheduler, version: int) -> list[Sample]:
    """Of four requests, two with one prompt; the middle of each is generated after a pause."""
    prompts = [[*range(10, 30)], [*range(10, 30)], [*range(60, 75)], [*range(90, 130)]]
    sequences = []
    for seed, ids in enumerate(prompts):
        options = SamplingOptions(max_new_tokens=12, ignore_eos=True, sampling_seed=seed)
        sequences.append(Sequence(f"{version}-{seed}", list(ids), options, frozenset(), len(ids)))
        scheduler.submit(sequences[-1])
    for _ in range(4):
        scheduler.step()
    scheduler.pause(PauseMode.RETRACT)
    scheduler.resume()
    while scheduler.busy:
        scheduler.step()
    samples = []
    for n, sequence in enumerate(sequences):
        mask = np.arange(len(sequence.ids)) >= sequence.prompt_tokens
        logprobs = np.zeros(len(mask), np.float32)
        logprobs[mask] = sequence.logprobs
        samples.append(
            Sample(
                rollout=f"{version}-{n}",
                token_ids=np.array(sequence.ids, np.int32),
                action_mask=mask,
                logprobs=logprobs,
                versions=np.where(mask, version, NOT_SAMPLED).astype(np.int32),
                branch=0,
                advantages=np.where(mask, np.float32((-1) ** n), np.float32(0)),
            )
        )
    return samples


@pytest.mark.parametrize("make", [text_model, whole_model])
def test_each_version_is_served_with_the_trainers_log_probs(
    make: Callable[[Path], Path], make_config: Callable[..., CampaignConfig], tmp_path: Path
) -> None:
    source = make(tmp_path / "model")
    served = ServedModel(source, 100)
    assert served.kept == "slots" and served.weights_digest == weights_digest(source)
    scheduler = Scheduler(served, weight_version="0", max_batch=3)
    rank = TrainerRank(make_config(engine="fsdp"), source)
    digests = [served.weights_digest]
    for version in range(3):
        samples = generated(scheduler, version)
        found = rank.logprobs(samples)
        for n, sample in enumerate(samples):
            mask = sample.action_mask
            assert np.abs(found[n][mask] - sample.logprobs[mask]).max() < MAX_GAP
        rank.train_step(samples, step=version, current_version=version)
        rank.export_hf(tmp_path / f"{version}")
        if version == 0:
            scheduler.update_weights(tmp_path / "0", "1", flush_cache=True, abort_all=False)
        else:  # as a rank sends it over a process group
            sent: dict[str, torch.Tensor] = {}
            for _, weights in rank._weights.gathered():
                sent |= {name: weight.clone() for name, weight in weights.items()}
            scheduler.pause(PauseMode.RETRACT)
            assert scheduler.begin_update()
            scheduler.end_update(sent)
            scheduler.set_version(f"{version + 1}")
            scheduler.resume()
        assert served.weights_digest == weights_digest(tmp_path / f"{version}")
        digests.append(served.weights_digest)
    assert len(set(digests)) == 4
