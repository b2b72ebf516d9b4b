"""Two campaigns are compared: the first thing in which they differ is named."""

from mainspring.artifacts.reproducibility import (
    CampaignFingerprint,
    Cause,
    Deviation,
    StepFingerprint,
)


def step(number: int, **changed: object) -> StepFingerprint:
    told = {
        "step": number,
        "batch": f"b{number}",
        "gradient": f"g{number}",
        "weights": f"w{number}",
    }
    return StepFingerprint.model_validate(told | changed)


def campaign(*steps: StepFingerprint, base: str = "w0", **changed: object) -> CampaignFingerprint:
    told = {"campaign": "a", "schedule": "reproducible", "weights": "w", "base_weights": base}
    return CampaignFingerprint.model_validate(
        told | {"steps": list(steps), "deviations": []} | changed
    )


def test_the_first_difference_is_named() -> None:
    mine = campaign(step(1), step(2))
    assert mine.difference(campaign(step(1), step(2), campaign="b")) is None
    assert mine.difference(campaign(step(1))) is None
    assert mine.difference(campaign(step(1), base="x")) == (
        "the weights before the first step: w0 and x"
    )
    for part in ("batch", "gradient", "weights"):
        told = mine.difference(campaign(step(1, **{part: "other"}), step(2, weights="too")))
        assert told is not None and told.startswith("step 1, its " + part), told
    missing = mine.difference(campaign(step(1, gradient=None), step(2)))
    assert missing == "step 1, its gradient: g1 and not recorded"


def test_the_first_call_that_differs_is_named() -> None:
    calls = {"0.0.0": "aa", "0.2.1": "bb", "0.10.0": "cc", "1.0.0": "dd"}
    mine = campaign(step(1, calls=calls))
    other = calls | {"0.2.1": "xx", "0.10.0": "yy"}
    assert mine.difference(campaign(step(1, batch="x", calls=other))) == (
        "step 1, its batch: place 0, rollout 2, call 1: bb and xx"
    )
    fewer = {name: digest for name, digest in calls.items() if name != "1.0.0"}
    told = mine.difference(campaign(step(1, batch="x", calls=fewer)))
    assert told is not None and "place 1, rollout 0, call 0: only one of the two" in told
    told = mine.difference(campaign(step(1, batch="x", calls=calls)))
    assert told is not None and "rewards or their order differ" in told


def test_a_deviation_ends_the_promise_from_its_step_on() -> None:
    found = [
        Deviation(step=4, cause=Cause.MASKED, group="g1", rollout="g1/0"),
        Deviation(step=2, cause=Cause.DISCARDED, group="g2"),
    ]
    assert campaign(step(1), deviations=found).not_reproducible_from == 2
    assert campaign(step(1)).not_reproducible_from is None
