"""Any causal language model of transformers is served with its own log-probs, or refused.

Tiny random models, each saved as save_pretrained does. What the engine serves is compared with the
model's own forward over whole sequences: beside another request, cut into passes, continued from
what was kept, and after two updates of the weights, by the names of files.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.model import attention, forward_check
from engine.model.served_model import ServedModel
from engine.scheduler import PauseMode, Scheduler
from engine.sequences import SamplingOptions, Sequence
from infra.policy.model.weight_files import weights_digest
from mainspring.errors import ModelError
from mainspring.model_folder.weights import SINGLE
from tests.engine.architectures import BASE, EXPERTS, FIELDS, STATES, VOCAB, WAYS, save

TOLERANCE = 1e-5


def request(name: str, ids: list[int], num_tokens: int = 6) -> Sequence:
    options = SamplingOptions(max_new_tokens=num_tokens, ignore_eos=True)
    return Sequence(name, list(ids), options, frozenset(), len(ids))


def finish(scheduler: Scheduler, *sequences: Sequence) -> None:
    for sequence in sequences:
        scheduler.submit(sequence)
    while scheduler.busy:
        scheduler.step()


def difference(sequences: Iterable[Sequence], directory: Path) -> float:
    """Largest one of a sampled token's log-prob from that of the whole sequence."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    largest = 0.0
    for sequence in sequences:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([sequence.ids]), use_cache=False).logits[0]
        whole = torch.log_softmax(logits.float(), -1)
        for place, (token, logprob) in enumerate(
            zip(sequence.output_ids, sequence.logprobs, strict=True), sequence.prompt_tokens
        ):
            largest = max(largest, abs(float(whole[place - 1, token]) - logprob))
    return largest


def largest_difference(served: ServedModel, directory: Path) -> float:
    """Of two requests that run beside each other."""
    sequences = [request("a", [*range(5, 25)]), request("b", [*range(40, 49)])]
    finish(Scheduler(served, weight_version="0", max_batch=2), *sequences)
    return difference(sequences, directory)


@pytest.mark.parametrize(("way", "family"), [(w, f) for w, each in WAYS.items() for f in each])
def test_what_is_served_has_the_models_own_log_probs(way: str, family: str, tmp_path: Path) -> None:
    """Also after two updates: of a folder, and of tensors that a trainer sends."""
    first = save(tmp_path / "first", family, FIELDS[family])
    second = save(tmp_path / "second", family, FIELDS[family], seed=1)
    served = ServedModel(first, 64)
    assert served.kept == way
    assert largest_difference(served, first) < TOLERANCE
    assert served.weights_digest == weights_digest(first)
    served.load_weights(second)
    assert served.weights_digest == weights_digest(second) != weights_digest(first)
    assert largest_difference(served, second) < TOLERANCE
    served.take_weights(load_file(first / SINGLE))
    assert served.weights_digest == weights_digest(first)
    assert largest_difference(served, first) < TOLERANCE


@pytest.mark.parametrize("family", [*STATES, "gemma3_text", "falcon", "mamba2", "xlstm"])
def test_requests_continue_from_what_was_kept(family: str, tmp_path: Path) -> None:
    """The next turn of a rollout, others with the same prompt, one that was retracted, one that was
    paused in its place, one beside an aborted one."""
    directory = save(tmp_path / "model", family, FIELDS[family])
    served = ServedModel(directory, 100)
    scheduler = Scheduler(served, weight_version="0", max_batch=3)
    prompt = [*range(10, 30)]
    group = [request(str(n), prompt) for n in range(3)]
    finish(scheduler, *group)
    turn = request("turn", [*group[1].ids, 7, 8, 9])
    finish(scheduler, turn)
    again = request("again", prompt)
    finish(scheduler, again)
    is_cut = family in ("gemma3_text", "falcon") or family in STATES
    assert [s.cached_tokens for s in group[1:]] == ([19, 19] if is_cut else [0, 0])
    assert turn.cached_tokens == (0 if family == "xlstm" else len(group[1].ids) - 1)
    assert again.cached_tokens == (19 if is_cut else 0)
    paused, aborted = request("paused", [*range(50, 70)], 12), request("gone", [*range(70, 90)], 12)
    for sequence in (paused, aborted):
        scheduler.submit(sequence)
    for action in (
        lambda: scheduler.pause(PauseMode.RETRACT),
        lambda: scheduler.pause(PauseMode.IN_PLACE),
        lambda: scheduler.abort(lambda sequence: sequence is aborted),
    ):
        scheduler.step()
        scheduler.step()
        action()
        scheduler.resume()
    finish(scheduler)
    assert aborted.finish_reason and aborted.finish_reason["type"] == "abort"
    assert len(paused.logprobs) == 12 and paused.num_retractions == 1
    assert difference([*group, turn, again, paused, aborted], directory) < TOLERANCE


