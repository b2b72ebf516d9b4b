# The patch of what commands changed, and what is not in it. Read after changes.sh.
# shellcheck shell=bash disable=SC2030,SC2031,SC2034,SC2153,SC2154 # all in one subshell
# Invariants: a patch is against the base, whatever the agent did with its repository; the same files
# give the same patch, and making one changes nothing but rights to read.

readonly NUM_NAMED=5 NAME_CHARS=100

patch() { # cpu_s max_bytes_of_a_file max_bytes
  # What commands left behind would write meanwhile, or leave git no process.
  end_others
  (
    exec </dev/null {silent}>&-
    eval "$LIMITS"
    ulimit -t "$1"
    unset "${!GIT_@}"
    [[ ! -e $RUN/left_out ]] || : >"$RUN/left_out"
    [[ -r $WORKDIR && -w $WORKDIR && -x $WORKDIR ]] || chmod u+rwx -- "$WORKDIR"
    local max_file=$2 room=$3 max_new=$MAX_NEW index=$RUN/index repo tree start label commit i
    local made_readable=''
    declare -A left=() num_left=()
    for i in "${!base_repos[@]}"; do
      repo=${base_repos[i]} tree=${base_trees[i]} commit=${base_commits[i]} start=$tree label=''
      if ((i)); then label=${tree#"${base_trees[0]%/}/$below"}/; else start=$tree/$below; fi
      show_changes || { local status=$?; ((i)) || exit "$status"; leave 'git cannot compare it' ''; }
    done
    ((room < $3)) || look_elsewhere
    ((${#left[@]} == 0)) || tell_left_out >"$RUN/left_out"
  )
  reply $?
  has_index=''
}

# What the last patch does not have.
left_out() { # max_bytes
  [[ ! -s $RUN/left_out ]] || head -c "$1" "$RUN/left_out"
  reply 0
}

# Shows the patch of one base.
show_changes() {
  local changed removed inside taken attributes size text
  # With its time: git looks into files that are as new as the index, and may compare whole seconds.
  [[ $has_index ]] || cp -p -- "$repo/index" "$index" || rm -f -- "$index"
  [[ ! -e $index.lock && ! -e $repo/info/attributes ]] ||
    rm -f -- "$index.lock" "$repo/info/attributes"
  cd -- "$tree" || return
  list_changed
  ((${#changed[@]} + ${#removed[@]} + ${#taken[@]})) || return 0
  [[ ! $attributes ]] || keep_attributes
  ((${#removed[@]} == 0)) ||
    printf '%s\0' "${removed[@]}" | base_git update-index --force-remove -z --stdin
  add_paths "${changed[@]}"
  add_paths "${taken[@]}"
  cd -- "$start" || return
  if ! show_diff >"$RUN/patch"; then
    : >"$RUN/patch"
    show_diff # perhaps there is no room for a file of it
    return
  fi
  # bash itself shows a short one, which saves starting programs; binary files are text in it.
  if ! IFS= read -r -d '' -n 65536 text <"$RUN/patch" && ((${#text} <= room)); then
    room=$((room - ${#text}))
    printf %s "$text"
    : >"$RUN/patch"
    return
  fi
  size=$(stat -c %s "$RUN/patch")
  if ((size > room)); then
    trim
    show_diff >"$RUN/patch" || return
    size=$(stat -c %s "$RUN/patch")
  fi
  room=$((room - size))
  cat "$RUN/patch"
  : >"$RUN/patch"
}

show_diff() {
  base_git diff --cached --relative --binary --no-color --no-ext-diff --no-textconv --no-renames \
    --src-prefix="a/$label" --dst-prefix="b/$label" "$commit"
}

# For the record: why something is not in the patch.
leave() { # reason path
  local name number
  if [[ $label || $2 == "$below"* ]]; then name=$label${2#"$below"}; else name=$tree/$2; fi
  number=$((${num_left[$1]-0} + 1)) # a subscript inside of (( )) would be evaluated
  num_left[$1]=$number
  ((number <= NUM_NAMED)) || return 0
  [[ $name != *[[:cntrl:]]* ]] || printf -v name %q "$name"
  ((${#name} <= NAME_CHARS)) || name=${name:0:NAME_CHARS-30}...${name: -27}
  left[$1]+=${left[$1]+, }$name
}

tell_left_out() {
  local reason more
  for reason in "${!left[@]}"; do
    more=$((${num_left[$reason]} - NUM_NAMED))
    if ((more > 0)); then more=" and $more more"; else more=''; fi
    printf '%s%s: %s\n' "${left[$reason]}" "$more" "$reason"
  done | sort
}

# Where nothing was changed: whether the agent has put its work away.
look_elsewhere() {
  local name label='' below=''
  cd -- "$WORKDIR" || return 0
  [[ ! $(image_git rev-parse -q --verify refs/stash) ]] || leave 'not in the working tree' 'a stash'
  while IFS= read -r name; do
    [[ ! $(image_git rev-list -n 1 "refs/heads/$name" --not HEAD) ]] ||
      leave 'not in the working tree' "branch $name"
  done < <(image_git for-each-ref --count=100 --format='%(refname:lstrip=2)' refs/heads)
}

# An agent's .gitattributes would have git take other bytes than those of the files.
keep_attributes() {
  if [[ ! -w $repo ]]; then
    rm -rf "$RUN/base"
    cp -a "$repo" "$RUN/base"
    repo=$RUN/base
  fi
  mkdir -p "$repo/info"
  {
    echo '* !text !crlf !eol !ident !filter !working-tree-encoding !diff'
    base_git cat-file blob "$commit:.gitattributes"
  } >"$repo/info/attributes"
}

# The patch is too large all the same, by tracked files or very short lines: its largest parts go.
trim() {
  local offset about path i=0 last='' starts=() entries=() names=() parts=() space=$room piece
  while IFS=: read -r offset _; do starts+=("$offset"); done < <(grep -abo '^diff --git ' "$RUN/patch")
  starts+=("$(stat -c %s "$RUN/patch")")
  while IFS= read -r -d '' about && IFS= read -r -d '' path; do
    piece=$((starts[i + 1] - starts[i]))
    i=$((i + 1))
    if [[ $about == *T ]]; then # deleted and made anew
      piece=$((piece + starts[i + 1] - starts[i]))
      i=$((i + 1))
    fi
    [[ $about == *A ]] && last=1 || last=0
    entries+=("$about") names+=("$path") parts+=("$last $piece")
  done < <(base_git diff --cached --raw -z --no-renames --no-abbrev --relative "$commit")
  while read -r _ piece i; do
    if ((piece <= space)); then
      space=$((space - piece))
      continue
    fi
    path=$below${names[i]}
    [[ ! $label ]] || path=${names[i]}
    leave "$TOO_MUCH" "$path"
    read -r about _ last _ <<<"${entries[i]#:}"
    printf '%s %s\t%s\0' "$about" "$last" "$path"
  done < <(for i in "${!parts[@]}"; do echo "${parts[i]} $i"; done | sort -n -k1,1 -k2,2) >"$RUN/without"
  base_git update-index -z --index-info <"$RUN/without"
}
