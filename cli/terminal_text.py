"""What models and commands wrote, without what would steer a terminal. Imported by screens."""

import re

_CONTROLS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def plain(text: str) -> str:
    return _CONTROLS.sub("", text)
