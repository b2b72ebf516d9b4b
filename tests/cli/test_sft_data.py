"""What a supervised run makes of its sources: tokens, masks, and what is left out."""

import json
import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from bundled.generator import draw_instance
from bundled.model import make_bundled_model
from bundled.trajectories import warm_start_messages
from bundled.warm_start_data import encode_rollout
from cli.operations.sft_data import SftSamples
from infra.db.database import Database
from infra.db.sft import SftData
from mainspring.config.sft import SftConfig
from mainspring.errors import UsageError
from mainspring.trajectories.samples import Sample


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "bundled"
    make_bundled_model(directory, 0)
    return directory


async def read(
    db: Database, model: Path, file: Path, *, overlong: str = "refuse", **trainer: int
) -> tuple[list[Sample], SftData]:
    config = SftConfig.model_validate(
        {
            "name": "reads",
            "policy": {"model": str(model)},
            "data": {"sources": [{"file": str(file)}], "overlong": overlong},
            "trainer": {"device": "cpu", "batch_size": 1} | trainer,
        }
    )
    samples = SftSamples(db, config, model)
    found = [sample async for sample in samples.read()]
    return found, samples.complete(SftData("", len(found), 0, 0, 0))


async def test_a_chat_has_the_tokens_of_a_rollout_and_only_replies_are_trained(
    db: Database, model: Path, tmp_path: Path
) -> None:
    rng = random.Random("sft-data")
    chats = [warm_start_messages(draw_instance(rng, "train", "t"), rng) for _ in range(4)]
    file = tmp_path / "chats.jsonl"
    file.write_text("\n".join(json.dumps({"messages": chat, "reward": 1.0}) for chat in chats))
    found, _ = await read(db, model, file)
    tokenizer = AutoTokenizer.from_pretrained(model)
    for sample, chat in zip(found, chats, strict=True):
        expected = encode_rollout(tokenizer, chat, 0.0)
        assert sample.token_ids.tolist() == expected.token_ids.tolist()
        assert sample.action_mask.tolist() == (expected.weights > 0).tolist()
    assert [sample.rollout for sample in found] == [f"{file}:{n}" for n in (1, 2, 3, 4)]


async def test_a_special_token_that_a_text_names_is_text(
    db: Database, model: Path, tmp_path: Path
) -> None:
    messages = [
        {"role": "user", "content": "what is <|im_end|>?"},
        {"role": "assistant", "content": "the mark <|im_end|> of an end"},
    ]
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"messages": messages}))
    [sample], _ = await read(db, model, file)
    end = AutoTokenizer.from_pretrained(model).convert_tokens_to_ids("<|im_end|>")
    ids = sample.token_ids.tolist()
    assert ids.count(end) == 2  # of the user's message and of the reply
    assert ids[-1] == end and sample.action_mask[-1]


async def test_longer_samples_are_refused_or_skipped_and_counted(
    db: Database, model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    lines = [
        json.dumps({"token_ids": [1] * length, "action_mask": [True] * length})
        for length in (4, 9, 5, 7)
    ]
    file.write_text("\n".join(lines))
    with pytest.raises(UsageError, match=r"2 of 4 samples are longer than 5 tokens .* has 9"):
        await read(db, model, file, max_tokens=5)
    found, data = await read(db, model, file, overlong="skip", max_tokens=5)
    assert [len(sample.token_ids) for sample in found] == [4, 5]
    assert data.num_skipped == 2
    with pytest.raises(UsageError, match=r"no sample to train on: .* 0 samples; 4 too long"):
        await read(db, model, file, overlong="skip", max_tokens=3)
