"""A step's figures over ranks and by the store's clock; peaks of GPUs by name."""

from dataclasses import replace

import pytest

from mainspring.planning.gpu_peaks import peak_tflops
from mainspring.training.step_metrics import StepClock, StepMetrics, of_all_ranks

METRICS = StepMetrics(
    loss=0.5,
    grad_norm=1.0,
    entropy=0.3,
    ratio_mean=1.0,
    kl=0.0,
    kl_k1=0.0,
    num_tokens=200,
    num_samples=4,
    lr=1e-3,
    logprob_gap_max=None,
    logprob_gap_mean=None,
    logprob_gap_p999=None,
    logprob_gap_k3=None,
    num_gap_tokens=0,
    seconds=2.0,
    num_trained_tokens=1000,
    flops=4e12,
    peak_flops=1e13,
    rank_memory_peak_gib=3.0,
)


def test_ranks_add_up_their_peaks_and_the_largest_memory_counts() -> None:
    found = of_all_ranks([METRICS, replace(METRICS, rank_memory_peak_gib=5.0)])
    assert found.rank_memory_peak_gib == 5.0 and found.peak_flops == 2e13
    assert found.mfu == pytest.approx(4e12 / (2.0 * 2e13))
    unknown = of_all_ranks([METRICS, replace(METRICS, peak_flops=None)])
    assert unknown.mfu is None
    assert of_all_ranks([replace(METRICS, rank_memory_peak_gib=None)]).rank_memory_peak_gib is None


def test_goodput_is_of_the_whole_loop() -> None:
    assert StepClock(30.0, 50.0, 5.0, 400.0).figures(200) == {
        "trainer_idle_s": 30.0,
        "engine_idle_s": 5.0,
        "engine_requests_mean": 8.0,
        "goodput": 4.0,
    }
    assert METRICS.figures["tokens_per_s"] == 500.0
    unknown = StepClock(0.0, 0.0, 0.0, 0.0).figures(200)
    assert unknown["goodput"] is None and unknown["engine_requests_mean"] is None


@pytest.mark.parametrize(
    ("name", "bfloat16", "float32"),
    [
        ("NVIDIA H100 80GB HBM3", 989.0, 67.0),
        ("NVIDIA A100-SXM4-80GB", 312.0, 19.5),
        ("NVIDIA A100-PCIE-40GB", 312.0, 19.5),
        ("NVIDIA L40S", 362.0, 91.6),
        ("NVIDIA L4", 121.0, 30.3),
        ("NVIDIA GeForce RTX 4090", 165.0, 82.6),
        ("NVIDIA H100 PCIe", None, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None, None),
        ("NVIDIA L40", None, None),
        ("NVIDIA A10G", None, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
        ("AMD Instinct MI300X", None, None),
    ],
)
def test_a_peak_is_known_or_none(name: str, bfloat16: float, float32: float) -> None:
    assert (peak_tflops(name, is_half=True), peak_tflops(name, is_half=False)) == (
        bfloat16,
        float32,
    )
