"""Each process of a run answers Prometheus at its own address, with what it did; the dashboard and
the alerts of examples/monitoring ask for nothing else."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from cluster import bwrap_or_skip
from prometheus_client.parser import text_string_to_metric_families

from bundled.model import make_bundled_model
from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.machine.fleet import Member
from cli.operations.runs.run_to_end import METRICS_PORTS, with_metrics
from infra.stack import ports
from infra.tracking import process_figures
from infra.tracking.gauges import PREFIX
from mainspring.errors import ConfigError
from mainspring.training.step_metrics import CLIP_NAMES, TAKEN_NAMES
from tests.processes import running, words
from tests.span_collector import Collector, collecting
from tests.waiting import until

MONITORING = Path(__file__).parents[2] / "examples" / "monitoring"
OF_RUN = {
    *(process_figures.REPLIES, process_figures.REPLY_SECONDS, process_figures.REPLY_TOKENS),
    *(process_figures.ROLLOUTS_ENDED, process_figures.SANDBOXES_OPEN, process_figures.CAPACITY),
    *(process_figures.REFUSING, process_figures.DRAINING, process_figures.DISK_FREE),
    process_figures.MEMORY_FREE,
}
OF_GATEWAY = {process_figures.REQUESTS, process_figures.REQUESTS_OPEN}
OF_TRAINER = {
    f"{PREFIX}{name}"
    for name in (*TAKEN_NAMES, *CLIP_NAMES, "policy_version", "evaluation_resolve_rate")
}
"""Their test is `test_gauges`."""
FILE = """
[tasks]
source = "bundled"
[agent]
kind = "bundled"
step_limit = 3
max_format_errors = 2
[policy]
max_new_tokens = 32
[run]
split = "heldout"
samples = 4
"""
VALUE = re.compile(r'"[^"]*"')
NAME = re.compile(r"\b(?:mainspring|temporal|sglang:|up\b)[a-z0-9_:]*")


def families(text: str) -> dict[str, Any]:
    """By name, without the endings that kinds add to it."""
    return {family.name: family for family in text_string_to_metric_families(text)}


def total(family: Any, ending: str = "") -> float:
    return sum(s.value for s in family.samples if s.name == family.name + ending)


def asked_for() -> set[str]:
    """Metrics that the dashboard and the alerts name."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    expressions = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    alerts = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    expressions += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    assert len(expressions) >= 20
    bare = [VALUE.sub("", expression) for expression in expressions]
    return {name for expression in bare for name in NAME.findall(expression)}


@contextmanager
def evaluation(stack: StackInfo, folder: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """`eval run --serve` of the bundled model, on tasks enough to look at it."""
    model, file = folder / "model", folder / "eval.toml"
    make_bundled_model(model, 0)
    file.write_text(FILE)
    options = [str(file), "--serve", str(model), "--limit", "128"]
    options += ["--output", str(folder / "output"), "--home", str(stack.home), "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "mainspring", "eval", "run", "--name", "figures", *options],
        env={**os.environ, "MAINSPRING_METRICS_ADDRESS": address},
        stdout=subprocess.DEVNULL,
        stderr=(folder / "said").open("wb"),
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.mark.timeout(600)
async def test_processes_tell_what_they_do(
    tmp_path: Path, stack: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bwrap_or_skip(tmp_path)
    monkeypatch.setenv("MAINSPRING_NODE_ID", "figures")
    monkeypatch.setenv("MAINSPRING_NODE_MIN_FREE_MEMORY_MB", "0")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    first = ports.pick()
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        known = await _figures(tmp_path, stack, first, collector)
    assert known >= OF_RUN
    endings = ("_total", "_bucket", "_sum", "_count")
    exists = {name + ending for name in known | OF_GATEWAY for ending in ("", *endings)}
    unknown = asked_for() - exists - OF_TRAINER - {"up"}
    assert not unknown, sorted(unknown)


async def _figures(tmp_path: Path, stack: StackInfo, first: int, collector: Collector) -> set[str]:
    """Names of the metrics of an evaluation's processes, which send spans as well."""
    with evaluation(stack, tmp_path, f"127.0.0.1:{first}") as process:

        async def at(port: int) -> dict[str, Any]:
            async with httpx.AsyncClient() as http:
                return families((await http.get(f"http://127.0.0.1:{port}/metrics")).text)

        async def of(member: str) -> dict[str, Any]:
            return await at(first + METRICS_PORTS.index(member))

        async def has_ended_some() -> bool:
            assert process.poll() is None, (tmp_path / "said").read_text()
            try:
                found = (await of("rollout")).get(process_figures.ROLLOUTS_ENDED)
            except httpx.HTTPError:
                return False
            return found is not None and total(found, "_total") > 3

        await until(has_ended_some)
        services = {"mainspring-rollout", "mainspring-node"}
        await until(lambda: services <= {span.service["service.name"] for span in collector.spans})
        rollout, node = await of("rollout"), await of("sandbox")
        [engine] = running(
            lambda each: "serve" in words(each) and str(tmp_path) in str(words(each))
        )
        line = words(engine)
        served = await at(int(line[line.index("--port") + 1]))
    ended = rollout[process_figures.ROLLOUTS_ENDED]
    assert all(s.labels["stop_reason"] and s.labels["verdict"] for s in ended.samples)
    assert total(rollout[process_figures.REPLIES], "_total") >= total(ended, "_total")
    assert total(rollout[process_figures.REPLY_TOKENS], "_total") > 0
    assert total(node[process_figures.CAPACITY]) > 0
    assert total(node[process_figures.DRAINING]) == 0
    assert total(served["sglang:generation_tokens"], "_total") > 0
    return {*rollout, *node, *served}


def test_members_have_ports_of_their_own() -> None:
    members = [Member(name, ["worker"]) for name in ("rollout", "engine", "trainer")]
    told = with_metrics(members, "0.0.0.0:9464")
    assert [member.arguments for member in told] == [
        ["worker", "--metrics-address", "0.0.0.0:9466"],
        ["worker"],
        ["worker", "--metrics-address", "0.0.0.0:9464"],
    ]
    for address in ("9464:", "127.0.0.1", "127.0.0.1:65533", "127.0.0.1:x"):
        with pytest.raises(ConfigError, match="METRICS_ADDRESS"):
            with_metrics(members, address)
