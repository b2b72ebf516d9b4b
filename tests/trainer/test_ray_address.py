"""A Ray cluster at an address that does not answer, or refuses, is told in one sentence."""

import pytest
import ray

from mainspring.training.training_faults import DeviceMissing, TrainerLost
from trainer.process import ray_cluster
from trainer.process.ray_cluster import RayCluster


@pytest.fixture(autouse=True)
def not_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file of this test process may have connected it to Ray."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)


def test_an_address_where_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "ANSWER_S", 0.0)
    for address in ("127.0.0.1:9", "ray://127.0.0.1:9"):
        with pytest.raises(TrainerLost) as lost:
            RayCluster(address).connect("far")
        assert f"campaign far: no Ray cluster answers at {address}" in str(lost.value)
        assert "MAINSPRING_RAY_ADDRESS" in str(lost.value) and lost.value.remedy


def test_a_cluster_that_refuses_is_told_by_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that wants a token, or runs another version of Ray."""

    def refuse(**options: object) -> None:
        raise RuntimeError("Traceback (most recent call last):\n  File ...\nVersion mismatch: 2.9")

    monkeypatch.setattr(ray, "init", refuse)
    cluster = RayCluster("auto")
    for _ in range(2):
        with pytest.raises(DeviceMissing) as missing:
            cluster.connect("far")
        assert "refused the trainer: Version mismatch: 2.9\n" in str(missing.value)
    cluster.shutdown()
