# The patch of what commands changed, and what is not in it. Read after kinds.sh and bases.sh.
# shellcheck shell=bash disable=SC2030,SC2031,SC2034,SC2154 # all in one subshell
# Invariants: what is taken is chosen by kind and size, tracked files first, and what is not taken is
# named with its reason; a patch is against the base, whatever the agent did with its repository; the
# same files give the same patch, and making one changes nothing but rights to read.

readonly MAX_NAMES=200000 MAX_NEW=30000 # names that are looked at, new files that are taken
readonly MAX_IGNORED_KB=4096 MAX_IGNORED=500 MAX_REPOSITORIES=200
readonly NUM_NAMED=5 NAME_CHARS=100
readonly TOO_MUCH='too much for one patch' IGNORED='ignored by .gitignore'

patch() { # cpu_s max_bytes_of_a_file max_bytes
  # What commands left behind would write meanwhile, or leave git no process.
  end_others
  (
    exec </dev/null {silent}>&-
    eval "$LIMITS"
    ulimit -t "$1"
    unset "${!GIT_@}"
    : >"$RUN/left_out"
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

# Sets `sizes` in bytes. bash itself reads a few short texts, which saves starting a program.
measure() { # path...
  local i more chunk path text
  sizes=()
  if (($# <= 5)); then
    for path in "$@"; do
      if [[ -L $path || ! -f $path || ! -r $path ]]; then break; fi
      if IFS= read -r -d '' -n 65536 text <"$path"; then break; fi
      sizes+=("${#text}")
    done
    ((${#sizes[@]} < $#)) || return 0
    sizes=()
  fi
  for ((i = 1; i <= $#; i += 500)); do
    chunk=("${@:i:500}")
    mapfile -t more < <(stat -c %s -- "${chunk[@]}")
    if ((${#more[@]} != ${#chunk[@]})); then # one of them has gone
      more=()
      for path in "${chunk[@]}"; do more+=("$(stat -c %s -- "$path" || echo 0)"); done
    fi
    sizes+=("${more[@]}")
  done
}

# Sets `changed`, `removed`, `taken` and `attributes`.
list_changed() {
  local unreadable='' num_new=$max_new reason
  declare -A before=() num_before=()
  for reason in "${!left[@]}"; do
    before[$reason]=${left[$reason]} num_before[$reason]=${num_left[$reason]}
  done
  list_tracked
  list_new
  [[ $unreadable && ! $made_readable ]] || return 0
  # The agent has taken its own right to read. To look for it each time would walk the whole tree.
  made_readable=1
  (cd -- "$WORKDIR" && find . -path ./.git -prune -o \
    \( -type d ! -perm -500 -o -type f ! -perm -400 \) -exec chmod u+rX {} \;)
  max_new=$num_new left=() num_left=()
  for reason in "${!before[@]}"; do
    left[$reason]=${before[$reason]} num_left[$reason]=${num_before[$reason]}
  done
  list_tracked
  list_new
}

# Sets `changed` and `removed`: of the base's own files; `inside`: repositories in their place.
list_tracked() {
  local about path i paths=() sizes
  changed=() removed=() inside=() attributes=''
  while IFS= read -r -d '' about && IFS= read -r -d '' path; do
    if [[ ! $label && $path != "$below"* ]]; then
      base_git diff --quiet "$commit" -- "$path" || leave 'outside of the working directory' "$path"
      continue
    fi
    [[ /$path != */.gitattributes ]] || attributes=1
    if [[ $about == *D ]]; then
      removed+=("$path")
    elif [[ -L $path || -f $path ]]; then
      paths+=("$path")
    else # a pipe, or a repository of the agent's in its place
      removed+=("$path")
      if [[ -d $path ]]; then inside+=("$path/"); else leave 'neither a file nor a link' "$path"; fi
    fi
  done < <(in_place="exec"; base_git diff-files --raw -z --no-renames 2>"$RUN/refused")
  [[ ! -s $RUN/refused ]] || unreadable=1
  ((${#removed[@]} == 0)) || keep_sparse
  measure "${paths[@]}"
  for i in "${!paths[@]}"; do
    path=${paths[i]}
    if [[ ! -L $path && ! -r $path ]]; then
      unreadable=1
      leave 'cannot be read' "$path"
    elif ((sizes[i] <= max_file)); then
      changed+=("$path")
    elif ! base_git diff --quiet "$commit" -- "$path"; then
      leave "over $((max_file >> 20)) MiB" "$path"
    fi
  done
}

# What a sparse checkout of the agent's took out of the working tree is not deleted.
keep_sparse() {
  local entry kept=()
  [[ $(image_git config --bool core.sparseCheckout) == true ]] || return 0
  declare -A sparse=()
  while IFS= read -r -d '' entry; do
    [[ $entry != S\ * ]] || sparse[${entry:2}]=1
  done < <(image_git ls-files -t -z)
  for entry in "${removed[@]}"; do [[ ${sparse[$entry]-} ]] || kept+=("$entry"); done
  removed=("${kept[@]}")
}

# Sets `taken`: new files, the smallest first, then what is taken whole or not at all: repositories
# that the agent made, what tools install, what .gitignore names.
list_new() {
  local paths=() groups=() queue=('' "${inside[@]}") owners=('' "${inside[@]}") number=0 inner owner path i
  declare -A at_start=() is_ignored=()
  taken=()
  : >"$RUN/refusals"
  load_ignored
  for ((i = 0; i < ${#queue[@]} && i < MAX_REPOSITORIES; i++)); do
    inner=${queue[i]} owner=${owners[i]}
    while IFS= read -r -d '' path; do
      ((++number <= MAX_NAMES)) || break
      consider "$inner$path" "$owner"
    done < <(others_in "$inner" -o --exclude-standard)
    while IFS= read -r -d '' path; do
      ((++number <= MAX_NAMES)) || break
      consider_ignored "$inner$path"
    done < <(others_in "$inner" -o -i --exclude-standard --directory)
  done
  ((number <= MAX_NAMES)) || leave 'too many to look at' "files after the first $MAX_NAMES"
  while IFS= read -r path; do
    unreadable=1
    leave 'git cannot list it' "${path#*: }"
  done <"$RUN/refusals"
  choose
}

# New files below a folder, as git lists them. In a repository of the agent's own git looks only when
# that is the work tree.
others_in() { # folder option...
  local in_place=exec
  if [[ $1 ]]; then
    cd -- "$1" && tree=$tree/$1 index=$RUN/none base_git ls-files -z "${@:2}"
  else
    cd -- "$start" && base_git ls-files --full-name -z "${@:2}"
  fi 2>>"$RUN/refusals"
}

consider() { # path group
  local path=$1 group=$2 product
  if [[ $path == */ ]]; then
    is_base "${path%/}" || { queue+=("$path") owners+=("${group:-$path}"); }
    return
  fi
  if was_there "$path"; then # .gitignore has changed: in a fresh sandbox a patch would meet it
    is_cache "$path" || ! is_newer "$path" || leave 'was ignored at the start' "$path"
    return
  fi
  [[ /$path != */.gitattributes ]] || attributes=1
  ! find_product "$path" || group=$product
  paths+=("$path") groups+=("$group")
}

# A file, or a whole folder with a slash at its end.
consider_ignored() { # path
  local path product
  ! is_cache "$1" || return
  if is_noise "$1" || find_product "$1"; then
    if ! was_there "$1" || is_newer "$1"; then leave "$IGNORED" "$1"; fi
  elif was_there "$1"; then
    while IFS= read -r -d '' path; do
      is_cache "$path" || leave "$IGNORED as others were at the start" "$path"
    done < <(newer_in "$1")
  elif [[ $1 != */ ]]; then
    is_ignored[$1]=1
    consider "$1" "$1"
  else
    is_ignored[$1]=1
    while IFS= read -r -d '' path; do
      ((++number <= MAX_NAMES)) || break
      is_cache "$path" && continue
      if is_noise "$path"; then
        leave "$IGNORED" "$path"
      else
        ! find_product "$path" || is_ignored[$product]=never
        consider "$path" "$1"
      fi
    done < <(files_in "$1")
  fi
}

files_in() { # folder
  find "$1" -name .git -prune -o \( -type f -o -type l \) -print0 2>>"$RUN/refusals"
}
newer_in() { # path
  find "$1" -name .git -prune -o -type f -cnewer "$RUN/booted" -print0 2>>"$RUN/refusals"
}
is_newer() { [[ $(newer_in "$1" | head -c 1 | tr '\0' .) ]]; } # path

is_base() { # path, in `tree`
  local each
  for each in "${base_trees[@]}"; do [[ $each != "$tree/$1" ]] || return 0; done
  return 1
}

# What was there from the start and is in no base, because it was ignored.
load_ignored() {
  local entry
  [[ ! -s $repo/ignored ]] || while IFS= read -r -d '' entry; do
    at_start[$entry]=whole
    while [[ ${entry%/} == */* ]]; do
      entry=${entry%/} entry=${entry%/*}/
      [[ ${at_start[$entry]-} ]] || at_start[$entry]=part
    done
  done <"$repo/ignored"
}

was_there() { # path, with a slash at the end of a folder's
  local path=$1
  ((${#at_start[@]})) || return
  [[ ! ${at_start[$path]-} ]] || return 0
  while [[ ${path%/} == */* ]]; do
    path=${path%/} path=${path%/*}/
    [[ ${at_start[$path]-} != whole ]] || return 0
  done
  return 1
}

# Sets `order` to numbers of `paths`: the smallest first, unless all fit.
put_in_order() {
  local i total=0 fit=1
  for i in "${!paths[@]}"; do
    total=$((total + sizes[i] * 4 / 3 + 400))
    ((sizes[i] <= max_file)) || fit=0
  done
  if ((fit && total <= space && ${#paths[@]} <= max_new)); then
    order=("${!paths[@]}")
  else
    mapfile -t order < <(for i in "${!paths[@]}"; do printf '%s\t%s\n' "${sizes[i]}" "$i"; done | sort -n)
    order=("${order[@]#*$'\t'}")
  fi
}

choose() {
  local sizes order i path group bytes files shown space=$room ignored_kb=0 num_ignored=0
  declare -A group_bytes=() group_files=() chosen=()
  measure "${paths[@]}"
  put_in_order
  for i in "${order[@]}"; do
    path=${paths[i]} group=${groups[i]} bytes=$((sizes[i] * 4 / 3 + 400)) # binary parts are base85
    if [[ ! -L $path && ! -r $path ]]; then
      unreadable=1
      leave 'cannot be read' "$path"
    elif ((sizes[i] > max_file)); then
      leave "over $((max_file >> 20)) MiB" "$path"
    elif [[ $group ]]; then
      group_bytes[$group]=$((${group_bytes[$group]-0} + bytes))
      group_files[$group]=$((${group_files[$group]-0} + 1))
      chosen[$group]+="$i "
    elif ((space < bytes || max_new < 1)); then
      leave "$TOO_MUCH" "$path"
    else
      space=$((space - bytes)) max_new=$((max_new - 1))
      taken+=("$path")
    fi
  done
  ((${#group_bytes[@]})) || return 0
  while IFS= read -r -d '' group; do
    bytes=${group%%/*} group=${group#*/} files=${group_files[$group]} shown=$group
    ((files == 1)) || shown+=" ($files files, $((bytes * 3 / 4 >> 10)) KiB)"
    if [[ ${is_ignored[$group]-} ]]; then
      if [[ ${is_ignored[$group]} == never ]] ||
        ((ignored_kb + (bytes >> 10) > MAX_IGNORED_KB || num_ignored + files > MAX_IGNORED)); then
        leave "$IGNORED" "$shown"
        continue
      fi
      ignored_kb=$((ignored_kb + (bytes >> 10))) num_ignored=$((num_ignored + files))
    fi
    if ((space < bytes || max_new < files)); then
      leave "$TOO_MUCH" "$shown"
      continue
    fi
    space=$((space - bytes)) max_new=$((max_new - files))
    for i in ${chosen[$group]}; do taken+=("${paths[i]}"); done
  done < <(for group in "${!group_bytes[@]}"; do
    printf '%s/%s\0' "${group_bytes[$group]}" "$group"
  done | sort -z -n)
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
