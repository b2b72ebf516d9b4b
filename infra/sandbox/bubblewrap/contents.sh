# Tells which programs a sandbox without an image has, one a line.
# shellcheck shell=bash
printf 'python %s
' "$(command -v python3)"
python3 -c 'import sys; print("version", sys.version.split()[0]); print("prefix", sys.base_prefix)'
printf 'git %s
' "$(git --version)"
python3 -c 'import pytest; print("pytest", pytest.__version__)' 2>/dev/null || echo pytest
for tool in gcc make node go cargo java; do command -v $tool >/dev/null && echo tool $tool; done
true