@pytest.mark.parametrize("family", ["qwen3_5_text", "gemma3_text", "falcon"])
def test_bits_that_no_trainer_has_are_not_promised(family: str, tmp_path: Path) -> None:
    directory = save(tmp_path / "model", family, FIELDS[family])
    with pytest.raises(ModelError, match="cannot be served reproducibly") as refused:
        ServedModel(directory, 64, is_reproducible=True)
    assert "--reproducible" in refused.value.remedy


def test_frequencies_that_change_with_length_are_refused(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    directory = save(tmp_path / "model", "llama", BASE | {"rope_parameters": rope})
    with pytest.raises(ModelError, match="rope_type 'dynamic'") as refused:
        ServedModel(directory, 64)
    assert str(directory) in refused.value.message and refused.value.remedy


def test_weights_of_experts_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    model = save(tmp_path / "model", "qwen3_moe", EXPERTS["qwen3_moe"])
    served = ServedModel(model, 64)
    before = served.weights_digest
    whole = load_file(model / SINGLE)
    down = "model.layers.1.mlp.experts.2.down_proj.weight"
    for change, words in (
        ({name: weight for name, weight in whole.items() if name != down}, "experts"),
        (whole | {down: whole[down][:-1].contiguous()}, "experts"),
        (whole | {"model.extra": torch.ones(2)}, "model.extra"),
        ({name: weight for name, weight in whole.items() if "norm" not in name}, "norm"),
    ):
        with pytest.raises(ModelError) as refused:
            served.take_weights(change)
        assert words in str(refused.value), refused.value
    assert served.weights_digest == before
    assert largest_difference(served, model) < TOLERANCE
    save_file({"model.norm.weight": torch.ones(32)}, model / SINGLE)
    with pytest.raises(ModelError, match="is missing"):
        served.load_weights(model)
    assert served.weights_digest == before


def test_a_layer_that_leaves_attention_out_is_seen(tmp_path: Path) -> None:
    """The control: what no config tells, the comparison does."""
    served = ServedModel(save(tmp_path / "model", "qwen3", BASE), 64)

    def problem() -> str | None:
        return forward_check.problem(served._way, served._model, VOCAB, served.padding)

    assert problem() is None
    mlp = served._model.model.layers[1].mlp
    seen: list[int] = []

    def leak(module: object, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        seen.append(output.shape[1])  # a running mean over the row, as a state has
        return output + output.cumsum(1) * 1e-3

    hook = mlp.register_forward_hook(leak)
    words = problem()
    assert seen and words is not None and "its log-probs differ by " in words
    hook.remove()
    assert problem() is None
    with torch.no_grad():
        served._model.lm_head.weight[0] = float("nan")
    served._pack()
    assert problem() == "its log-probs are no numbers"


def test_a_folder_of_several_parts_is_refused_in_one_sentence(tmp_path: Path) -> None:
    directory = save(tmp_path / "model", "qwen3", BASE)
    inner = json.loads((directory / "config.json").read_text())
    composite = {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"]}
    (directory / "config.json").write_text(json.dumps(composite | {"text_config": inner}))
    with pytest.raises(ModelError) as refused:
        ServedModel(directory, 64)
    assert "\n" not in refused.value.message and len(refused.value.message) < 400


def test_more_context_than_the_model_has_is_refused(tmp_path: Path) -> None:
    directory = save(tmp_path / "model", "qwen3", BASE)
    assert ServedModel(directory).context_length == 256
    with pytest.raises(ModelError, match=r"context length 257 .* made for 256 tokens"):
        ServedModel(directory, 257)


@pytest.mark.parametrize("family", ["qwen3", "deepseek_v3", "qwen3_5_text", "gemma2", "gpt_oss"])
def test_requests_that_begin_alike_are_computed_together(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their beginning is read once where attention is plain; also after a pause in its place, when
    what slots hold is of older weights."""
    directory = save(tmp_path / "model", family, FIELDS[family])
    served = ServedModel(directory, 200)
    shared: list[int] = []
    real = attention.cascade

    def noting(*arguments: Any) -> torch.Tensor:
        shared.append(arguments[3])
        return real(*arguments)

    monkeypatch.setattr(attention, "cascade", noting)
    scheduler = Scheduler(served, weight_version="0", max_batch=5)
    prompt = [7 + n % 300 for n in range(90)]
    group = [request(str(n), [*prompt, *range(20 + n, 25 + 2 * n)], 12) for n in range(5)]
    finish(scheduler, *group)
    assert set(shared) == ({90} if family in ("qwen3", "qwen3_5_text") else set())
    assert difference(group, directory) < TOLERANCE
    shared.clear()
    more = [request(str(n), [*prompt, *range(20 + n, 25 + 2 * n)], 12) for n in range(5)]
    for sequence in more:
        scheduler.submit(sequence)
    while scheduler.num_queued:
        scheduler.step()
    shared.clear()
    scheduler.pause(PauseMode.IN_PLACE)
    scheduler.update_weights(directory, "1", flush_cache=False, abort_all=False)
    scheduler.resume()
    finish(scheduler)
    assert not shared and difference(more, directory) < TOLERANCE
