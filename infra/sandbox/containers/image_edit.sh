# Alters a task's image. Before it: `set -e`, patch, absent, what image_history_begin.sh sets, whose
# directory is the task's: paths of the patch and of what is absent count from there.
# shellcheck shell=bash disable=SC2154,SC2164

below=$(git rev-parse --show-prefix)
owner=$(stat -c %u:%g .)
before=$(git write-tree)
if [[ -e $patch ]]; then
  git apply --cached --directory="$below" --whitespace=nowarn "$patch"
  git apply --directory="$below" --whitespace=nowarn "$patch"
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
  cd -- "$(git rev-parse --show-toplevel)"
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
