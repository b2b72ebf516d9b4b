"""What is done to a task's image before anyone begins: a patch applied, files taken away.

The repository's history up to then would tell what was done, and goes: one commit remains, the same
on every node. Pure; the image itself is made in `sealing`. Imported by it, by `protocol` and by who
makes a SandboxSpec.
"""

import shlex
from dataclasses import dataclass

from infra.sandbox.archive import tar_of

PATCH_FILE = "mainspring-base.patch"
ALTERED = "image: altered"

_SCRIPT = r"""
cd -- "$(git rev-parse --show-toplevel)"
owner=$(stat -c %u:%g .)
before=$(git write-tree)
if [[ -e $patch ]]; then
  git apply --cached --whitespace=nowarn "$patch"
  git apply --whitespace=nowarn "$patch"
  rm -f "$patch"
fi
if ((${#absent[@]})); then
  for path in "${absent[@]}"; do
    [[ $path == /* ]] || git rm -r -q --cached --ignore-unmatch -- "$path"
  done
  rm -rf -- "${absent[@]}"
  for path in "${absent[@]}"; do
    [[ $path == /* ]] || rmdir -p -- "$(dirname -- "$path")" 2>/dev/null || true
  done
fi
after=$(git write-tree)
if [[ $after != "$before" ]]; then
  git diff-tree -r -z --name-only --no-renames "$before" "$after" |
    while IFS= read -r -d '' path; do
      # Bytecode would tell what the file was.
      stem=${path##*/}
      folder=${path%"$stem"}
      rm -f -- "${folder:-./}__pycache__/${stem%.py}".*.pyc
      [[ ! -e $path ]] || chown -h "$owner" -- "$path"
    done
  export GIT_AUTHOR_NAME=base GIT_AUTHOR_EMAIL=base GIT_COMMITTER_NAME=base
  export GIT_COMMITTER_EMAIL=base
  GIT_AUTHOR_DATE=$(git show -s --format=%cI "$head")
  export GIT_AUTHOR_DATE GIT_COMMITTER_DATE=$GIT_AUTHOR_DATE
  git update-ref HEAD "$(git commit-tree -m base "$after")"
  git update-index -q --refresh || true
fi
"""


@dataclass(frozen=True, slots=True)
class Alteration:
    patch: str = ""
    """For `git apply` at the top of the repository."""
    absent_files: tuple[str, ...] = ()
    """Files and directories to take away: relative to the repository, or absolute."""

    def __bool__(self) -> bool:
        return bool(self.patch or self.absent_files)

    def script(self) -> str:
        """Bash, after what sets `head`, in a container that holds `archive` at its root. It ends
        with ALTERED where all went well."""
        return (
            f"set -e -o pipefail\npatch=/{PATCH_FILE}\n"
            f"absent=({shlex.join(self.absent_files)})\n{_SCRIPT}echo {shlex.quote(ALTERED)}\n"
        )

    def archive(self) -> bytes:
        """A tar of PATCH_FILE, where there is a patch."""
        patch = self.patch.encode(errors="surrogateescape")
        return tar_of({PATCH_FILE: patch} if patch else {}, 0o644)


NO_ALTERATION = Alteration()
