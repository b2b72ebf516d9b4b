"""Write a parquet file in verl's columns: sums in the form of GSM8K.

python examples/verl-rows/write_rows.py FILE
"""

import sys

import pyarrow
import pyarrow.parquet

INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'


def row(index: int, split: str) -> dict[str, object]:
    pairs, price = 3 + index, 2 + index % 4
    question = (
        f"A shop sells {pairs} pairs of socks at {price} dollars a pair. What are they worth?"
    )
    return {
        "data_source": "example/sums",
        "prompt": [{"role": "user", "content": f"{question} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(pairs * price)},
        "extra_info": {"split": split, "index": index, "question": question},
        "agent_name": "single_turn_agent",
    }


if __name__ == "__main__":
    rows = [row(index, "train" if index < 6 else "test") for index in range(8)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sys.argv[1])
