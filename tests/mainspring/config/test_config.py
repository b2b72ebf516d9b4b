"""Campaign files: what is wrong is named with file and field, all of it at once, in plain words."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import bundled
from mainspring.algorithms.choice import advantages_of
from mainspring.algorithms.gap import GapBounds, GapConfig
from mainspring.config.any_run import training
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.errors import explain
from mainspring.config.files.reading import check_evaluation, load_campaign, load_sft, read_toml
from mainspring.config.files.stored import read_stored
from mainspring.config.training.algorithm import Std
from mainspring.config.training.optimizer import OptimizerConfig
from mainspring.config.training.parallel import Device
from mainspring.errors import ConfigError
from mainspring.status import CampaignKind

VALID = 'name = "a"\n[policy]\nmodel = "/models/m"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (VALID + "stepz = 3\n", "policy.stepz: no such field"),
        (
            VALID + "[trainer]\ngrop_size = 4\n",
            "trainer.grop_size: no such field; did you mean group_size?",
        ),
        (VALID + "[trainr]\nnum_steps = 1\n", "trainr: no such field; did you mean trainer?"),
        (VALID + "group_size = 4\n", "no such field; did you mean trainer.group_size?"),
        (
            VALID + "[trainer]\nnum_steps = 'ten'\n",
            "trainer.num_steps: must be a whole number, not 'ten'",
        ),
        (VALID + "[trainer]\ngroup_size = 1\n", "trainer.group_size: must be at least 2, not 1"),
        (VALID + "[evaluation]\ngreedy = 'so'\n", "must be true or false, not 'so'"),
        (VALID + "engines = 'http://e'\n", "policy.engines: must be a list ([...])"),
        (VALID + "api = 'grpc'\n", "policy.api: must be 'sglang', 'vllm' or 'openai', not 'grpc'"),
        ('name = "a"\npolicy = 3\n', "policy: must be a section ([...]), not 3"),
        ("seed = 1\n", "name: is missing"),
        (VALID + "[trainer]\ntensor_parallel = 2\n[trainer.optimizer]\nname = 'muon'\n", "muon"),
        (VALID.replace('"a"', '"A b"'), "name: campaign name 'A b' cannot be used as an id; use"),
        (VALID + "max_context = 100\nmax_new_tokens = 100\n", "below max_context"),
        (VALID + "engines = ['localhost:3']\n", "policy.engines: 'localhost:3' is not an http(s)"),
        ('name = "a"\n', "trainer.warm_start"),
        (VALID + "[trainer.warm_start]\n", "toy tasks"),
        (VALID + "[trainer]\nmax_logprob_gap = 0.1\n", "trainer.max_logprob_gap"),
        (VALID + "[trainer.gap]\nmode = 'off'\n", "trainer.gap.mode"),
        (
            VALID + "[trainer.correction]\nkind = 'tis'\n",
            'trainer: correction.kind = "tis" compares recomputed log-probs with served ones: set '
            'proximal = "recomputed", or remove [trainer.correction]',
        ),
        (
            VALID + "[trainer.correction]\nkind = 'icepop'\nlow = 6\n",
            "trainer.correction: low = 6.0 is not below high = 5.0",
        ),
        (
            VALID + "[trainer]\naggregation = 'seq_mean_token_sum_norm'\n",
            "divides by a constant number of tokens: set aggregation_length",
        ),
        (
            VALID + "[trainer]\ngroups_per_step = 2\ngroup_size = 4\nmini_batches = 9\n",
            "trainer: mini_batches = 9 is more than the 8 rollouts of a step",
        ),
        (
            VALID + "[trainer]\ngroup_size = 4\nquorum = 4\n",
            "trainer: quorum = 4 is not below group_size = 4",
        ),
        (
            VALID + "[trainer]\nnormalize_std = false\n",
            "trainer.normalize_std is called trainer.std now",
        ),
        (VALID + "[trainer]\ndual_clip = 1\n", "trainer.dual_clip: must be greater than 1, not 1"),
        (VALID + "[trainer.kl]\nestimator = 'k4'\n", "trainer.kl.estimator: must be 'k1', 'k2'"),
        (VALID + "[trainer]\noverlong = 'drop'\n", "trainer.overlong: must be 'keep' or 'mask'"),
        (VALID.replace("[policy]", "kind = 'eval'\n[policy]"), "kind: no such field"),
        (VALID + "kind = 'bash'\n", "policy.kind: no such field; did you mean agent.kind?"),
        (
            VALID + "[run]\nsplit = 'dev'\n",
            "run: a campaign has no such section; only `mainspring eval run FILE` reads it",
        ),
        ("name = \n", "not TOML"),
    ],
)
def test_a_wrong_file_names_the_field(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "campaign.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_campaign(file)
    assert raised.value.message.startswith(f"{file}: ")
    assert says in raised.value.message and raised.value.remedy
    assert "Value error" not in raised.value.message


def test_all_mistakes_are_told_at_once_and_not_too_many(tmp_path: Path) -> None:
    file = tmp_path / "campaign.toml"
    wrong = "[trainer]\n" + "".join(f"field_{n} = {n}\n" for n in range(12))
    file.write_text('seed = "x"\n' + VALID.replace("model", "modl") + wrong)
    with pytest.raises(ConfigError) as raised:
        load_campaign(file)
    lines = raised.value.message.splitlines()
    assert len(lines) == 8 and lines[-1].endswith("... and 7 more")
    assert "seed: must be a whole number, not 'x'" in lines[0]
    assert "policy.modl: no such field; did you mean model?" in lines[1]


def test_the_line_that_is_no_toml_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "campaign.toml"
    file.write_text('name = "a"\nseed = = 3\n')
    with pytest.raises(ConfigError) as raised:
        load_campaign(file)
    assert "at line 2" in raised.value.message and "seed = = 3" in raised.value.message
    assert "key = value" in raised.value.remedy


def test_an_option_is_called_as_it_was_given() -> None:
    raw = {"name": "a", "policy": {"model": "m", "engines": ["127.0.0.1:31555"]}}
    with pytest.raises(
        ConfigError, match=r"eval run: --base-url: '127.0.0.1:31555' is not an http"
    ):
        check_evaluation(raw, "eval run", {"policy.engines": "--base-url"})


def test_the_file_of_an_evaluation_is_checked_as_a_whole() -> None:
    raw = {"name": "a", "policy": {"model": "m"}, "trainer": {"num_steps": 3}}
    raw |= {"run": {"slice": "0:5", "samples": 2}, "evaluation": {"concurrency": 7}}
    read = check_evaluation(raw, "eval.toml")
    assert (read.split, read.bounds, read.samples, read.concurrency) == ("test", (0, 5), 2, 7)
    raw |= {"run": {"slice": "five", "of": "b"}, "trainer": {"num_stepz": 3}}
    with pytest.raises(ConfigError) as raised:
        check_evaluation(raw, "eval.toml", {"run.slice": "--slice"})
    said = raised.value.message
    assert "eval.toml: trainer.num_stepz: no such field; did you mean num_steps?" in said
    assert "eval.toml: --slice: 'five' is not a slice" in said
    assert "eval.toml: run.of: no such field" in said


@pytest.mark.parametrize("wrong", ["(", "a{99999999999999999999}", "(?P<n>a)(?P<n>b)"])
def test_an_expression_for_tasks_that_cannot_be_read_is_named(wrong: str) -> None:
    raw = {"name": "a", "policy": {"model": "m"}, "run": {"task": wrong, "shuffle": 7}}
    with pytest.raises(ConfigError) as raised:
        check_evaluation(raw, "eval run", {"run.task": "--task"})
    said = raised.value.message
    assert said.startswith(f"eval run: --task: {wrong!r} is not a regular expression: ")
    assert "\n" not in said
    read = check_evaluation(raw | {"run": {"task": "[0-9]+", "shuffle": 7, "limit": 2}}, "e.toml")
    assert (read.task, read.shuffle, read.limit) == ("[0-9]+", 7, 2)


PRICED = {"name": "a", "policy": {"api": "openai", "model": "org/m-1.5"}}
PRICE = {"input": 3.0, "output": 15}


def test_prices_are_of_the_model_that_plays() -> None:
    read = check_evaluation(PRICED | {"prices": {"org/m-1.5": PRICE}}, "eval.toml")
    assert read.price is not None and read.price.output == 15.0
    with pytest.raises(
        ConfigError, match=r"prices\.other: the run does not use this model"
    ) as wrong:
        check_evaluation(PRICED | {"prices": {"org/m-1.5": PRICE, "other": PRICE}}, "eval.toml")
    assert "policy.model = 'org/m-1.5'" in wrong.value.message
    # The last part is the name of a directory, and no name at an endpoint.
    with pytest.raises(ConfigError, match=r"prices\.m-1\.5: the run does not use"):
        check_evaluation(PRICED | {"prices": {"m-1.5": PRICE}}, "eval.toml")
    served = {"name": "a", "policy": {"model": "/models/m-1.5"}, "prices": {"m-1.5": PRICE}}
    assert check_evaluation(served, "eval.toml").price is not None
    with pytest.raises(ConfigError, match=r"prices\.org/m-1\.5\.output: is missing"):
        check_evaluation(PRICED | {"prices": {"org/m-1.5": {"input": 1}}}, "eval.toml")
    assert check_evaluation(PRICED, "eval.toml").price is None


@pytest.mark.parametrize("section", ["agent", "agents.thrifty"])
def test_a_limit_on_dollars_needs_a_price(section: str) -> None:
    limited = {"kind": "tools", "cost_limit": 0.5}
    agents = {"agent": limited} if section == "agent" else {"agents": {"thrifty": limited}}
    with pytest.raises(ConfigError) as refused:
        check_evaluation(PRICED | agents, "eval.toml")
    assert f"{section}.cost_limit needs the price of the model 'org/m-1.5'" in str(refused.value)
    assert '[prices."org/m-1.5"]' in str(refused.value)
    read = check_evaluation(PRICED | agents | {"prices": {"org/m-1.5": PRICE}}, "eval.toml")
    assert read.agent_sections[section].cost_limit == 0.5


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_campaign(tmp_path / "none.toml")


def test_the_bundled_campaign_is_valid() -> None:
    config = load_campaign(Path(bundled.__file__).parent / "quickstart.toml")
    assert isinstance(config, CampaignConfig)
    assert config.split_size("heldout") == 128
    assert config.task_source == "bundled-s0"


@pytest.mark.parametrize(
    ("stored", "gap", "device"),
    [
        ({"trainer": {"max_logprob_gap": 0.2}}, GapConfig(max=0.2), Device.CUDA),
        ({"trainer": {"max_logprob_gap": 1e-3}}, GapConfig(), Device.CUDA),
        ({"trainer": {"warm_start": {}, "num_steps": 3}}, GapConfig(), Device.CUDA),
        (
            {"trainer": {"warm_start": {}}, "policy": {"model": "bundled"}},
            GapConfig(),
            Device.CPU,
        ),
        ({"trainer": {"device": "cpu", "gap": {"mean": 0.3}}}, GapConfig(mean=0.3), Device.CPU),
    ],
)
def test_what_an_earlier_version_stored_is_read(stored, gap, device) -> None:
    raw = {"name": "a", "policy": {"model": "/models/m"}} | stored
    config = training(read_stored(CampaignKind.TRAIN, raw))
    assert (config.trainer.gap, config.trainer.device) == (gap, device)


@pytest.mark.parametrize(("stored", "kind"), [(True, "bundled"), (False, "bash")])
def test_the_agent_of_an_earlier_version_is_read(stored: bool, kind: str) -> None:
    raw = {"name": "a", "policy": {"model": "/models/m"}, "agent": {"short_prompts": stored}}
    assert read_stored(CampaignKind.TRAIN, raw).agent.kind == kind


@pytest.mark.parametrize(("stored", "normalize_std"), [("mixed", True), ("none", False)])
def test_the_algorithm_of_an_earlier_version_is_read(stored: str, normalize_std: bool) -> None:
    trainer = {"device": "cpu", "filter": stored, "normalize_std": normalize_std}
    raw = {"name": "a", "policy": {"model": "/m"}, "trainer": trainer}
    found = training(read_stored(CampaignKind.TRAIN, raw)).trainer
    assert (found.filter, found.std) == (stored, Std.POPULATION if normalize_std else Std.NONE)
    assert (found.advantage, found.loss, found.engine_name) == ("grpo", "clip", "plain")
    mean_only = [0.5, -0.5, None]
    assert (advantages_of([1.0, 0.0, None], found) == mean_only) is not normalize_std
    own = found.model_copy(update={"advantage": "dr_grpo"})
    assert advantages_of([1.0, 0.0, None], own) == mean_only


def test_bounds_of_the_gap_follow_the_dtype() -> None:
    config = CampaignConfig.model_validate(
        {"name": "a", "policy": {"model": "/m", "dtype": "bfloat16"}, "trainer": {"gap": {"k3": 1}}}
    )
    assert config.gap_bounds == GapBounds(mean=0.05, p999=0.5, k3=1)


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("trainer", "max_staleness", 2),
        ("trainer", "quorum", 4),
        ("trainer", "keep_checkpoints", 1),
        ("trainer", "device", "cuda"),
        ("trainer", "tensor_parallel", 2),
        ("trainer", "data_parallel", 2),
        ("policy", "api", "openai"),
        ("policy", "publish", "adapter"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(section: str, field: str, value: object) -> None:
    raw = {"name": "a", "schedule": "reproducible", "policy": {"model": "/m"}}
    raw["trainer"] = {"device": "cpu"}
    assert CampaignConfig.model_validate(raw).batches is not None
    raw[section] = raw[section] | {field: value}
    with pytest.raises(ValidationError, match=rf"{section}\.{field}.*or set schedule = \"fastest"):
        CampaignConfig.model_validate(raw)


def test_adapters_are_published_where_there_are_some() -> None:
    raw: dict[str, Any] = {"name": "a", "policy": {"model": "/m", "publish": "adapter"}}
    with pytest.raises(ValidationError, match=r'publish = "adapter" needs adapters: set trainer'):
        CampaignConfig.model_validate(raw)
    for publish, rank in (("adapter", 8), ("disk", 0)):
        raw["policy"]["publish"] = publish
        config = CampaignConfig.model_validate(raw | {"trainer": {"lora": {"rank": 8}}})
        assert config.adapter_rank == rank
    raw["policy"] |= {"publish": "adapter", "api": "openai"}
    with pytest.raises(ValidationError, match=r'publish = "adapter" needs api = "sglang"'):
        CampaignConfig.model_validate(raw)


def test_a_supervised_run_is_stored_and_read_with_its_own_sections(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'name = "s"\n[[data.sources]]\nfile = "a/../rows.jsonl"\n[[data.sources]]\n'
        'campaign = "c"\nmin_reward = 0.5\n[trainer]\ndevice = "cpu"\nbatch_size = 3\n'
        "[trainer.optimizer]\nlr = 0.1\n"
    )
    config = load_sft(file)
    assert config.data.sources[0].file == str(tmp_path / "rows.jsonl")
    stored = config.model_dump(mode="json")
    assert read_stored(CampaignKind.SFT, stored) == config
    assert config.trainer.steps_of(10) == 4 and config.trainer.steps_of(9) == 3
    ranks = config.ranks
    assert (ranks.trainer.engine_name, ranks.trainer.optimizer.lr) == ("plain", 0.1)
    assert ranks.trainer.optimizer.final_lr_fraction == 0.1
    assert ranks.trainer.warm_start is not None and ranks.trainer.warm_start.steps == 0
    assert ranks.agent.kind == "bundled"  # the commands make the tokenizer of this one


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "a\\u0000b"\n', "name: holds NUL"),
        ('name = "x"\n[policy]\nmodel = "a\\u0000b"\n', "policy.model: holds NUL"),
        ('name = "x"\n[policy]\nengines = ["a", "b\\u0000"]\n', "policy.engines.1: holds NUL"),
        ('"na\\u0000me" = 1\n', "holds NUL"),
        ('name = "\\ud800"\n', "not TOML"),
        ("a = " + "[" * 20_000, "nested too deeply"),
        ("a = " + "{b = " * 20_000, "nested too deeply"),
    ],
)
def test_text_that_nothing_can_hold_is_refused_by_its_field(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as found:
        read_toml(file)
    assert found.value.message.startswith(f"{file}: ") and said in found.value.message


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('name = "x"\n', encoding="utf-8-sig")
    assert read_toml(tmp_path / "c.toml") == {"name": "x"}


def test_a_list_that_is_too_long_is_told_in_plain_words() -> None:
    with pytest.raises(ValidationError) as refused:
        OptimizerConfig.model_validate({"betas": [0.9, 0.99, 0.999]})
    [line] = explain(refused.value, OptimizerConfig)
    assert line.startswith("betas: must have at most 2 entries, not [0.9")


def test_a_list_with_a_wrong_entry_is_not_called_too_short() -> None:
    raw = {"name": "c", "reward": {"parts": [{"name": "judge"}]}}
    with pytest.raises(ValidationError) as refused:
        CampaignConfig.model_validate(raw)
    [line] = explain(refused.value, CampaignConfig)
    assert line.startswith("reward.parts.0: ") and "needs judge" in line
    with pytest.raises(ValidationError) as refused:
        CampaignConfig.model_validate({"name": "c", "reward": {"parts": []}})
    assert explain(refused.value, CampaignConfig) == ["reward.parts: must have at least 1 entry"]
