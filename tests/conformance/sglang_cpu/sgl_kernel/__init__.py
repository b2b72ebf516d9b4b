"""In the place of SGLang's kernels, which exist for GPUs alone.

SGLang imports them on a CPU as well, and computes with torch there (on one without AMX); the one
that it calls is written in torch here. So what runs is SGLang with its kernels left out.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__version__ = "0.4.10"


def _absent(name: str) -> Callable[..., Any]:
    def kernel(*args: object, **options: object) -> None:
        raise NotImplementedError(f"SGLang calls its kernel {name}, which is not here")

    kernel.__name__ = name
    return kernel


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)
    return _absent(name)


class _AbsentModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.startswith("sgl_kernel."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__path__ = []

        def attribute(name: str) -> Callable[..., Any]:
            if name.startswith("__"):
                raise AttributeError(name)
            return _absent(f"{spec.name}.{name}")

        module.__getattr__ = attribute  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None: ...


sys.meta_path.append(_AbsentModules())


def assign_req_to_token_pool_cpu(
    requests: Any, pool: Any, starts: Any, ends: Any, places: Any, pool_len: int | None = None
) -> None:
    """Writes where each request's new tokens are kept, one request after the other."""
    done = 0
    for n in range(len(requests)):
        start, end = int(starts[n]), int(ends[n])
        new = places[done : done + end - start]
        pool[int(requests[n]), start:end] = new.to(pool.dtype)
        done += end - start
