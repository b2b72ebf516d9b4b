# Whether a repository holds more than HEAD's history. After image_history_begin.sh.
# shellcheck shell=bash disable=SC2154

set -o pipefail
work=$(mktemp -d) || exit
trap 'rm -rf "$work"' EXIT
beyond() { [[ $(comm -23 "$1" "$2") ]] && echo "history: dirty" && exit; }
# Tags of earlier releases stay: programs read their version there.
git for-each-ref --format='%(objectname)' | sort -u >"$work/refs" &&
  git for-each-ref --merged "$head" --format='%(objectname)' | sort -u >"$work/merged" || exit
beyond "$work/refs" "$work/merged"
git rev-list --objects --indexed-objects --missing=allow-any "$head" --stdin <"$work/merged" |
  cut -d' ' -f1 | sort -u >"$work/reachable" &&
  git cat-file --batch-all-objects --batch-check='%(objectname)' | sort -u >"$work/all" || exit
beyond "$work/all" "$work/reachable"
# Reflogs, and what was fetched or merged last: commits that are gone still have a message there.
for place in "$git_dir" "$shared"; do
  grep -rhoE '[0-9a-f]{40,64}' "$place"/logs "$place"/*_HEAD 2>/dev/null
done | grep -v '^0*$' | sort -u >"$work/told"
beyond "$work/told" "$work/reachable"
echo "history: clean"
