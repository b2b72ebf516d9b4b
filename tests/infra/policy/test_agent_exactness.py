"""What the trainer gets of Mainspring's agents is what the engine consumed and produced.

Random rollouts of each agent with each context, killed and played on, under weights that change: as
`test_exactness` does it for programs.
"""

import asyncio
import random
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.policy.model.request_text import RequestText
from infra.policy.model.tokenizer import ChatTokenizer
from mainspring.trajectories.samples import samples_of
from tests.infra.policy.agent_histories import AgentHistory, kinds
from tests.infra.policy.chat_templates import NAMES, tokenizer_of
from tests.infra.policy.test_exactness import check
from tests.trainer.test_samples_of_calls import sampled_after

TEMPLATES = tuple(name for name in NAMES if name != "plain_like")
"""Those with a system's message, which agents have."""
NUM_HISTORIES = 120
NUM_LONG = 10_000
CHUNK = 500
at_will = (HealthCheck.too_slow, HealthCheck.data_too_large)


@cache
def known(name: str) -> tuple[RequestText, object]:
    tokenizer = tokenizer_of(name)
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return RequestText(ChatTokenizer(Path(folder)), plain=True), tokenizer


def played(name: str, kind: tuple[str, str], seed: int, num_turns: int) -> AgentHistory:
    text, tokenizer = known(name)
    history = AgentHistory(text, tokenizer, random.Random(seed), *kind)  # type: ignore[arg-type]
    asyncio.run(history.play(num_turns))
    return history


def check_history(history: AgentHistory) -> None:
    samples = check(history)  # type: ignore[arg-type]
    of_calls = samples_of("r", history.calls, 1.0, per_call=True)
    assert sampled_after(of_calls) == sampled_after(samples)
    for call in history.calls:
        assert call.end <= history.max_context


def run(num_histories: int) -> Counter[str]:
    counts: Counter[str] = Counter()

    @settings(max_examples=num_histories, deadline=None, suppress_health_check=at_will)
    @given(
        name=st.sampled_from(TEMPLATES),
        kind=st.sampled_from(kinds()),
        seed=st.integers(0, 2**32),
        num_turns=st.integers(1, 14),
    )
    def play(name: str, kind: tuple[str, str], seed: int, num_turns: int) -> None:
        history = played(name, kind, seed, num_turns)
        check_history(history)
        counts["histories"] += 1
        counts["calls"] += len(history.calls)
        counts["tokens"] += history.engines.num_sampled
        counts.update(history.counts)

    play()
    print(", ".join(f"{what}: {number}" for what, number in counts.items()))
    return counts


def test_samples_are_what_the_engine_consumed_and_produced() -> None:
    counts = run(NUM_HISTORIES)
    for what in ("rewrites", "killed attempts", "commands", "format errors"):
        assert counts[what] > NUM_HISTORIES / 10, (what, counts)


@pytest.mark.parametrize("kind", kinds(), ids="-".join)
@pytest.mark.parametrize("name", TEMPLATES)
def test_each_agent_with_each_context_and_template(name: str, kind: tuple[str, str]) -> None:
    """So that none is left to chance."""
    for seed in range(2):
        check_history(played(name, kind, seed, 14))


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(NUM_LONG // CHUNK))
def test_samples_of_many_histories(chunk: int) -> None:
    assert run(CHUNK)["histories"] >= CHUNK
