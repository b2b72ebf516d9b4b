"""Sizes of models that people plan with before they have them: config.json of each, in a folder of
the model's name. Pure data; imported by `campaign plan` and tests.
"""

from pathlib import Path

MODELS = Path(__file__).parent


def known_model(name: str) -> Path | None:
    """The folder of a model that is called by its path or by its name on the Hugging Face hub."""
    folder = MODELS / Path(name).name.lower()
    return folder if Path(name).name and (folder / "config.json").is_file() else None


def known_names() -> list[str]:
    return sorted(folder.parent.name for folder in MODELS.glob("*/config.json"))
