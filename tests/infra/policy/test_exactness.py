"""What the trainer gets is what the engine consumed and produced, token for token.

Random histories of programs; log-probs of the scripted engine tell of each trained position which
sampled token it is, so the samples are compared with the engine's own record alone.
"""

import asyncio
import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.policy.model.request_text import RequestText
from mainspring.trajectories.samples import NOT_SAMPLED, Sample, samples_of
from tests.infra.policy.chat_templates import NAMES, request_text, tokenizer_of
from tests.infra.policy.program_histories import Figures, History, Step
from tests.infra.policy.scripted_engines import LOGPROB_STEP, ScriptedEngines

NUM_HISTORIES = 300
NUM_LONG = 10_000
CHUNK = 1000


@cache
def known(name: str) -> tuple[RequestText, object]:
    with TemporaryDirectory() as folder:
        return request_text(name, Path(folder)), tokenizer_of(name)


def played(name: str, seed: int, steps: list[Step]) -> History:
    text, tokenizer = known(name)
    history = History(text, tokenizer, random.Random(seed))  # type: ignore[arg-type]
    asyncio.run(history.play(steps))
    return history


def check(history: History) -> list[Sample]:
    """Every sampled token is trained once, where and after what it was sampled."""
    engines, calls = history.engines, [each.call for each in history.stored]
    samples = samples_of("r", calls, 1.0)
    record = Record(engines)
    trained: list[int] = []
    for sample in samples:
        last = engines.served[str(sample.branch)]
        assert sample.token_ids.tolist() == [*last.consumed, *last.produced]
        mask = sample.action_mask
        assert (sample.advantages != 0).tolist() == mask.tolist()
        assert set(sample.versions[~mask].tolist()) <= {NOT_SAMPLED}
        assert not sample.logprobs[~mask].any()
        sampled = np.rint(-sample.logprobs[mask] / LOGPROB_STEP).astype(int)
        assert sample.token_ids[mask].tolist() == record.tokens[sampled].tolist()
        assert sample.versions[mask].tolist() == record.versions[sampled].tolist()
        assert np.flatnonzero(mask).tolist() == record.places[sampled].tolist()
        for request in {record.requests[place] for place in sampled}:
            served = engines.served[request]
            before = [*served.consumed, *served.produced]
            assert sample.token_ids[: len(before)].tolist() == before
        trained += sampled.tolist()
    assert sorted(trained) == list(range(engines.num_sampled))
    return samples


class Record:
    """Of each token that was sampled, in the order of sampling: [num_sampled]."""

    def __init__(self, engines: ScriptedEngines) -> None:
        self.tokens = np.zeros(engines.num_sampled, int)
        self.versions = np.zeros(engines.num_sampled, int)
        self.places = np.zeros(engines.num_sampled, int)
        self.requests = [""] * engines.num_sampled
        for request, served in engines.served.items():
            count, start = len(served.produced), len(served.consumed)
            these = slice(served.first, served.first + count)
            self.tokens[these] = served.produced
            self.versions[these] = served.versions
            self.places[these] = range(start, start + count)
            self.requests[these] = [request] * count


histories = given(
    name=st.sampled_from(NAMES),
    seed=st.integers(0, 2**32),
    steps=st.lists(st.sampled_from(Step), min_size=1, max_size=8),
)
at_will = (HealthCheck.too_slow, HealthCheck.data_too_large)


def run(num_histories: int) -> Figures:
    figures = Figures()

    @settings(max_examples=num_histories, deadline=None, suppress_health_check=at_will)
    @histories
    def play(name: str, seed: int, steps: list[Step]) -> None:
        history = played(name, seed, steps)
        check(history)
        figures.add(history)

    play()
    print(figures)
    return figures


def test_samples_are_what_the_engine_consumed_and_produced() -> None:
    figures = run(NUM_HISTORIES).counts
    for what in ("calls that extend another", "calls under several versions", "cut replies"):
        assert figures[what] > NUM_HISTORIES / 10, what
    # Why tokens are appended: rendered anew, most prompts are not what the policy was asked.
    broken = figures["of these broken when rendered anew"]
    assert broken > figures["histories with an extension"] / 2


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(NUM_LONG // CHUNK))
def test_samples_of_many_histories(chunk: int) -> None:
    assert run(CHUNK).counts["histories"] >= CHUNK


@pytest.mark.parametrize("name", NAMES)
def test_each_step_with_each_template(name: str) -> None:
    """So that none is left to chance."""
    for seed in range(2):
        steps = [*Step]
        random.Random(seed).shuffle(steps)
        assert check(played(name, seed, steps))
