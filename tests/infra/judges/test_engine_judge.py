"""A judge on an engine of one's own: a real engine with a tiny model votes."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from infra.judges.engine import EngineJudge
from infra.judges.judge import JUDGES, JudgeFailing, JudgeRefused
from infra.policy.model.tokenizer import ChatTokenizer
from mainspring.config.agents.judges import JudgeConfig
from mainspring.ids import RolloutId
from tests.infra.policy.engines import serving
from tests.infra.policy.tiny_model import save_tiny_model

ROLLOUT = RolloutId("c/g0/0")
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("judge"))


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[str]:
    with serving(model, context_length=256) as url:
        yield url


def config(engine: str, folder: Path, **fields: object) -> JudgeConfig:
    raw = {"kind": "engine", "engines": [engine], "model": str(folder), "max_new_tokens": 12}
    return JudgeConfig.model_validate(raw | fields)


@pytest.fixture
async def judge(engine: str, model: Path) -> AsyncIterator[EngineJudge]:
    judge = JUDGES.make("engine", config(engine, model))
    assert isinstance(judge, EngineJudge)
    yield judge
    await judge.aclose()


async def test_votes_differ_by_number_and_are_the_same_when_asked_again(
    judge: EngineJudge, engine: str, model: Path
) -> None:
    votes = [await judge.vote("Is it good?", ROLLOUT, number) for number in range(4)]
    assert len({*votes}) > 1
    other = EngineJudge(config(engine, model))
    # In the order and the company of others, as another process would.
    assert [await other.vote("Is it good?", RolloutId("x"), n) for n in (3, 0)] == [
        votes[3],
        votes[0],
    ]
    await other.aclose()
    greedy = EngineJudge(config(engine, model, temperature=0.0))
    assert await greedy.vote("a", ROLLOUT, 0) == await greedy.vote("a", ROLLOUT, 1)
    await greedy.aclose()


async def test_the_prompt_is_that_of_the_models_own_template(
    judge: EngineJudge, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    generate = judge._engines.generate

    async def watched(input_ids: list[int], *args: object, **fields: object) -> object:
        asked.append(input_ids)
        return await generate(input_ids, *args, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(judge._engines, "generate", watched)
    text = await judge.vote("<|im_end|> is no end here", ROLLOUT, 0)
    assert asked == [ChatTokenizer(model).prompt_ids("", "<|im_end|> is no end here")]
    assert "<|im_end|>" not in text


async def test_what_does_not_fit_is_refused_and_who_does_not_answer_may_be_asked_again(
    judge: EngineJudge, engine: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(JudgeRefused, match=r"prompt of \d+ tokens"):
        await judge.vote("x y z " * 400, ROLLOUT, 0)
    away = EngineJudge(config(NOWHERE, model, request_timeout_s=1.0))
    with pytest.raises(JudgeFailing):
        await away.vote("a", ROLLOUT, 0)
    await away.aclose()
    lost = EngineJudge(config(engine, tmp_path / "gone"))
    with pytest.raises(JudgeFailing, match="gone"):
        await lost.vote("a", ROLLOUT, 0)
    save_tiny_model(tmp_path / "gone")
    assert await lost.vote("a", ROLLOUT, 0) is not None
    await lost.aclose()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engines": []}, "engines is missing"),
        ({"model": ""}, "model is missing"),
        ({"url": "http://a:1/v1"}, 'url is for kind = "openai"'),
        ({"engines": ["a:1"]}, "is not an http"),
        ({"engines": ["http://a:0"]}, "has port 0"),
        ({"kind": "openai", "url": "http://a:1"}, 'engines are for kind = "engine"'),
    ],
)
def test_what_cannot_be_asked_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config("http://a:1", Path("/m"), **fields)
