"""The client of a reproducible campaign gives weights to engines of equal bits alone."""

from pathlib import Path

import pytest

from infra.policy.engines.client import EngineClient
from infra.policy.engines.engine_weights import SameBits
from infra.policy.protocol import NotReproducible
from infra.policy.weight_label import WeightLabel
from mainspring.status.fates import Fate, rule_of
from tests.infra.policy.engines import serving
from tests.infra.policy.tiny_model import save_tiny_model


async def test_an_engine_that_is_not_reproducible_gets_no_weights(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model", max_length=64)
    with serving(model, reproducible=True) as fit, serving(model) as usual:
        async with EngineClient([fit, usual], reproducible=True) as client:
            assert await client.reconcile(fit, model, WeightLabel(1))
            with pytest.raises(NotReproducible, match=f"{usual} gives replies that") as caught:
                await client.reconcile(usual, model, WeightLabel(1))
            assert await client.served_version(usual) == 0
        async with EngineClient([usual]) as client:
            assert await client.reconcile(usual, model, WeightLabel(1))
    assert rule_of(caught.value.fault).fate is Fate.END


def test_engines_on_two_kinds_of_machine_are_refused() -> None:
    one, other = (
        {"reproducible": True, "stamp": {"cpu": cpu}} for cpu in ("Intel-avx512", "AMD-avx2")
    )
    same = SameBits()
    same.check("http://a", one)
    same.check("http://b", one)
    with pytest.raises(NotReproducible, match=r"http://a and http://c .*Intel.* and .*AMD"):
        same.check("http://c", other)
