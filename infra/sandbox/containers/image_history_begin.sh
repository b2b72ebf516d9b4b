# Begins each program of image_history and image_edit. Set before it: workdir.
# shellcheck shell=bash disable=SC2034,SC2154

export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
export GIT_NO_REPLACE_OBJECTS=1 GIT_OPTIONAL_LOCKS=0 LC_ALL=C
# shellcheck disable=SC2015 # either failure means the same
cd -- "$workdir" && head=$(git rev-parse -q --verify 'HEAD^{commit}') || {
  echo "history: absent"
  exit
}
git_dir=$(git rev-parse --absolute-git-dir)
shared=$(cd -- "$(git rev-parse --git-common-dir)" && pwd)
