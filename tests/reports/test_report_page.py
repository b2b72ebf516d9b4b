"""The page and the summary, from data: what they say, and what they must never let through."""

import dataclasses
import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest
from report_data import report_data

from infra.db.reading.evaluations import Evaluation
from infra.db.reading.trained_steps import Step
from infra.db.training.sft import StoredSftData
from mainspring.status import CampaignStatus, Sampling
from reports import page, plots, summary
from reports.data import ReportData, Supervised, Totals

FILES = {"report.html", "summary.json", "metrics.jsonl"}


class Page(HTMLParser):
    """Tags, links, and everything the browser would fetch or run."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.handlers: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "href" and tag == "a":
                self.links.append(value or "")
            elif name in ("src", "srcset", "data", "href"):
                self.fetched.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)


@pytest.fixture(scope="module")
def html() -> str:
    return page.render(report_data())


def empty_data() -> ReportData:
    return ReportData(
        campaign="fresh",
        status=CampaignStatus.WARMING_UP,
        seed=3,
        made_at=datetime(2026, 1, 1, tzinfo=UTC),
        config={},
        temporal_ui="",
        temporal_namespace="default",
        totals=Totals(num_steps=0, num_rollouts=0, num_turns=0, wall_s=1.5, max_logprob_gap=None),
        logprob_gap_limit=1e-3,
    )


def test_page_is_self_contained_and_runs_nothing(html: str) -> None:
    parsed = Page(html)
    assert not {"script", "img", "iframe", "link", "object"} & set(parsed.tags)
    assert parsed.handlers == []
    assert all(reference.startswith("#") for reference in parsed.fetched)
    assert "url(http" not in html and "@import" not in html


def test_hostile_text_is_shown_as_text(html: str) -> None:
    assert "&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "&lt;img src=x&gt;" in html
    assert "\x1b" not in html


def test_long_output_is_cut_in_the_middle(html: str) -> None:
    output = "red <img src=x>\n" * 400
    assert f"[... {len(output) - page.OUTPUT_CHARS:,} characters ...]" in html


def test_links_lead_to_each_rollouts_workflow(html: str) -> None:
    links = Page(html).links
    base = "http://127.0.0.1:8233/namespaces/default/workflows/"
    assert f"{base}rollout%2Fquickstart-0%2Fg000012%2F003" in links
    assert sum(link.startswith(base) for link in links) == len(report_data().trajectories)


def test_plots_follow_the_pages_colours(html: str) -> None:
    assert html.count("<svg") == 17
    for name in ("--blue", "--green", "--amber", "--violet", "--red", "--line", "--ink-soft"):
        assert f"var({name})" in html
    assert "prefers-color-scheme: dark" in html


def test_suspicious_rollouts_are_counted_marked_and_linked(html: str) -> None:
    top = html[: html.index("<svg")]
    assert "Suspicious rollouts" in top and "31" in top and "0.7 % of all" in top
    assert '<td>searched history</td><td class="num">30</td>' in html
    (suspect,) = report_data().suspects
    assert f"#{suspect.rollout}" in Page(html).links
    assert f'id="{suspect.rollout}"' in html
    assert html.count('<span class="badge warn">') == len(suspect.suspicions) == 2


def test_the_parts_of_a_reward_are_told(html: str) -> None:
    assert "my_rewards:small_patch" in html
    assert "outcome <code>-1</code>, &lt;b&gt;:mine <code>0.25</code>" in html


def test_headline_numbers_lead(html: str) -> None:
    top = html[: html.index("<svg")]
    for text in ("17 %", "63 %", "40 %", "70 %", "55-71 %", "4.3e-05", "4,672", "10 min 11 s"):
        assert text in top


def test_command_is_shown_once_and_prose_kept(html: str) -> None:
    assert "```bash" not in html
    assert "The comparison is too wide." in html
    assert "I am not sure what to do &amp; so on." in html


def test_a_campaign_that_only_began_has_a_report() -> None:
    html = page.render(empty_data())
    assert "warming up" in html and "not measured" in html and "<svg" not in html
    assert "uspicious" not in html


def test_one_step_is_enough_for_the_plots() -> None:
    data = dataclasses.replace(
        empty_data(),
        steps=(Step(1, reward_mean=0.0, mixed_groups=0, logprob_gap_max=0.0, entropy=0.1),),
        evaluations=(Evaluation(0, "heldout", Sampling.SAMPLED, 4, 0),),
    )
    assert page.render(data).count("<svg") == 4


def test_a_supervised_run_shows_its_loss_and_its_data() -> None:
    data = dataclasses.replace(
        empty_data(),
        steps=tuple(Step(n, metrics={"loss": 2 / n, "tokens_per_s": 9.0}) for n in (1, 2)),
        supervised=Supervised(StoredSftData("d" * 64, 24, 3505, 1060, 3), 4, "/models/v00002/hf"),
    )
    html = page.render(data)
    assert html.count("<svg") == 2, "the loss and the tokens a second"
    assert "Negative log-likelihood" in html
    assert "3,505 tokens, 1,060 of them trained, 3 skipped" in html and "2 of 4 steps" in html
    found = summary.summary(data)["supervised"]
    assert (found["loss_first"], found["loss_last"], found["num_skipped"]) == (2.0, 1.0, 3)


def test_drawing_twice_gives_the_same_page(html: str) -> None:
    assert page.render(report_data()) == html


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
        report, numbers = summary.write(data, directory)
    assert json.loads(numbers.read_text())["report"] == str(report)
    assert "second" in report.read_text()
    assert {path.name for path in directory.iterdir()} == FILES


def test_nothing_is_drawn_where_nothing_was_measured() -> None:
    """Evaluations are far apart: marks with their intervals, and no line between them."""
    data = dataclasses.replace(
        empty_data(),
        evaluations=(
            Evaluation(0, "heldout", Sampling.SAMPLED, 128, 24),
            Evaluation(15, "heldout", Sampling.SAMPLED, 128, 68),
        ),
    )
    [(_, _, drawn)] = plots.draw(data)
    green = re.findall(r'<path d="([^"]*)"[^>]*stroke: var\(--green\)', drawn)
    ends = [re.findall(r"[ML] ([\d.]+) ", path) for path in green]
    # An interval goes straight up: every green line stays at its evaluation.
    assert len(ends) >= 2 and all(len(set(each)) == 1 for each in ends), green


def test_the_groups_of_a_step_are_told_apart(html: str) -> None:
    signal = html[html.index("<b>Signal</b>") :]
    signal = signal[: signal.index("</svg>")]
    for words in ("none resolved", "mixed", "all resolved"):
        assert words in signal
    assert "Masked rollouts" in html


def test_matplotlib_is_loaded_only_to_draw() -> None:
    program = "import sys, reports.summary; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
