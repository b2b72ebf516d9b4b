"""Lets Megatron-core's CUDA-only parts run on a CPU, for tests: `install` in a rank's own process.

Megatron 0.16.1 allocates buffers on "cuda", asks for the current device and compares type names;
here "cuda" means the CPU. Never imported by the product. `calls` counts what was needed, by the
module that needed it: a new version of Megatron that needs more fails with the name of the place.
"""

import sys
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
calls: Counter[str] = Counter()


def _note(what: str) -> None:
    frame = sys._getframe(2)
    while frame is not None and "megatron" not in frame.f_code.co_filename:
        frame = frame.f_back  # type: ignore[assignment]
    place = frame.f_globals.get("__name__", "?") if frame is not None else "?"
    calls[f"{what} <- {place}"] += 1


def _is_cuda(device: object) -> bool:
    return str(device).startswith("cuda")


class _CudaMeansCpu(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            _note("Tensor.cuda")
            return args[0]
        if func is torch.Tensor.type and len(args) == 1:
            _note("Tensor.type")
            return func(*args, **kwargs).replace("torch.", "torch.cuda.", 1)
        if _is_cuda(kwargs.get("device")):
            _note("device='cuda'")
            kwargs["device"] = CPU
        if kwargs.pop("pin_memory", False):
            _note("pin_memory")
        if func is torch.Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            _note("Tensor.to('cuda')")
            args = (args[0], CPU, *args[2:])
        return func(*args, **kwargs)


class _Stream:
    """Streams and events: each method answers the object itself."""

    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: self

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def install() -> None:
    """Before the model is built."""

    def noted(name: str, answer: Any) -> None:
        def replaced(*_: object, **__: object) -> Any:
            _note(f"torch.cuda.{name}")
            return answer() if callable(answer) else answer

        setattr(torch.cuda, name, replaced)

    stream = _Stream()
    noted("current_device", CPU)
    noted("synchronize", None)
    noted("empty_cache", None)
    noted("manual_seed", None)
    noted("get_rng_state", torch.get_rng_state)
    for name in ("current_stream", "default_stream", "stream"):
        noted(name, stream)
    torch.cuda.Stream = torch.cuda.Event = _Stream  # type: ignore[misc,assignment]

    from megatron.core import tensor_parallel
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()  # type: ignore[assignment]
    random._set_cuda_rng_state = lambda *_, **__: None  # type: ignore[assignment]
    exchange = dist.all_to_all_single

    def all_to_all_single(*given: Any, **sizes: Any) -> Any:
        for name in ("output_split_sizes", "input_split_sizes"):
            if sizes.get(name) is not None:
                sizes[name] = [int(size) for size in sizes[name]]
        return exchange(*given, **sizes)

    torch.distributed.all_to_all_single = all_to_all_single
    _CudaMeansCpu().__enter__()
    tensor_parallel.model_parallel_cuda_manual_seed(1)


def use_optimizer_with_fused_layout() -> None:
    """Megatron loads a distributed optimizer's checkpoint with Transformer Engine's Adam only."""
    import megatron.core.optimizer as optimizers
    import megatron.core.optimizer.distrib_optimizer as distributed

    optimizers.Adam = distributed.Adam = _FusedLayoutAdam  # type: ignore[assignment,misc]
    optimizers.USING_PYTORCH_OPTIMIZER = False
    distributed.HAVE_APEX_OR_TE = distributed.USING_TE_OPTIMIZER = True


class _FusedLayoutAdam(torch.optim.Optimizer):
    """AdamW whose number of steps is kept in the group, as in Transformer Engine's FusedAdam."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **_: object,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["step"] = number = group.get("step", 0) + 1
            decay1, decay2 = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["exp_avg"] = torch.zeros_like(weight)
                    state["exp_avg_sq"] = torch.zeros_like(weight)
                first, second = state["exp_avg"], state["exp_avg_sq"]
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                first.mul_(decay1).add_(weight.grad, alpha=1 - decay1)
                second.mul_(decay2).addcmul_(weight.grad, weight.grad, value=1 - decay2)
                scale = second.sqrt().div_((1 - decay2**number) ** 0.5).add_(group["eps"])
                weight.addcdiv_(first, scale, value=-group["lr"] / (1 - decay1**number))
