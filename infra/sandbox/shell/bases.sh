# What a sandbox began with, as git trees that the agent does not use. Read after shell.sh.
# shellcheck shell=bash disable=SC2034,SC2154 # variables of shell.sh and patch.sh
# A base is a repository of ours beside a work tree: the task's own, and one for each repository inside
# it that was there from the start (submodules). Invariant: nothing that the agent configures, in its
# repository, its home or its variables, changes what git does here.

base_repos=() base_trees=() base_commits=() # of each base: repository, work tree, tree of its start
in_place=''
has_index='' # the host has made the index of the next patch
new_objects='' # where git writes objects if the repository of the base is read-only
below='' # from the top of the task's repository to WORKDIR, with a slash at its end
declare -A left=() num_left=() # by reason: names of what is not in a patch, and how many
readonly MAX_BASES=100

# Set by the caller: repo, tree, index; and no variables for git, which starts without a shell of its
# own: a patch takes some calls, of a millisecond each. With `in_place` git takes the place of the shell
# that calls it, for < <( ), which has one of its own.
base_git() {
  GIT_DIR=$repo GIT_WORK_TREE=$tree GIT_INDEX_FILE=${index:-$repo/index} \
    GIT_OBJECT_DIRECTORY=${new_objects:-$repo/objects} \
    GIT_ALTERNATE_OBJECT_DIRECTORIES=${new_objects:+$repo/objects} HOME=/dev/null \
    XDG_CONFIG_HOME=/dev/null GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 \
    GIT_ATTR_NOSYSTEM=1 GIT_LITERAL_PATHSPECS=1 GIT_OPTIONAL_LOCKS=0 GIT_NO_REPLACE_OBJECTS=1 \
    $in_place git -c core.excludesFile=/dev/null -c core.attributesFile=/dev/null -c core.fsmonitor=false \
    -c core.untrackedCache=false -c gc.auto=0 "$@"
}

# The image's own git in the current directory.
image_git() ( unset "${!GIT_@}"; exec git -c safe.directory='*' -c core.fsmonitor=false "$@" )

# The image's variables for git are its commands' alone.
without_variables() { # function
  local name saved=()
  for name in "${!GIT_@}"; do
    saved+=("$name=${!name}")
    unset "$name"
  done
  "$1"
  local status=$?
  for name in "${saved[@]}"; do export "${name?}"; done
  return "$status"
}

