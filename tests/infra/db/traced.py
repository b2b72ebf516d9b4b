"""Memory that objects take, as Python's allocator has it."""

import pickle
import tracemalloc


def memory_of(kept: object) -> int:
    """Bytes of a copy of `kept` with all that it holds; what it holds twice counts once."""
    written = pickle.dumps(kept)
    tracemalloc.start()
    try:
        copy = pickle.loads(written)
        taken, _ = tracemalloc.get_traced_memory()
        assert copy is not None
        return taken
    finally:
        tracemalloc.stop()
