"""Compares how tests ended with what a row expects. Its text is a part of stored tasks: keep it."""

import json, re, sys
expected = json.loads(sys.argv[1])
log = re.sub(r"\x1b\[[0-9;]*m", "", sys.stdin.read())
sys.stdout.write(log)
found = {}
for line in log.partition("short test summary info")[2].splitlines():
    ended, _, test = line.partition(" ")
    if ended in ("PASSED", "FAILED", "ERROR") and "::" in test:
        found[".".join(test.split(" - ")[0].split("::")[1:])] = ended
wrong = {test for test in {*expected, *found} if expected.get(test) != found.get(test)}
print("ended otherwise than expected:", len(wrong), *sorted(wrong)[:20])
sys.exit(bool(wrong))
