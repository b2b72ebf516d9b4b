"""A reproducible campaign's trainer: the engine's log-probs, and a step's bits in any process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from mainspring.artifacts.batch_invariance import environment
from mainspring.config.campaign import CampaignConfig
from mainspring.trajectories.samples import NOT_SAMPLED, Sample
from tests.infra.policy.engines import serving
from tests.infra.policy.tiny_model import save_tiny_model
from trainer.model.token_logprobs import OutputLayer, token_logprobs
from trainer.process.rank import TrainerRank

MakeConfig = Callable[..., CampaignConfig]
SCHEDULE = {"schedule": "reproducible"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), max_length=1000)


def reproducible(
    make_config: MakeConfig, temperature: float = 1.0, engine: str = "plain"
) -> CampaignConfig:
    usual = make_config(micro_batch_tokens=2048, engine=engine).model_dump(exclude_unset=True)
    usual |= SCHEDULE | {"policy": {"temperature": temperature}}
    return CampaignConfig.model_validate(usual)


def served(url: str, ids: list[int], seed: int, temperature: float) -> Sample:
    options = {"max_new_tokens": 24, "temperature": temperature, "sampling_seed": seed}
    body = {"input_ids": ids, "sampling_params": options | {"ignore_eos": True}}
    answer = httpx.post(url + "/generate", json=body | {"return_logprob": True}, timeout=60)
    entries = answer.json()["meta_info"]["output_token_logprobs"]
    tokens = np.array(ids + [entry[1] for entry in entries], np.int32)
    mask = np.arange(len(tokens)) >= len(ids)
    logprobs = np.zeros(len(tokens), np.float32)
    logprobs[mask] = [entry[0] for entry in entries]
    versions = np.where(mask, 0, NOT_SAMPLED).astype(np.int32)
    # Every other one takes the way of those that are trained.
    advantages = np.where(mask, np.float32(seed % 2), np.float32(0))
    return Sample(f"r{seed}", 0, tokens, mask, logprobs, versions, advantages)


@pytest.mark.parametrize("engine", ["plain", "fsdp"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recomputed_logprobs_have_the_bits_of_served_ones(
    directory: Path, make_config: MakeConfig, temperature: float, engine: str
) -> None:
    rng = np.random.default_rng(3)
    # Attention takes 32 or 256 tokens at a time: of the second prompt one token is left over.
    prompts = [rng.integers(3, 300, n).tolist() for n in (3, 746, 42, 500, 511, 512, 90)]
    with serving(directory, reproducible=True, max_batch=4) as url:
        samples = [served(url, ids, n, temperature) for n, ids in enumerate(prompts)]
    rank = TrainerRank(reproducible(make_config, temperature, engine), directory)
    [one] = rank.logprobs(samples[1:2]).values()
    assert np.array_equal(one, samples[1].logprobs)
    metrics = rank.train_step(samples, step=0, current_version=0)
    assert (metrics.logprob_gap_max, metrics.num_gap_tokens) == (0.0, 24 * len(prompts))


def test_the_engines_log_softmax_has_the_usual_gradient() -> None:
    source = torch.Generator().manual_seed(0)
    hidden = torch.randn(50, 8, generator=source)
    weight = torch.randn(300, 8, generator=source)
    targets = torch.randint(290, (50,), generator=source)
    weights = torch.randn(2, 50, generator=source)
    found = []
    for as_served in (False, True):
        output = OutputLayer(vocab_size=290, temperature=1.0, tp_group=None, as_served=as_served)
        given = hidden.clone().requires_grad_()
        values = token_logprobs(given, weight, targets, output)
        torch.dot(values[0], weights[0]).add(torch.dot(values[1], weights[1])).backward()
        found.append((*values, given.grad))
    for usual, own in zip(*found, strict=True):
        assert torch.allclose(usual, own, atol=2e-5)
    expected = torch.log_softmax((hidden @ weight.t())[:, :290], 1).gather(1, targets[:, None])
    assert torch.allclose(found[1][0], expected[:, 0], atol=1e-6)


def started(directory: Path, checkpoint: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.trainer.repeated_steps", directory, checkpoint]
    env = os.environ | environment() | {"TORCHDYNAMO_DISABLE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.Popen(
        command, env=env | {"OMP_NUM_THREADS": "2"}, stdout=subprocess.PIPE, text=True
    )


def told(process: "subprocess.Popen[str]") -> list[dict[str, str]]:
    said, _ = process.communicate()
    assert process.returncode == 0
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


@pytest.mark.long
def test_steps_have_the_same_bits_in_any_process_and_after_a_kill(
    directory: Path, tmp_path: Path
) -> None:
    """Warm start and steps, two threads each."""
    whole = started(directory, tmp_path / "whole")
    killed = started(directory, tmp_path / "killed")
    assert killed.stdout is not None
    before: list[dict[str, str]] = []
    for line in killed.stdout:
        if line.startswith("{"):
            before.append(json.loads(line))
        if before and before[-1]["after"] == "checkpoint":
            break
    time.sleep(0.05)  # into the second step
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    after = told(started(directory, tmp_path / "killed"))
    [*first, last] = told(whole)
    assert first == before
    assert [last] == after
    assert len({each["weights"] for each in (*first, last)}) == 3
    assert last["gradient"] and last["gradient"] != first[1]["gradient"]
