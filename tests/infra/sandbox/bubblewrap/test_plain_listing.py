"""One listing by git in place of three gives the same patch, and is taken for plain files alone."""

import pytest

from infra.sandbox.bubblewrap import backend as bwrap_backend
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import SandboxSpec
from mainspring.ids import SandboxId

FILES = {
    "README.md": "one\ntwo\n",
    "pkg/calc.py": "def add(a, b):\n    return a - b\n",
    "pkg/deep/data.bin": "\0\1\2" * 100,
    "dos.txt": "one\r\ntwo\r\n",
    "letters.txt": "\u0434\u0435\u0436" * 9,
    "tool.sh": "#!/bin/sh\n",
}
COMMIT = "git add -A; git commit -qm more"
PLAIN = [
    "true",
    "echo three >> README.md; echo new > new; mkdir -p a/b; echo deep > a/b/c",
    "rm -r pkg; chmod +x tool.sh; touch dos.txt",
    "mv pkg/calc.py moved.py; printf 'two\\none\\n' > README.md",
    "rm README.md; ln -s tool.sh README.md; ln -s nowhere link; rm -r pkg; ln -s tool.sh pkg",
    "mkdir -p node_modules/m build/lib/x; echo 1 > node_modules/m/i.js; echo 2 > build/lib/x/y",
    "printf odd > $'a\\nb'; printf odd > $'\\xff'; printf odd > -; printf odd > '*'",
    f"echo more >> README.md; {COMMIT}; echo more >> README.md; git stash -q",
    "rm -rf .git",
    "git config core.sparseCheckout true; git sparse-checkout set pkg",
    "head -c 9000000 /dev/zero > README.md; head -c 9000000 /dev/zero > new",
    "for i in {1..700}; do echo $i > $i; done",
]
OTHERS = [
    "echo '*.log' > .gitignore; echo 1 > x.log; echo 2 > y",
    "mkdir -p a/b; echo q > a/b/.gitignore; echo 1 > a/b/q; echo 2 > a/b/r",
    "mkdir .pytest_cache; echo '*' > .pytest_cache/.gitignore; echo 1 > .pytest_cache/x",
    "echo '* text=auto' > .gitattributes; sed -i s/two/2/ dos.txt",
    "echo '*.txt working-tree-encoding=UTF-16LE' > .gitattributes; touch -r letters.txt /tmp/time;"
    "iconv -t UTF-16LE letters.txt > /tmp/16; cat /tmp/16 > letters.txt",
    f"mkdir inner; cd inner; git init -q .; echo 1 > x; {COMMIT}; echo 2 > y",
    f"rm README.md; mkdir README.md; cd README.md; git init -q .; echo 1 > x; {COMMIT}",
    "rm README.md; mkdir README.md; echo 1 > README.md/x",
    "rm README.md; mkfifo README.md; mkfifo new",
    "mv pkg moved; ln -s moved pkg",
    "cp -a pkg copy; rm -r pkg/deep; ln -s ../copy/deep pkg/deep",
    "chmod 000 README.md; echo more >> dos.txt; chmod 000 dos.txt; echo new > new; chmod 000 new",
    "chmod 000 pkg; echo more >> README.md",
    "mkdir new; echo 1 > new/x; chmod 300 new",
    "for i in {1..1100}; do echo $i > $i; done",
]


@pytest.mark.parametrize("script", PLAIN + OTHERS)
async def test_the_patch_is_the_same(tmp_path, monkeypatch, script):
    backend = BwrapBackend(tmp_path)
    told: list[tuple[bytes, str]] = []
    for name in ("short", "long"):
        if name == "long":
            monkeypatch.setattr(bwrap_backend, "has_rules", lambda files: True)
        sandbox = await backend.open(SandboxSpec(SandboxId(name), "/testbed", files=FILES))
        try:
            await sandbox.run("t", script, 30)
            told.append((await sandbox.diff(), await sandbox.left_out()))
            # Where the long way keeps what git says.
            shown = await sandbox.run("then", "ls /run/mainspring/run", 30)
            is_long = b"refusals" in shown.output
            assert is_long == (name == "long" or script in OTHERS)
        finally:
            await sandbox.close()
    assert told[0] == told[1]
