"""A second game for the same server: mend one line of a file, with the words of the bundled model.

The bundled model knows three commands and no game: it reads a file, changes one text in it with
sed, and submits. Here nothing of that is run: the service holds the file and knows these commands.
The score is 1 when the file is as it was before its bug, at the end; a number is a task of the
generator.
"""

import argparse
import random
import re

from service import serve

from bundled.bugs import Edit
from bundled.generator import draw_instance

SED = re.compile(r"sed -i 's/((?:\\.|[^/\\])+)/((?:\\.|[^/\\])*)/' (\S+)")


class Repair:
    def reset(self, number: int) -> str:
        instance = draw_instance(random.Random(f"repair/{number}"), "train", f"repair-{number}")
        self.name = instance.module
        self.code = instance.task.files[self.name]
        self.mended = instance.fix.apply(self.code)
        return instance.task.issue

    def step(self, action: str) -> tuple[str, float, bool]:
        if action == f"cat {self.name}":
            return self.code, 0.0, False
        edit = SED.fullmatch(action)
        if edit is not None and edit[3] == self.name:
            old, new = (re.sub(r"\\(.)", r"\1", text) for text in edit.groups()[:2])
            self.code = Edit(old, new).apply(self.code)
            return "", 0.0, False
        if action.startswith("echo COMPLETE_TASK"):
            return "", float(self.code == self.mended), True
        return "That is no command here.", 0.0, False


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    serve(Repair, parser.parse_args().port)
