"""The scheduler stepped by hand: random operations, sampling as asked, failures."""

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.served_model import ServedModel
from engine.sampling import sample
from engine.scheduler import PauseMode, Scheduler
from engine.sequences import SamplingOptions, Sequence
from mainspring.errors import ModelError, UsageError
from tests.engine.architectures import FIELDS, save
from tests.infra.policy.engines import Reference
from tests.infra.policy.tiny_model import save_tiny_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), max_length=128)


@pytest.fixture(scope="module")
def model(directory: Path) -> ServedModel:
    return ServedModel(directory)


@pytest.fixture(scope="module")
def reference(directory: Path) -> Reference:
    return Reference(directory)


def sequence(ids: list[int], **options) -> Sequence:
    return Sequence(
        rid=str(ids[0]),
        ids=list(ids),
        options=SamplingOptions.model_validate(options),
        stop_ids=frozenset(),
        prompt_tokens=len(ids),
    )


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), max_batch=st.integers(1, 5))
def test_whatever_happens_every_token_is_the_models(
    model: ServedModel, reference: Reference, seed: int, max_batch: int
) -> None:
    """Requests that share prefixes, continue each other and are paused and aborted at random."""
    source = random.Random(seed)
    scheduler = Scheduler(model, weight_version="3", max_batch=max_batch)
    beginnings = [[source.randrange(3, 300) for _ in range(40)] for _ in range(2)]
    sequences: list[Sequence] = []
    for _ in range(80):
        action = source.random()
        if action < 0.3:
            finished = [s.ids for s in sequences if s.finish_reason and len(s.ids) < 90]
            start = source.choice(beginnings + finished)
            ids = [*start[: source.randint(1, len(start))], source.randrange(3, 300)]
            if source.random() < 0.5 and finished:
                ids = [*source.choice(finished), 7]
            sequences.append(sequence(ids, max_new_tokens=source.randint(1, 12)))
            scheduler.submit(sequences[-1])
        elif action < 0.34:
            scheduler.pause(source.choice([PauseMode.RETRACT, PauseMode.IN_PLACE]))
            scheduler.resume()
        elif action < 0.36 and sequences:
            victim = source.choice(sequences)
            scheduler.abort(lambda s, victim=victim: s is victim)
        elif scheduler.busy:
            scheduler.step()
    while scheduler.busy:
        scheduler.step()
    for served in sequences:
        assert served.done.result(timeout=0) is served
        prompt = served.ids[: served.prompt_tokens]
        expected = reference.logprobs(prompt, served.output_ids)
        assert served.logprobs == pytest.approx(expected, abs=1e-4)


def test_group_of_one_prompt_computes_it_once(model: ServedModel) -> None:
    scheduler = Scheduler(model, weight_version="0", max_batch=8)
    group = [sequence(list(range(3, 63)), max_new_tokens=5) for _ in range(8)]
    for member in group:
        scheduler.submit(member)
    while scheduler.busy:
        scheduler.step()
    assert sorted(member.cached_tokens for member in group) == [0] + [59] * 7


def draws(logits: list[float], count: int = 20_000, **options) -> list[float]:
    rows = [sequence([5], **options)] * count
    tokens, _ = sample(torch.tensor([logits]).repeat(count, 1), rows)
    return [tokens.count(token) / count for token in range(len(logits))]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.5, 0.3, 0.15, 0.05]),
        ({"temperature": 0.5}, [0.6849, 0.2466, 0.0616, 0.0068]),
        ({"top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"top_k": -1}, [0.5, 0.3, 0.15, 0.05]),
        ({"top_p": 0.6}, [0.625, 0.375, 0, 0]),
        ({"top_p": 0.45}, [1, 0, 0, 0]),
        ({"min_p": 0.25}, [0.5263, 0.3158, 0.1579, 0]),
        ({"temperature": 0}, [1, 0, 0, 0]),
        ({"top_k": 1}, [1, 0, 0, 0]),
    ],
)
def test_tokens_are_drawn_from_the_distribution_asked_for(
    options: dict, expected: list[float]
) -> None:
    torch.manual_seed(0)
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05])).tolist()
    # Four standard errors of a frequency over 20 000 draws.
    assert draws(logits, **options) == pytest.approx(expected, abs=0.0142)
    for frequency, share in zip(draws(logits, **options), expected, strict=True):
        assert (frequency == 0) == (share == 0)


def test_logprobs_ignore_the_cut_and_follow_the_temperature() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    for options, temperature in (({"top_k": 1}, 1.0), ({"temperature": 0.5, "top_p": 0.1}, 0.5)):
        tokens, logprobs = sample(logits.clone(), [sequence([5], **options)])
        expected = torch.log_softmax(logits[0] / temperature, -1)[tokens[0]].item()
        assert logprobs == pytest.approx([expected])


def test_a_failed_engine_tells_everyone(model: ServedModel) -> None:
    scheduler = Scheduler(model, weight_version="0", max_batch=1)
    waiting = [sequence([5], max_new_tokens=2), sequence([6], max_new_tokens=2)]
    for member in waiting:
        scheduler.submit(member)
    scheduler.step()
    update = scheduler.update_weights(Path("/nowhere"), "1", flush_cache=True, abort_all=False)
    scheduler.fail(RuntimeError("out of memory"))
    for future in (*(member.done for member in waiting), update):
        with pytest.raises(RuntimeError, match="out of memory"):
            future.result(timeout=0)
    assert not scheduler.busy


def test_a_cache_that_does_not_fit_says_how_to_make_it(model: ServedModel) -> None:
    with pytest.raises(ModelError, match=r"--max-batch \d+ fits with \d+ tokens$"):
        Scheduler(model, weight_version="0", max_batch=10**9)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_text", "gpt_oss", "bloom"])
def test_every_tensor_is_made_on_the_models_device(family: str, tmp_path: Path) -> None:
    """What is made without a device lands on "meta" here, and would on a CPU beside a GPU."""
    model = ServedModel(save(tmp_path / "model", family, FIELDS[family]), 120)

    def played() -> list[list[int]]:
        scheduler = Scheduler(model, weight_version="0", max_batch=3)
        cut = {"temperature": 0.7, "top_p": 0.9, "top_k": 50, "min_p": 0.01}
        punished = {"frequency_penalty": 0.5, "min_new_tokens": 3, "repetition_penalty": 1.1}
        sequences = []
        for n, wanted in enumerate(({}, {"temperature": 0}, cut, punished, {})):
            options = SamplingOptions(max_new_tokens=8, sampling_seed=n, ignore_eos=True, **wanted)
            ids = [*range(7, 87), *range(40, 43 + n)]
            sequences.append(Sequence(str(n), ids, options, frozenset(), len(ids)))
            scheduler.submit(sequences[-1])
        for _ in range(3):
            scheduler.step()
        scheduler.pause(PauseMode.RETRACT)
        scheduler.resume()
        while scheduler.busy:
            scheduler.step()
        return [sequence.ids for sequence in sequences]

    expected = played()
    with torch.device("meta"):
        assert played() == expected


def test_a_device_that_is_missing_is_named(tmp_path: Path) -> None:
    directory = save(tmp_path / "model", "qwen3", FIELDS["qwen3"])
    if not torch.cuda.is_available():
        assert ServedModel(directory, 64, device="auto").device.type == "cpu"
        with pytest.raises(UsageError, match="device cuda: torch sees no GPU") as refused:
            ServedModel(directory, 64, device="cuda")
        assert "--device cpu" in refused.value.remedy
