"""A reproducible engine: the bits of a reply depend on its own request alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear

from engine import sampling
from engine.model import padding, self_test
from engine.model.served_model import ServedModel
from engine.sequences import SamplingOptions, Sequence
from mainspring.artifacts.batch_invariance import MKL_VARIABLE, environment
from mainspring.errors import EngineError
from tests.engine.company import Noting, alone, checked_model, digest, play
from tests.infra.policy.engines import serving
from tests.infra.policy.tiny_model import save_tiny_model

ONE_QUERY = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 128}
SHAPES = {
    "as bundled": {"hidden_size": 128, "head_dim": 32, "intermediate_size": 384},
    "one query a head": ONE_QUERY | {"hidden_size": 64, "num_hidden_layers": 1},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), max_length=1000)


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Noting:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("shape")
    return checked_model(save_tiny_model(folder, max_length=1000, **SHAPES[request.param]))


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), max_batch=st.sampled_from([1, 4, 16]))
def test_the_logits_after_some_tokens_are_the_same_in_all_company(
    model: Noting, seed: int, max_batch: int
) -> None:
    """Joined, decoded, cached, retracted, computed again, alone: one row of bits."""
    for ids in play(model, seed, max_batch):
        alone(model, ids)
    assert len(model.rows) > 30
    assert {len(rows) for rows in model.rows.values()} == {1}


def test_the_same_bits_with_other_threads_and_kernels(directory: Path) -> None:
    """MKL reads its variable once, hence the process of its own. Its kernels may have other bits
    than those that it chooses itself; no row has two."""
    branch = environment({})[MKL_VARIABLE]
    command = [sys.executable, "-m", "tests.engine.company", str(directory), "7", "2"]
    env = os.environ | {MKL_VARIABLE: branch, "OMP_NUM_THREADS": "2"}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    here = [digest(directory, 7, threads) for threads in (1, 2)]
    assert here[0] == here[1]
    said, _ = process.communicate()
    assert process.returncode == 0
    found = json.loads(said.splitlines()[-1])
    assert (found["rows"], found["several"]) == (here[0]["rows"], 0)


def test_the_self_test_finds_a_product_that_depends_on_its_rows(directory: Path) -> None:
    model = ServedModel(directory, is_reproducible=True)
    # In this process MKL chooses as it likes: torch's own product is what the engine must not use.
    if MKL_VARIABLE not in os.environ:
        found = list(self_test.products_that_differ(model.linear_weights(), linear))
        assert found and " of 1 rows and of 100" in found[0]
    safe = self_test.engine_product(padding.WHOLE)
    assert not list(self_test.products_that_differ(model.linear_weights(), safe))
    ((num_queries, heads),) = model.attention()
    unpadded = list(self_test.lengths_that_differ(heads, num_queries, padding.Padding()))
    assert any("over 300 keys" in each for each in unpadded)
    assert not list(self_test.lengths_that_differ(heads, num_queries, padding.WHOLE))


def test_an_engine_whose_bits_depend_on_company_does_not_start(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "engine_product", lambda padding: linear)
    if MKL_VARIABLE in os.environ:
        pytest.skip("MKL was asked for one kernel")
    with pytest.raises(EngineError, match="depend on what is computed beside them") as caught:
        self_test.check(ServedModel(directory, is_reproducible=True))
    assert 'schedule = "fastest"' in caught.value.remedy


def test_a_reproducible_engine_shows_it_and_refuses_chance(directory: Path) -> None:
    engine = serving(directory, reproducible=True, max_batch=2)
    with engine as url, httpx.Client(base_url=url) as http:
        info = http.get("/model_info").json()
        assert info["reproducible"] is True
        assert info["stamp"]["torch"] == torch.__version__
        body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4}}
        refused = http.post("/generate", json=body)
        assert refused.status_code == 400
        assert "sampling_seed" in refused.json()["error"]["message"]
        for options in ({"sampling_seed": 3}, {"temperature": 0}):
            body["sampling_params"] = {"max_new_tokens": 4} | options
            answers = [http.post("/generate", json=body).json() for _ in range(2)]
            assert answers[0]["output_ids"] == answers[1]["output_ids"]
        assert http.get("/health_generate").status_code == 200
        paused = http.post("/pause_generation", json={"mode": "in_place"})
        assert paused.status_code == 400
        assert "mode retract" in paused.json()["error"]["message"]
        assert http.post("/pause_generation", json={"mode": "retract"}).status_code == 200
    with serving(directory, max_batch=2) as url:
        assert httpx.get(url + "/model_info").json()["reproducible"] is False


def test_a_row_that_cuts_nothing_does_not_depend_on_one_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of the least likely tokens, before which a float32 sum of the others is 1 already."""
    drawn: list[torch.Tensor] = []
    draw = sampling._draw

    def noting(probs: torch.Tensor, rows: list[Sequence]) -> torch.Tensor:
        drawn.append(probs.clone())
        return draw(probs, rows)

    monkeypatch.setattr(sampling, "_draw", noting)
    logits = torch.randn(1, 5000, generator=torch.Generator().manual_seed(0)) * 4
    plain, cutting, top_k = (
        Sequence("r", [5], SamplingOptions(sampling_seed=1, **options), frozenset(), 1)
        for options in ({}, {"top_p": 0.5}, {"top_k": 4999})
    )
    by_itself = sampling.sample(logits.clone(), [plain])
    beside = sampling.sample(logits.repeat(3, 1), [plain, cutting, top_k])
    assert (by_itself[0][0], by_itself[1][0]) == (beside[0][0], beside[1][0])
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert drawn[1][0].all()
    assert 0 < int((drawn[1][1] > 0).sum()) < 5000
    assert int((drawn[1][2] > 0).sum()) == 4999
