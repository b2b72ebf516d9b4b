import pytest
import torch

from bundled.muon import orthogonalize
from mainspring.config.training.optimizer import OptimizerConfig, OptimizerName
from mainspring.config.training.parallel import Device, ParallelConfig
from tests.trainer.shards import hf_to_mcore, load, mcore_to_hf
from trainer.engines.optimizer import PolicyOptimizer
from trainer.model.policy_model import build_model

ON_CPU = ParallelConfig(device=Device.CPU)
LR = 0.02


@pytest.mark.parametrize("family", ["qwen3", "qwen2"])
def test_muon_steps_the_matrices_hugging_face_has(family, make_model, alone):
    """Equal gradients give torch's own weights, up to its bfloat16, over steps sharing momentum."""
    reference, _ = make_model(family)
    hf = reference.config
    model = build_model(hf, ON_CPU, alone)
    weights = {name: p.detach().clone() for name, p in reference.named_parameters()}
    load(model, weights, hf)
    config = OptimizerConfig(
        name=OptimizerName.MUON, lr=1e-3, muon_lr=LR, weight_decay=0.1, max_grad_norm=1e9
    )
    ours = PolicyOptimizer(model, hf, config, alone)
    named = list(reference.named_parameters())
    hidden = [p for n, p in named if p.ndim == 2 and "embed" not in n]
    names_of_matrices = {n for n, p in named if p.ndim == 2 and "embed" not in n}
    rest = [p for n, p in named if p.ndim != 2 or "embed" in n]
    theirs = [
        torch.optim.Muon(hidden, lr=LR, momentum=0.9, weight_decay=0.1),
        torch.optim.AdamW(rest, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1),
    ]
    names = [name for name, _ in model.named_parameters()]
    torch.manual_seed(1)
    for _ in range(3):
        grads = {name: torch.randn_like(p) for name, p in named}
        for name, p in named:
            p.grad = grads[name].clone()
        for name, grad in hf_to_mcore(grads, hf, names).items():
            model.get_parameter(name).grad = grad
        norm = ours.reduce_and_clip()
        assert norm == pytest.approx(sum(float(g.square().sum()) for g in grads.values()) ** 0.5)
        ours.step(1.0)
        for optimizer in theirs:
            optimizer.step()
    found = mcore_to_hf([{n: p.detach() for n, p in model.named_parameters()}], hf)
    for name, expected in named:
        if name in names_of_matrices:
            # An update's entries are about LR; torch computes them with 8 bits of mantissa.
            torch.testing.assert_close(found[name], expected, rtol=0.0, atol=0.03 * LR)
        else:
            assert torch.equal(found[name], expected), name


def test_orthogonalize_brings_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((3, 8, 20), (2, 20, 8)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
        assert float(values.min()) > 0.5 and float(values.max()) < 1.5


def test_clipping_scales_to_the_norm(make_model, alone):
    reference, _ = make_model("qwen3")
    model = build_model(reference.config, ON_CPU, alone)
    optimizer = PolicyOptimizer(model, reference.config, OptimizerConfig(max_grad_norm=0.25), alone)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    num_weights = sum(p.numel() for p in model.parameters())
    assert optimizer.reduce_and_clip() == pytest.approx(num_weights**0.5, rel=1e-5)
    assert optimizer.reduce_and_clip() == pytest.approx(0.25, rel=1e-4)
