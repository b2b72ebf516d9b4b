"""What a supervised run makes of its sources: tokens, masks, and what is left out."""

import json
import random
import shutil
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from transformers import AutoTokenizer

from bundled.forms import BUNDLED_AGENT
from bundled.generator import draw_instance
from bundled.model import make_bundled_model
from bundled.served_text import ServedText
from bundled.trajectories import Writer
from bundled.warm_start_data import sequences_of
from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.runs import sft_files
from cli.operations.runs.run_launch import Conductor
from cli.operations.runs.sft_data import SftSamples
from cli.operations.runs.sft_run import store
from infra.db.database import Database
from infra.db.training import sft
from infra.db.training.sft import StoredSftData
from infra.temporal.connection import connect
from mainspring.config.settings import load_settings
from mainspring.config.sft import SftConfig
from mainspring.errors import UsageError
from mainspring.trajectories.samples import Sample
from tests.bundled_chats import drawn_chat
from tests.sft_files import write_chats


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "bundled"
    make_bundled_model(directory, 0)
    return directory


def config_of(model: Path, file: Path, overlong: str = "refuse", **trainer: int) -> SftConfig:
    return SftConfig.model_validate(
        {
            "name": "reads",
            "policy": {"model": str(model)},
            "data": {"sources": [{"file": str(file)}], "overlong": overlong},
            "trainer": {"device": "cpu", "batch_size": 1} | trainer,
        }
    )


async def read(
    db: Database, model: Path, file: Path, *, overlong: str = "refuse", **trainer: int
) -> tuple[list[Sample], StoredSftData]:
    config = config_of(model, file, overlong, **trainer)
    samples = SftSamples(db, config, model)
    found = [sample async for sample in samples.read()]
    return found, samples.complete(StoredSftData("", len(found), 0, 0, 0))


async def test_a_chat_has_the_tokens_of_a_rollout_and_only_replies_are_trained(
    db: Database, model: Path, tmp_path: Path
) -> None:
    instances = [draw_instance(random.Random(n), "train", "t") for n in range(4)]
    chats = [drawn_chat(each, random.Random(n)) for n, each in enumerate(instances)]
    file = tmp_path / "chats.jsonl"
    file.write_text("\n".join(json.dumps({"messages": chat, "reward": 1.0}) for chat in chats))
    found, _ = await read(db, model, file)
    tokenizer = AutoTokenizer.from_pretrained(model)
    writer = Writer(BUNDLED_AGENT, text=ServedText(tokenizer))
    for n, (sample, instance) in enumerate(zip(found, instances, strict=True)):
        written = writer.draw(instance, random.Random(n))
        [expected] = sequences_of(written.calls, 0.0)
        assert sample.token_ids.tolist() == expected.token_ids.tolist()
        assert sample.action_mask.tolist() == (expected.weights > 0).tolist()
    assert [sample.rollout for sample in found] == [f"{file}:{n}" for n in (1, 2, 3, 4)]


async def test_a_date_in_the_template_is_that_of_the_day_on_which_the_run_was_stored(
    db: Database, stack: StackInfo, model: Path, tmp_path: Path
) -> None:
    """Its samples are stored with it, and not made again when it is resumed. The template writes
    microseconds: no two readings would give the same."""
    dated = tmp_path / "dated"
    shutil.copytree(model, dated)
    tokenizer = AutoTokenizer.from_pretrained(dated)
    plain = tokenizer.chat_template
    tokenizer.chat_template = "{{ strftime_now('%H:%M:%S.%f') }}" + plain
    tokenizer.save_pretrained(dated)
    file = tmp_path / "chats.jsonl"
    write_chats(file)
    (first, *others), _ = await read(db, dated, file)
    begins = {tuple(each.token_ids[:15].tolist()) for each in (first, *others)}
    assert len(begins) == 1, "all samples of one reading have one date"
    (later, *_), _ = await read(db, dated, file)
    assert later.token_ids.tolist() != first.token_ids.tolist()

    settings = load_settings(stack.home)
    client = await connect(settings)  # the namespace has the marks of another store
    services = Conductor(settings, db, client, True, lambda text: None, False, None)
    config = config_of(dated, file)
    run = await store(services, config)
    data = await sft.data_of(db, run)
    file.unlink()
    assert await store(services, config) == run
    assert await sft.data_of(db, run) == data and data.num_samples == len(others) + 1


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


CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


async def test_every_shape_of_file_gives_the_same_samples(
    db: Database, model: Path, tmp_path: Path
) -> None:
    shared = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    lines, listed, bom = tmp_path / "c.jsonl", tmp_path / "c.json", tmp_path / "bom.jsonl"
    lines.write_text(json.dumps(CHAT) + "\r\n\n" + json.dumps(shared))
    listed.write_text(json.dumps([CHAT, shared], indent=1))
    bom.write_bytes(b"\xef\xbb\xbf" + lines.read_bytes())
    spread = tmp_path / "lines.json"
    spread.write_bytes(lines.read_bytes())
    table = tmp_path / "c.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([CHAT, CHAT]), table)
    found = []
    for file in (lines, listed, bom, spread, table):
        samples, _ = await read(db, model, file)
        found.append([sample.token_ids.tolist() for sample in samples])
    assert all(each == found[0] for each in found) and len(found[0]) == 2


async def test_an_empty_reply_is_context_and_is_told(
    db: Database, model: Path, tmp_path: Path
) -> None:
    turns = [("user", "a"), ("assistant", ""), ("user", "c"), ("assistant", "d")]
    file = tmp_path / "c.jsonl"
    file.write_text(json.dumps({"messages": [{"role": r, "content": c} for r, c in turns]}))
    samples = SftSamples(db, config_of(model, file), model)
    [sample] = [sample async for sample in samples.read()]
    last = AutoTokenizer.from_pretrained(model).encode("d")
    assert sample.num_action_tokens == len(last) + 1
    assert samples.outcomes[-1] == f"1 empty replies are not trained, the first in {file}:1"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b'{"messages": [{"role": "user", "content": "\\ud800"}, {}]}',
            ":1: messages.0.content: half",
        ),
        (b'{"a": 1}\r{"b": 2}', ":1: not JSON"),
        (b"\n" + b"[" * 100_000, ":2: it is nested too deeply"),
        (b"\xff\xfe{\x00}\x00", ":1: not UTF-8"),
        (b"\x1f\x8b\x08", ":1: not UTF-8"),
        (b"\x00\x00", ":1: not JSON"),
    ],
)
async def test_a_line_that_is_no_chat_is_told_with_its_place(
    db: Database, model: Path, tmp_path: Path, content: bytes, said: str
) -> None:
    file = tmp_path / "c.jsonl"
    file.write_bytes(content)
    with pytest.raises(UsageError) as found:
        await read(db, model, file)
    assert found.value.message.startswith(f"{file}{said}"), found.value.message


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("c.json", b"[" * 100_000, "c.json: not JSON"),
        ("c.json", b'[{"messages": []}', "c.json: not JSON"),
        ("c.json", b"[1]", "c.json:1: it is no JSON object"),
        ("c.parquet", b"PAR1", "c.parquet: cannot be read as parquet"),
    ],
)
async def test_a_file_that_cannot_be_read_is_told(
    db: Database, model: Path, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError) as found:
        await read(db, model, tmp_path / name)
    assert said in found.value.message


async def test_a_line_without_an_end_is_not_read_into_memory(
    db: Database, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sft_files, "MAX_LINE_BYTES", 1 << 20)
    (tmp_path / "c.jsonl").write_bytes(json.dumps(CHAT).encode() + b"\n" + b"x" * (3 << 20))
    with pytest.raises(UsageError, match=r"c.jsonl:2: the line has more than 1 MiB"):
        await read(db, model, tmp_path / "c.jsonl")
