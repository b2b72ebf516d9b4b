"""Reading of a verifier's reward file: one number, from reward.txt or reward.json. Pure.

As in Harbor, reward.txt (a number) goes before reward.json (a number, or an object of numbers). Of
an object the entry "reward" counts, else the mean of all. Imported by grading.
"""

import json
import math
from statistics import fmean

FOLDER = "/logs/verifier"
FILES = ("reward.txt", "reward.json")
"""The first one there counts."""


def parse_reward(name: str, text: str) -> float:
    """Raises ValueError with what is wrong with the file `name`."""
    try:
        value = float(text) if name.endswith(".txt") else json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{name} holds {text.strip()[:80]!r}, not a reward") from None
    if isinstance(value, dict):
        if not value:
            raise ValueError(f"{name} is empty")
        numbers = {str(key): _number(f"{key!r} of {name}", entry) for key, entry in value.items()}
        return numbers["reward"] if "reward" in numbers else fmean(numbers.values())
    return _number(name, value)


def _number(what: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise ValueError(f"{what} is {str(value)[:80]}, not a finite number")
