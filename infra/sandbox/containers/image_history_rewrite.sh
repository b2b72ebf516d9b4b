# Takes away what lies beyond HEAD. After image_history_begin.sh.
# shellcheck shell=bash disable=SC2154

set -e -o pipefail
owner=$(stat -c %u:%g "$shared/HEAD")
merged=$(mktemp)
git for-each-ref --merged "$head" --format='%(refname)' | sort >"$merged"
git for-each-ref --format='%(refname)' | sort | comm -23 - "$merged" | sed 's/^/delete /' |
  git update-ref --no-deref --stdin
for remote in $(git remote); do git remote remove "$remote"; done
for place in "$git_dir" "$shared"; do
  rm -rf "$place"/logs "$place"/*_HEAD "$place"/*_*MSG "$place"/AUTO_MERGE "$place"/rebase-*
done
rm -rf "$shared"/objects/pack/*.keep "$shared"/objects/info/commit-graph*
git -c pack.threads=1 repack -a -d -q
rm -f "$merged" "$shared"/objects/info/alternates "$shared"/objects/pack/tmp_*
git prune --expire=now
[[ $(git rev-parse HEAD) == "$head" ]]
if [[ $owner != 0:0 ]]; then find "$shared" -user 0 -exec chown -h "$owner" {} +; fi
