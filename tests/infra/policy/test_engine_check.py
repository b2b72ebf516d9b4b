"""What a running engine serves, asked of real ones and of servers that are none."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.policy.engines.engine_check import check_engine
from infra.policy.model.model_files import read_facts
from mainspring.errors import EngineError
from mainspring.model_folder.config_file import SIZES
from tests.infra.policy.engines import serving
from tests.infra.policy.tiny_model import save_tiny_model
from tests.web_server import Answer
from tests.web_server import serving as web_serving

NOWHERE = "http://127.0.0.1:9"
"""The discard port: nothing listens."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[str]:
    with serving(model, context_length=512, weight_version="3") as url:
        yield url


def other(model: Path, directory: Path, **fields: object) -> Path:
    directory.mkdir()
    config = json.loads((model / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | fields))
    return directory


@contextmanager
def answering(answers: dict[str, object]) -> Iterator[str]:
    """A server with these answers by path, 404 for others."""

    class Handler(Answer):
        def do_GET(self) -> None:
            said: Any = answers.get(self.path)
            if said is None:
                self.send_error(404)
            else:
                self.answer(said.encode() if isinstance(said, str) else json.dumps(said).encode())

    with web_serving(Handler) as address:
        yield f"http://{address}"


async def test_a_report_of_what_is_served(engine: str, model: Path) -> None:
    report = await check_engine(engine + "/", model_dir=model, max_context=512)
    assert (report.url, report.model_path) == (engine, str(model))
    assert (report.model_type, report.architectures) == ("qwen3", ("Qwen3ForCausalLM",))
    assert (report.vocab_size, report.context_length) == (320, 512)
    assert (report.weight_version, report.paused, report.mismatch) == ("3", False, None)
    assert not report.reproducible


async def test_a_paused_engine_is_said_to_be_paused(engine: str) -> None:
    async with httpx.AsyncClient(base_url=engine) as http:
        await http.post("/pause_generation", json={"mode": "retract"})
        assert (await check_engine(engine)).paused
        await http.post("/continue_generation", json={})
        assert not (await check_engine(engine)).paused


async def test_a_mismatch_is_one_sentence(engine: str, model: Path, tmp_path: Path) -> None:
    for directory, words in (
        (
            other(model, tmp_path / "llama", architectures=["LlamaForCausalLM"]),
            "serves Qwen3ForCausalLM,",
        ),
        (other(model, tmp_path / "vocabulary", vocab_size=300), "a vocabulary of 320 tokens,"),
        *(
            (other(model, tmp_path / name, **{name: 7}), f"another model: {name} is")
            for name in SIZES
            if name in read_facts(model).sizes
        ),
    ):
        mismatch = (await check_engine(engine, model_dir=directory)).mismatch
        assert mismatch is not None and words in mismatch
        assert engine in mismatch and str(directory) in mismatch and "\n" not in mismatch
    long = (await check_engine(engine, model_dir=model, max_context=513)).mismatch
    assert long is not None and "512 tokens, policy.max_context is 513" in long
    assert (await check_engine(engine, model_dir=model, dtype="float32")).mismatch is None
    coarse = (await check_engine(engine, model_dir=model, dtype="bfloat16")).mismatch
    assert coarse is not None and "computes in float32, and policy.dtype is bfloat16" in coarse


async def test_what_is_no_policy_engine_is_an_error(model: Path) -> None:
    with pytest.raises(EngineError, match=f"{NOWHERE} does not answer: ConnectError") as caught:
        await check_engine(NOWHERE)
    assert "policy.engines" in caught.value.remedy
    for answers in ({}, {"/model_info": "<html>a login page</html>"}, {"/model_info": {"ok": 1}}):
        with answering(answers) as url:
            with pytest.raises(EngineError, match=f"{url} is not a policy engine") as caught:
                await check_engine(url)
            assert "SGLang" in caught.value.remedy
    with serving(model, api_key="k") as url:
        assert (await check_engine(url, api_key="k")).mismatch is None
        with pytest.raises(EngineError, match="refuses the API key"):
            await check_engine(url, api_key="other")


async def test_sglangs_own_answers_are_read(model: Path, tmp_path: Path) -> None:
    """As SGLang 0.5.23 gives them: no vocabulary, the context in the list of models, and two tokens
    of it that no reply fills."""
    answers = {
        "/model_info": {
            "model_path": str(model),
            "weight_version": "default",
            "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
        },
        "/v1/models": {"data": [{"id": "m", "max_model_len": 512}]},
        "/ready": "",
    }
    with answering(answers) as url:
        report = await check_engine(url, model_dir=model, max_context=510)
        assert (report.vocab_size, report.context_length, report.mismatch) == (320, 510, None)
        long = await check_engine(url, model_dir=model, max_context=511)
        assert long.mismatch is not None
        fewer = await check_engine(url, model_dir=other(model, tmp_path / "m", num_hidden_layers=7))
        assert fewer.mismatch is not None and "num_hidden_layers is" in fewer.mismatch
    elsewhere = answers["/model_info"] | {"model_path": "/models/of/another/host"}
    with answering(answers | {"/model_info": elsewhere}) as url:
        assert (await check_engine(url, model_dir=model)).vocab_size is None


async def test_an_engine_that_takes_no_adapters_is_told_how_it_would(engine, model) -> None:
    assert (await check_engine(engine, adapter_rank=16)).mismatch is None
    info = {"model_path": "m", "weight_version": "0"}
    arguments = "--enable-lora --max-lora-rank 16 --lora-target-modules q_proj k_proj"
    for server, found in (
        ({}, "takes no adapters"),
        ({"enable_lora": None, "max_lora_rank": None}, "takes no adapters"),
        ({"enable_lora": True, "max_lora_rank": 8}, "takes adapters of rank 8 or less"),
    ):
        with answering({"/model_info": info, "/server_info": server}) as url:
            mismatch = (await check_engine(url, adapter_rank=16)).mismatch
            assert mismatch is not None and found in mismatch and arguments in mismatch
            assert (await check_engine(url)).mismatch is None
    taken = {"enable_lora": True, "max_lora_rank": 16}
    with answering({"/model_info": info, "/server_info": taken}) as url:
        assert (await check_engine(url, adapter_rank=16)).mismatch is None