# What an image's working tree holds now is the base, in its repository's words where it has one.
adopt_repository() {
  local top i
  cd -- "$WORKDIR" || return
  top=$(image_git rev-parse --show-toplevel) && below=$(image_git rev-parse --show-prefix)
  # Docker makes a directory that is not there: an empty one was not meant.
  [[ $top || $(ls -A) ]] || return
  local queue=("${top:-$(pwd -P)}")
  for ((i = 0; i < ${#queue[@]} && i < MAX_BASES; i++)); do
    adopt "${queue[i]}" || ((i)) || return
  done
  cd /
}

# Makes the next base of the files at `tree`; the repositories inside it join the queue. Where the task
# is a part of a repository only that part counts: above it is the history alone.
adopt() { # tree
  local tree=$1 repo=$RUN/base index='' start=$1 git_dir entry commit links=() format=()
  ((${#base_repos[@]})) && repo+=.${#base_repos[@]} || start=$tree/$below
  cd -- "$tree" || return
  git_dir=$(image_git rev-parse --git-dir) && git_dir=$(cd "$git_dir" && pwd)
  [[ $(image_git rev-parse --show-object-format) != sha256 ]] || format=(--object-format=sha256)
  (cd / && base_git init -q "${format[@]}") || return
  [[ ! $git_dir ]] || copy_repository
  if ! { base_git add -u --ignore-errors . && cd -- "$start" && base_git add -A --ignore-errors .; }; then
    take_all
  fi
  cd -- "$tree" || return
  while IFS= read -r -d '' entry; do
    [[ $entry != 160000\ * ]] || links+=("${entry#*$'\t'}")
  done < <(base_git ls-files -s -z)
  ((${#links[@]} == 0)) || printf '%s\0' "${links[@]}" | base_git update-index --force-remove -z --stdin
  while IFS= read -r -d '' entry; do
    # One that is there from the start is a base of its own.
    [[ $entry != */ || ! -e $tree/$entry.git ]] || queue+=("$tree/${entry%/}")
  done < <(cd -- "$start" && base_git ls-files --full-name -o --exclude-standard -z)
  note_ignored
  commit=$(base_git write-tree --missing-ok) || return
  base_repos+=("$repo") base_trees+=("$tree") base_commits+=("$commit")
}

# The image's index spares hashing every file. Not its marks of files that git is not to look at.
copy_repository() {
  local common key value hidden=()
  common=$(cd "$(image_git rev-parse --git-common-dir)" && pwd)
  echo "$common/objects" >"$repo/objects/info/alternates"
  for key in core.autocrlf core.eol; do
    value=$(image_git config "$key") && base_git config "$key" "$value"
  done
  # With its time, as a patch copies ours.
  cp -p "$git_dir/index" "$repo/index" || return 0 # nothing is committed or added yet
  cp "$git_dir"/sharedindex.* "$repo/"
  local text path
  text=$'\n'$(base_git ls-files -v) || { rm -f "$repo/index"; return 0; }
  [[ $text == *$'\n'[a-zS]\ * ]] || return 0
  while IFS= read -r -d '' path; do
    [[ $path != [a-zS]\ * ]] || hidden+=("${path:2}")
  done < <(base_git ls-files -v -z)
  for key in no-assume-unchanged no-skip-worktree; do
    printf '%s\0' "${hidden[@]}" | base_git update-index "--$key" -z --stdin
  done
}

# A later patch may add what is new among the ignored, but not what was there.
note_ignored() {
  local entry
  declare -A matched=()
  (cd -- "$start" && base_git ls-files --full-name -o -i --exclude-standard --directory -z) >"$RUN/entries"
  base_git check-ignore -z --stdin <"$RUN/entries" >"$repo/ignored"
  while IFS= read -r -d '' entry; do matched[$entry]=1; done <"$repo/ignored"
  while IFS= read -r -d '' entry; do
    # A folder that no rule names, with nothing in it but ignored files.
    [[ $entry != */ || ${matched[$entry]-} ]] ||
      base_git ls-files -o -i --exclude-standard -z -- "$entry" >>"$repo/ignored"
  done <"$RUN/entries"
}

# As `git add -A`, where that dies.
take_all() {
  local path paths=()
  cd -- "$tree" || return
  while IFS= read -r -d '' path; do
    [[ $path == */ ]] || paths+=("$path")
  done < <(cd -- "$start" && base_git ls-files --full-name -m -o --exclude-standard -z)
  add_paths "${paths[@]}"
}

# A few short names are arguments, which saves starting a process.
update_index() { # path...
  local names=$*
  if ((${#names} < 20000)); then
    base_git update-index --add --remove --replace -- "$@"
  else
    base_git update-index --add --remove --replace -z --stdin < <(printf '%s\0' "$@")
  fi
}

# Puts files into the index as `git add` does. What git refuses, for what its attributes ask, goes in
# byte for byte.
add_paths() { # path...
  local line
  (($#)) || return 0
  if update_index "$@" 2>"$RUN/refused"; then
    while IFS= read -r line; do # names that could be taken for .git elsewhere
      [[ $line != 'Ignoring path '* ]] || leave 'git refuses its name' "${line#Ignoring path }"
    done <"$RUN/refused"
    return
  fi
  rm -f "${index:-$repo/index}.lock"
  if (($# > 1)); then
    local half=$(($# / 2))
    add_paths "${@:1:half}"
    add_paths "${@:half+1}"
    return
  fi
  local blob mode=100644 reason
  if [[ -f $1 && ! -L $1 ]] && blob=$(base_git hash-object -w --no-filters -- "$1"); then
    [[ ! -x $1 ]] || mode=100755
    base_git update-index --add --replace --cacheinfo "$mode" "$blob" "$1" 2>"$RUN/refused" && return
  fi
  IFS= read -r reason <"$RUN/refused"
  leave "git refuses it (${reason:-no reason given})" "$1"
}
