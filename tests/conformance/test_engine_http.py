"""The CPU engine's wire format and its refusals, as SGLang answers them."""

from pathlib import Path

import httpx
import pytest

from tests.infra.policy.engines import serving
from tests.infra.policy.tiny_model import make_tokenizer, save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def http(model: Path):
    with serving(model, context_length=256) as url, httpx.Client(base_url=url) as client:
        yield client


def post(http: httpx.Client, **body) -> httpx.Response:
    return http.post("/generate", json=body)


def test_answer_has_sglangs_shape(http: httpx.Client) -> None:
    answer = post(
        http,
        rid="abc",
        input_ids=[5, 6, 7],
        return_logprob=True,
        some_future_field=1,
        sampling_params={"max_new_tokens": 4, "ignore_eos": True},
    ).json()
    meta = answer["meta_info"]
    assert meta["id"] == "abc"
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (3, 4)
    assert meta["weight_version"] == "0"
    assert meta["weight_versions"] == [{"version": "0", "start": 0, "end": 4}]
    assert meta["e2e_latency"] > 0
    assert meta["input_token_logprobs"] == []
    for logprob, token, text in meta["output_token_logprobs"]:
        assert logprob <= 0 and token in answer["output_ids"] and text is None
    assert isinstance(answer["text"], str)


def test_stop_token_stays_in_ids_and_leaves_the_text(http: httpx.Client) -> None:
    free = post(
        http, input_ids=[9], sampling_params={"max_new_tokens": 8, "temperature": 0}
    ).json()["output_ids"]
    stop = free[3]
    expected = free[: free.index(stop) + 1]
    answer = post(
        http,
        input_ids=[9],
        sampling_params={"max_new_tokens": 8, "temperature": 0, "stop_token_ids": [stop]},
    ).json()
    assert answer["output_ids"] == expected
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert "output_token_logprobs" not in answer["meta_info"]
    assert answer["text"] == make_tokenizer().decode(expected[:-1], skip_special_tokens=True)


def test_stop_string_stays_in_ids_and_leaves_the_text(http: httpx.Client, model: Path) -> None:
    params = {"max_new_tokens": 40, "ignore_eos": True, "sampling_seed": 5}
    free = post(http, input_ids=[9], sampling_params=params).json()
    decode = make_tokenizer().decode
    # A text of two tokens, and the first place where it is there.
    stop = decode(free["output_ids"][10:12])
    length = next(n for n in range(41) if stop in decode(free["output_ids"][:n]))
    answer = post(
        http,
        input_ids=[9],
        return_logprob=True,
        sampling_params=params | {"stop": [stop, "never"]},
    ).json()
    meta = answer["meta_info"]
    assert answer["output_ids"] == free["output_ids"][:length]
    assert meta["finish_reason"] == {"type": "stop", "matched": stop}
    assert len(meta["output_token_logprobs"]) == length
    assert answer["text"] == free["text"].partition(stop)[0]


def test_min_new_tokens_holds_off_the_stop(http: httpx.Client) -> None:
    params = {"max_new_tokens": 40, "min_new_tokens": 20, "stop_token_ids": list(range(3, 300))}
    ids = post(http, input_ids=[9], sampling_params=params).json()["output_ids"]
    assert len(ids) >= 20
    assert not set(ids[:20]) & set(params["stop_token_ids"])


def test_text_is_tokenised(http: httpx.Client) -> None:
    answer = post(http, text="def add(a, b):", sampling_params={"max_new_tokens": 1}).json()
    expected = len(make_tokenizer().encode("def add(a, b):"))
    assert answer["meta_info"]["prompt_tokens"] == expected


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input_ids": [5], "sampling_params": {"max_tokens": 3}}, "unknown field `max_tokens`"),
        ({"input_ids": [5], "sampling_params": {"temperature": -1}}, "temperature"),
        ({"input_ids": "five"}, "input_ids"),
        ({"input_ids": [5], "sampling_params": {"max_new_tokens": "x"}}, "max_new_tokens"),
    ],
)
def test_schema_violation_is_a_string(http: httpx.Client, body: dict, words: str) -> None:
    response = post(http, **body)
    assert response.status_code == 400
    assert words in response.json()["error"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input_ids": [5] * 300}, "maximum context length of 256"),
        ({"input_ids": [5] * 200, "sampling_params": {"max_new_tokens": 57}}, "context length"),
        ({"input_ids": []}, "empty"),
        ({"input_ids": [5, 400]}, "[0, 320)"),
        ({"input_ids": [-1]}, "[0, 320)"),
        ({}, "input_ids or text"),
        ({"input_ids": [5], "text": "x"}, "input_ids or text"),
        ({"input_ids": [[5], [6]], "rid": ["one"]}, "1 rid for 2 prompts"),
        ({"input_ids": [5], "sampling_params": {"n": 2}}, "sampling_params.n is not implemented"),
        ({"input_ids": [5], "sampling_params": {"regex": "x"}}, "regex is not implemented"),
        ({"input_ids": [[5], [6]], "stream": True}, "not a batch"),
    ],
)
def test_refusal_is_an_object_with_a_message(http: httpx.Client, body: dict, words: str) -> None:
    response = post(http, **body)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


