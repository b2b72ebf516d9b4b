"""Settings that mean nothing together: each line of the table is told of the input it is for, no
ordinary campaign is told anything, and what was stored stays readable."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.pairs import REFUSED, WARNED, refusals, warnings
from mainspring.config.files.reading import load_campaign
from mainspring.config.section import STORED

MODEL = {"name": "x", "policy": {"model": "/models/m"}}
OUTCOME = {"name": "outcome"}
TURNS = {"colocate": True, "engine": "fsdp"}

REFUSED_INPUTS: list[tuple[dict[str, Any], str]] = [
    ({"policy": {"temperature": 0}}, "policy.temperature = 0 makes all rollouts"),
    ({"policy": {"temperature": -0.0}}, "policy.temperature = 0"),
    ({"policy": {"sampling": {"top_p": 0.9}}}, "policy.sampling.top_p = 0.9: the log-probs"),
    (
        {"trainer": {"max_staleness": 2, "max_token_staleness": 0}},
        "max_token_staleness = 0 is below",
    ),
    ({"trainer": {"max_token_staleness": 0}}, "max_staleness = 1"),
    ({"trainer": {"kl": {"coef": 0.1, "estimator": "k1"}}}, "has no effect in the loss"),
    ({"trainer": {"correction": {"kind": "tis", "low": 1.5}}}, "leave out the ratio 1"),
    ({"trainer": {"correction": {"kind": "tis", "high": 0.5}}}, "leave out the ratio 1"),
    ({"trainer": {"correction": {"kind": "icepop", "high": 0.9}}}, "leave out the ratio 1"),
    ({"trainer": {"correction": {"kind": "icepop", "low": 2}}}, "leave out the ratio 1"),
    ({"trainer": {"correction": {"kind": "sequence_mask", "low": 1.01}}}, "leave out the ratio 1"),
    ({"reward": {"parts": [OUTCOME | {"weight": 0}]}}, "every part of [reward]"),
    ({"trainer": {"advantage": "raft"}, "reward": {"parts": [OUTCOME | {"weight": 0.5}]}}, "kept"),
    ({"trainer": {"advantage": "raft", "keep_reward": 2}}, "no rollout is ever kept"),
    ({"trainer": {"filter": "solved", "keep_reward": 1.5}}, "no rollout is ever kept"),
    (
        {"trainer": TURNS, "policy": {"engines": ["http://127.0.0.1:1", "http://gpu7:30000"]}},
        "policy.engines has http://gpu7:30000",
    ),
    ({"trainer": TURNS, "policy": {"api": "openai"}}, "is an endpoint"),
    ({"trainer": TURNS, "policy": {"publish": "collective"}}, 'policy.publish = "disk"'),
    ({"trainer": TURNS, "policy": {"engines": "registered"}}, 'not "registered"'),
    (
        {
            "trainer": TURNS,
            "policy": {"engines": ["http://127.0.0.1:1"]},
            "judges": {"j": {"kind": "engine", "model": "/m", "engines": ["http://127.0.0.1:1"]}},
        },
        "the judge j asks http://127.0.0.1:1",
    ),
]
WARNED_INPUTS: list[tuple[dict[str, Any], str]] = [
    ({"policy": {"temperature": 0.1}}, "will be equal"),
    ({"trainer": {"loss": "gspo", "clip_low": 0.2, "clip_high": 0.28}}, "clip nothing"),
    ({"trainer": {"loss": "gspo", "clip_high": 0.28}}, "clip nothing"),
    ({"trainer": {"loss": "gspo", "aggregation": "token_mean"}}, "long sequences more weight"),
    ({"trainer": {"clip_high": 4e-4}}, "clips nearly every token"),
    ({"trainer": {"loss": "cispo", "clip_high": 4e-4}}, "clips nearly every token"),
    ({"trainer": {"loss": "dual_clip", "dual_clip": 1.2}}, "below 1 + clip_high"),
    ({"trainer": {"advantage": "reinforce_plus_plus", "filter": "mixed"}}, "out of the batch"),
    ({"trainer": {"advantage": "reinforce_plus_plus", "filter": "solved"}}, "out of the batch"),
    ({"trainer": {"advantage": "raft", "filter": "mixed"}}, "all rollouts are kept"),
    ({"trainer": {"filter": "solved"}}, "keeps groups of equal rewards"),
    ({"trainer": {"filter": "none"}}, "take a place in the batch"),
    ({"trainer": {"filter": "none", "advantage": "rloo"}}, "take a place in the batch"),
    ({"trainer": {"min_scored": 1}}, "compared with no other"),
    ({"trainer": {"kl": {"coef": 1, "where": "reward", "estimator": "k3"}}}, '"k1" is'),
    ({"trainer": {"proximal": "recomputed"}}, "with one update a step"),
    ({"trainer": {"proximal": "recomputed", "loss": "nll"}}, "costs a forward pass"),
    ({"trainer": {"loss": "nll", "updates_per_step": 2}}, "nothing bounds the 2 updates"),
    ({"trainer": {"loss": "nll", "mini_batches": 4}}, "nothing bounds the 4 updates"),
    ({"trainer": {"lora": {"rank": 8}, "optimizer": {"lr": 1e-6}}}, "hardly moves adapters"),
    ({"trainer": {"num_steps": 5, "optimizer": {"warmup_steps": 5}}}, "never reached"),
    (
        {
            "trainer": {
                "num_steps": 5,
                "optimizer": {"warmup_steps": 3},
                "advantage": "gae",
                "critic": {"warmup_steps": 3},
            }
        },
        "not below the 2 steps of the policy",
    ),
    ({"trainer": {"overlong": "mask"}, "agent": {"step_limit": 1}}, "in its first turn"),
    ({"trainer": {"overlong": "mask", "quorum": 4}}, "stragglers are cut off"),
    ({"trainer": {"max_staleness": 9, "num_steps": 9}}, "rollouts of version 0"),
    ({"trainer": {"max_flat_groups": 3}}, "before one step is full"),
    ({"curriculum": {"kind": "band", "low": 0.51, "high": 0.55}}, "no solve rate of 8"),
    ({"curriculum": {"kind": "band", "outside": 1}}, "the same weight"),
    ({"trainer": {"checkpoint_every": 100}}, "a crash repeats every step"),
    ({"evaluation": {"every_steps": 101}}, "only the first and the last"),
    ({"evaluation": {"splits": []}, "trainer": {"keep_best": 1}}, "nothing is kept"),
    ({"agent": {"command_timeout_s": 99, "rollout_timeout_s": 60}}, "ends a rollout before"),
    ({"trainer": {"quorum": 4, "straggler_s": 1800}}, "shortens nothing"),
    ({"tasks": {"num_train": 4}}, "more than once"),
    ({"reward": {"parts": [OUTCOME, {"name": "format", "weight": 0}]}}, "not counted"),
    ({"evaluation": {"splits": ["heldout", "heldout"]}}, "more than once"),
    (
        {"evaluation": {"sampling": {"heldout": {"top_k": 5, "temperature": 0}}}},
        "evaluation.sampling.heldout.top_k does nothing",
    ),
]
LEFTOVERS: list[tuple[dict[str, Any], str]] = [
    ({"trainer": {"kl": {"estimator": "k2"}}}, "trainer.kl.estimator"),
    ({"trainer": {"kl": {"clamp": 1.0}}}, "trainer.kl.clamp"),
    ({"trainer": {"kl": {"where": "reward"}}}, "trainer.kl.estimator and where"),
    ({"trainer": {"correction": {"low": 0.1, "high": 3}}}, "trainer.correction.low and high"),
    ({"trainer": {"lora": {"alpha": 16}}}, "trainer.lora.alpha"),
    ({"trainer": {"lora": {"targets": "attention"}}}, "trainer.lora.targets"),
    ({"trainer": {"aggregation_length": 100}}, "trainer.aggregation_length"),
    ({"trainer": {"loss": "nll", "clip_low": 0.1}}, "trainer.clip_low"),
    ({"trainer": {"dual_clip": 4}}, "trainer.dual_clip"),
    ({"trainer": {"advantage": "rloo", "std": "unbiased"}}, "trainer.std"),
    ({"trainer": {"turn_discount": 0.9}}, "trainer.turn_discount"),
    ({"trainer": {"keep_reward": 0.5}}, "trainer.keep_reward"),
    ({"trainer": {"straggler_s": 5}}, "trainer.straggler_s"),
    ({"trainer": {"optimizer": {"muon_lr": 0.1}}}, "trainer.optimizer.muon_lr"),
    ({"trainer": {"optimizer": {"muon_momentum": 0.1}}}, "trainer.optimizer.muon_momentum"),
    ({"curriculum": {"low": 0.2}}, "curriculum.low"),
    ({"curriculum": {"kind": "prioritized", "high": 0.8}}, "curriculum.high"),
    ({"curriculum": {"outside": 0.2, "recent_groups": 3}}, "curriculum.outside and recent_groups"),
    ({"evaluation": {"greedy": False, "greedy_tasks": 5}}, "evaluation.greedy_tasks"),
    ({"evaluation": {"splits": [], "every_steps": 5}}, "evaluation.every_steps"),
    ({"sandbox": {"snapshot_mb": 2}}, "sandbox.snapshot_mb"),
    ({"tasks": {"source": "mine", "num_train": 5}}, "tasks.num_train"),
    ({"tasks": {"unverified": "use"}}, "tasks.unverified"),
    ({"agent": {"version": "1.0"}}, "agent.version"),
    ({"agent": {"requests_per_minute": 5}}, "agent.requests_per_minute"),
    ({"agents": {"a": {"kind": "tools", "version": "1"}}}, "a program as agents.a.kind: leave"),
]
OF_SECTIONS = [
    ({"a": {"step_limit": 1}}, {"overlong": "mask"}, "agents.a.step_limit = 1"),
    ({"a": {"command_timeout_s": 9, "rollout_timeout_s": 8}}, {}, "agents.a.command_timeout_s = 9"),
    (
        {"a": {"rollout_timeout_s": 1900}},
        {"quorum": 2, "straggler_s": 1950},
        "agents.a.rollout_timeout_s = 1900",
    ),
]


def merged(raw: dict[str, Any]) -> dict[str, Any]:
    trainer = raw.get("trainer", {})
    needs = {"proximal": "recomputed"} if "kind" in trainer.get("correction", {}) else {}
    return (
        MODEL
        | raw
        | {
            "policy": MODEL["policy"] | raw.get("policy", {}),  # type: ignore[operator]
            "trainer": needs | trainer,
        }
    )


@pytest.mark.parametrize(("raw", "told"), REFUSED_INPUTS, ids=lambda each: str(each)[:60])
def test_a_pair_that_teaches_nothing_is_refused_and_spared_where_it_was_stored(
    raw: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValidationError) as found:
        CampaignConfig.model_validate(merged(raw))
    assert told in str(found.value)
    read = CampaignConfig.model_validate(merged(raw), context=STORED)
    assert any(told in line for line in refusals(read))
    again = CampaignConfig.model_validate(read.model_dump(mode="json"), context=STORED)
    assert again == read


@pytest.mark.parametrize(("agents", "trainer", "told"), OF_SECTIONS)
def test_a_warning_names_the_section_that_it_is_about(
    agents: dict[str, Any], trainer: dict[str, Any], told: str
) -> None:
    raw = {"agents": agents, "trainer": trainer}
    [found] = [
        line for line in warnings(CampaignConfig.model_validate(merged(raw))) if told in line
    ]
    assert found
    override = {**raw, "agent": {"override": True}}  # such a section plays nothing
    assert told not in str(warnings(CampaignConfig.model_validate(merged(override))))


def test_a_program_in_a_section_reads_what_programs_read() -> None:
    agents = {"a": {"kind": "codex", "version": "1", "requests_per_minute": 5, "step_limit": 1}}
    found = warnings(CampaignConfig.model_validate(merged({"agents": agents})))
    assert "agents.a" not in str(found)


@pytest.mark.parametrize(
    ("raw", "told"), WARNED_INPUTS + LEFTOVERS, ids=lambda each: str(each)[:60]
)
def test_a_setting_without_effect_is_told(raw: dict[str, Any], told: str) -> None:
    found = warnings(CampaignConfig.model_validate(merged(raw)))
    assert any(told in line for line in found), found
    assert all(len(line) < 300 for line in found)


def test_every_line_of_the_table_has_an_input_here() -> None:
    for table, inputs, context in (
        (REFUSED, REFUSED_INPUTS, STORED),
        (WARNED, WARNED_INPUTS, None),
    ):
        configs = [CampaignConfig.model_validate(merged(raw), context=context) for raw, _ in inputs]
        for number, pair in enumerate(table):
            assert any(pair.when(config) for config in configs), f"pair {number}"


@pytest.mark.parametrize(
    "trainer",
    [
        {},
        {"loss": "gspo"},
        {"advantage": "reinforce_plus_plus"},
        {"advantage": "raft", "loss": "nll"},
        {"advantage": "gae", "critic": {}},
        {"lora": {"rank": 16}},
        {"kl": {"coef": 0.01}},
        {"kl": {"coef": 0.01, "where": "reward"}},
        {"proximal": "recomputed", "correction": {"kind": "tis"}},
        {"proximal": "recomputed", "mini_batches": 4},
        {"max_staleness": 2, "max_token_staleness": 2},
        {"loss": "own.module:loss", "clip_low": 0.5, "aggregation_length": 5, "dual_clip": 9},
        {"aggregation": "seq_mean_token_sum_norm", "aggregation_length": 4096},
    ],
    ids=str,
)
def test_an_ordinary_campaign_is_told_nothing(trainer: dict[str, Any]) -> None:
    assert warnings(CampaignConfig.model_validate(merged({"trainer": trainer}))) == []


def test_all_refusals_are_told_at_once(tmp_path: Path) -> None:
    from mainspring.errors import ConfigError

    file = tmp_path / "c.toml"
    file.write_text(
        'name = "x"\n[policy]\nmodel = "m"\ntemperature = 0\n[trainer]\nmax_token_staleness = 0\n'
    )
    with pytest.raises(ConfigError) as found:
        load_campaign(file)
    assert "policy.temperature = 0" in found.value.message
    assert "max_token_staleness = 0" in found.value.message
