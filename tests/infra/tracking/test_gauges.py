"""The newest figures as Prometheus reads them, at the address of Temporal's SDK."""

import re
import socket

import httpx
import pytest

from infra.temporal.log import runtime
from infra.tracking.gauges import Gauges
from mainspring.errors import ConfigError
from mainspring.ids import CampaignId
from tests.infra.tracking.tracked import evaluation, step
from tests.processes import free_address


def test_prometheus_reads_the_newest_step_and_evaluation() -> None:
    address = free_address()
    gauges = Gauges(runtime(address).metric_meter, CampaignId("first"))
    assert gauges.open() == set()
    gauges.send([step(1), evaluation(1), step(2)])
    text = httpx.get(f"http://{address}/metrics").text
    found = dict(re.findall(r"^(mainspring_\S*?\{.*?\}) (\S+)$", text, re.MULTILINE))

    def value(name: str, *labels: str) -> float:
        [number] = [
            number
            for key, number in found.items()
            if key.startswith(f"mainspring_{name}{{") and all(label in key for label in labels)
        ]
        return float(number)

    assert value("loss", 'campaign="first"') == 1.0
    assert value("policy_version") == 2
    assert value("reward_part", 'part="own:small"') == 1.0
    assert value("mfu") != value("mfu"), "what was not measured is NaN"
    evaluated = ('split="heldout"', 'sampling="sampled"')
    assert value("evaluation_resolve_rate", *evaluated) == 1.0
    assert value("evaluation_policy_version", *evaluated) == 1


def test_an_address_that_cannot_be_used_is_named() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        taken = f"127.0.0.1:{listening.getsockname()[1]}"
        for address in (taken, "no address"):
            with pytest.raises(ConfigError, match=f"MAINSPRING_METRICS_ADDRESS = '{address}'"):
                runtime(address)