def test_exactly_the_context_length_fits(http: httpx.Client) -> None:
    params = {"max_new_tokens": 56, "ignore_eos": True}
    answer = post(http, input_ids=[5] * 200, sampling_params=params).json()
    assert answer["meta_info"]["completion_tokens"] == 56


def test_neutral_values_of_what_is_not_implemented_are_fine(http: httpx.Client) -> None:
    params = {"max_new_tokens": 1, "n": 1, "stop": [], "frequency_penalty": 0, "logit_bias": None}
    assert post(http, input_ids=[5], sampling_params=params).status_code == 200


def test_same_seed_same_tokens_whatever_else_runs(http: httpx.Client) -> None:
    params = {"max_new_tokens": 30, "ignore_eos": True}
    seeded = params | {"sampling_seed": 7}
    alone = post(http, input_ids=[5, 6], sampling_params=seeded).json()["output_ids"]
    crowd = post(
        http, input_ids=[[8], [5, 6], [9, 9]], sampling_params=[params, seeded, params]
    ).json()
    other = post(http, input_ids=[5, 6], sampling_params=params).json()["output_ids"]
    assert crowd[1]["output_ids"] == alone != other


def test_information_and_probes(http: httpx.Client, model: Path) -> None:
    for path in ("/model_info", "/get_model_info", "/server_info", "/get_server_info"):
        info = http.get(path).json()
        assert info["model_path"] == str(model)
        assert info["weight_version"] == "0"
    [state] = info["internal_states"]
    num_before = state.pop("num_generated_tokens")
    assert 0 <= state.pop("num_cached_tokens") <= state.pop("num_prompt_tokens")
    assert state == {
        "num_running_reqs": 0,
        "num_waiting_reqs": 0,
        "paused": False,
        "paused_s": None,
    }
    post(http, input_ids=[5, 6], sampling_params={"max_new_tokens": 7, "ignore_eos": True})
    [state] = http.get("/server_info").json()["internal_states"]
    assert state["num_generated_tokens"] == num_before + 7
    for path in ("/health", "/health_generate", "/ready"):
        assert http.get(path).status_code == 200


def test_loads_have_sglangs_shape(http: httpx.Client) -> None:
    answer = http.get("/v1/loads", params={"include": "core"}).json()
    [load] = answer["loads"]
    assert answer["version"].startswith("mainspring-") and load["dp_rank"] == 0
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["token_usage"]) == (0, 0, 0)
    assert load["max_running_requests"] == 64
    [card] = http.get("/v1/models").json()["data"]
    assert card["max_model_len"] == 256


def test_flush_cache_forgets_prefixes(http: httpx.Client) -> None:
    ids, params = list(range(3, 90)), {"max_new_tokens": 1}
    post(http, input_ids=ids, sampling_params=params)
    again = post(http, input_ids=ids, sampling_params=params).json()
    assert again["meta_info"]["cached_tokens"] == len(ids) - 1
    assert http.post("/flush_cache").status_code == 200
    flushed = post(http, input_ids=ids, sampling_params=params).json()
    assert flushed["meta_info"]["cached_tokens"] == 0


def test_api_key_guards_all_but_probes(model: Path) -> None:
    with serving(model, api_key="s3cret") as url:
        assert httpx.get(url + "/health").status_code == 200
        assert httpx.get(url + "/model_info").status_code == 401
        wrong = {"Authorization": "Bearer other"}
        assert httpx.post(url + "/pause_generation", headers=wrong).status_code == 401
        right = {"Authorization": "Bearer s3cret"}
        assert httpx.get(url + "/model_info", headers=right).status_code == 200
