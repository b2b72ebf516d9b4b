"""Compares how tests ended with what a row expects, as the data set does. Its text is a part of
stored tasks: keep it.

The data set's expectations were made by its own reading of a log, which takes any line that has a
status in it for a test. The log is read the same way here, or honest results would differ.
"""

import json
import re
import sys

with open(3) as file:
    expected = json.load(file)
log = sys.stdin.buffer.read().decode(errors="replace")
log = re.sub(r"\x1b\[[0-9;]*m|\r", "", log)
sys.stdout.buffer.write(log.encode())
found = {}
_, *summaries = log.split("short test summary info")
for line in summaries[0].strip().split("\n") if summaries else ():
    test = ".".join(line.split("::")[1:])
    if "PASSED" in line:
        found[test] = "PASSED"
    elif "FAILED" in line or "ERROR" in line:
        found[test.split(" - ")[0]] = "FAILED" if "FAILED" in line else "ERROR"
found = {test.split(" - ")[0]: found[test] for test in sorted(found)}
wrong = {test for test in {*expected, *found} if expected.get(test) != found.get(test)}
same = len(expected) == len(found) and not any(test in found for test in wrong if test)
print("ended otherwise than expected:", 0 if same else len(wrong), *sorted(wrong)[:20])
sys.exit(not same)
