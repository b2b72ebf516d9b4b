"""The summary of a run, from its data."""

import dataclasses
import json
from datetime import UTC, datetime

from report_data import report_data

from infra.db.reading.evaluations import Evaluation
from infra.db.reading.trained_steps import Step
from infra.db.training.sft import StoredSftData
from mainspring.status import CampaignStatus, Sampling
from reports import summary
from reports.data import ReportData, Supervised, Totals

FILES = {"summary.json", "metrics.jsonl"}


def empty_data() -> ReportData:
    return ReportData(
        campaign="fresh",
        status=CampaignStatus.WARMING_UP,
        seed=3,
        made_at=datetime(2026, 1, 1, tzinfo=UTC),
        temporal_ui="",
        totals=Totals(num_steps=0, num_rollouts=0, num_turns=0, wall_s=1.5, max_logprob_gap=None),
    )


def test_a_supervised_run_tells_its_loss_and_its_data() -> None:
    data = dataclasses.replace(
        empty_data(),
        steps=tuple(Step(n, metrics={"loss": 2 / n, "tokens_per_s": 9.0}) for n in (1, 2)),
        supervised=Supervised(StoredSftData("d" * 64, 24, 3505, 1060, 3), 4, "/models/v00002/hf"),
    )
    found = summary.summary(data)["supervised"]
    assert (found["loss_first"], found["loss_last"], found["num_skipped"]) == (2.0, 1.0, 3)


def test_summary_has_exactly_its_keys() -> None:
    found = summary.summary(report_data())
    assert found == {
        "campaign": "quickstart-0",
        "status": "finished",
        "seed": 0,
        "solve_rate_before": 22 / 128,
        "solve_rate_after": 81 / 128,
        "greedy_before": 51 / 128,
        "greedy_after": 90 / 128,
        "heldout_templates_before": 9 / 64,
        "heldout_templates_after": 14 / 64,
        "evaluations": {
            "heldout": {
                "sampled": {"before": 22 / 128, "after": 81 / 128},
                "greedy": {"before": 51 / 128, "after": 90 / 128},
            },
            "heldout_templates": {"sampled": {"before": 9 / 64, "after": 14 / 64}},
        },
        "num_steps": 60,
        "num_rollouts": 4672,
        "num_turns": 13_590,
        "verdicts": report_data().verdicts,
        "stop_reasons": report_data().stop_reasons,
        "faults": {},
        "agents": {},
        "sources": [],
        "num_groups_masked": 0,
        "num_groups_flat": 0,
        "replaced_turns_share": None,
        "num_suspicious": 31,
        "suspicions": {"searched_history": 30, "edited_tests": 2},
        "bundles": {},
        "reward_parts": report_data().compositions[-1].parts,
        "wall_s": 611.4,
        "max_logprob_gap": 4.3e-5,
        "weights_sha256": None,
        "not_reproducible_from": None,
        "retrained_from": None,
        "parent": None,
        "changes": [],
        "judge_warnings": [],
        "events": [],
        "supervised": None,
        "temporal_ui": "http://127.0.0.1:8233",
        "report": None,
    }


def test_solve_rate_leaves_masked_rollouts_out() -> None:
    assert Evaluation(0, "heldout", Sampling.SAMPLED, 10, 3, num_masked=4).solve_rate == 0.5
    assert Evaluation(0, "heldout", Sampling.SAMPLED, 4, 0, num_masked=4).solve_rate is None


def test_before_needs_version_zero_and_after_a_later_one() -> None:
    only_first = dataclasses.replace(
        empty_data(), evaluations=(Evaluation(0, "heldout", Sampling.SAMPLED, 4, 1),)
    )
    assert only_first.before_after("heldout", Sampling.SAMPLED) == (0.25, None)
    only_later = dataclasses.replace(
        empty_data(), evaluations=(Evaluation(5, "heldout", Sampling.SAMPLED, 4, 3),)
    )
    assert only_later.before_after("heldout", Sampling.SAMPLED) == (None, 0.75)


def test_write_replaces_both_files_and_leaves_no_scratch(tmp_path) -> None:
    directory = tmp_path / "reports" / "quickstart-0"
    for data in (empty_data(), dataclasses.replace(empty_data(), campaign="second")):
        numbers = summary.write(data, directory, directory / "report.html")
    assert json.loads(numbers.read_text())["report"] == str(directory / "report.html")
    assert json.loads(numbers.read_text())["campaign"] == "second"
    assert {path.name for path in directory.iterdir()} == FILES
