# What commands changed since the start, and what of it a patch takes. Read before patch.sh.
# shellcheck shell=bash disable=SC2004,SC2030,SC2031,SC2034,SC2154 # all in the subshell of a patch
# Invariants: what is taken is chosen by kind and size, tracked files first; what is not taken is named
# with its reason; the same files give the same choice.

readonly MAX_NAMES=200000 MAX_NEW=30000 # names that are looked at, new files that are taken
readonly MAX_PLAIN=1000 # names that are looked at in one go
readonly MAX_IGNORED_KB=4096 MAX_IGNORED=500 MAX_REPOSITORIES=200
readonly TOO_MUCH='too much for one patch' IGNORED='ignored by .gitignore'

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
  list_plain || { list_tracked; list_new; }
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

# One call of git tells all that the three of `list_tracked` and `list_new` tell where every file is a
# plain one and no rule of a .gitignore or .gitattributes counts. Fails, with nothing told, elsewhere.
list_plain() {
  local about path gone='' number=0 edited=() new=() paths=() groups=() sizes
  declare -A at_start=() is_ignored=()
  [[ ! $RULES && ! $label && ! $below ]] || return
  # What usually has rules, which saves looking at all files twice.
  for path in .gitignore .*/.gitignore */.gitignore; do [[ ! -e $path ]] || return; done
  changed=() removed=() inside=() taken=() attributes=''
  while IFS= read -r -d '' about; do
    is_plain || break
  done < <(in_place="exec"; base_git ls-files -t -o -m -d -z 2>"$RUN/refused")
  if [[ $about || -s $RUN/refused ]]; then
    wait $! # it may write to that file until its end
    return 1
  fi
  ((${#removed[@]} == 0)) || keep_sparse
  take_tracked "${edited[@]}"
  for path in "${new[@]}"; do consider "$path" ''; done
  choose
}

# Notes one name as git tells it in `about`, or fails.
is_plain() {
  path=${about:2}
  [[ $path != */ && /$path != */.git* ]] && ((++number <= MAX_PLAIN)) || return
  case $about in
    R*)
      removed+=("$path")
      gone=$path
      ;;
    C*) # told of what is gone as well
      [[ $path == "$gone" || -L $path || -f $path ]] || return
      [[ $path == "$gone" ]] || edited+=("$path")
      ;;
    \?*) # a link in the place of a folder would hide from this call that the folder's files are gone
      [[ ! -L $path || ! -d $path ]] || return
      new+=("$path")
      ;;
    *) return 1 ;;
  esac
}

# Sets `changed` and `removed`: of the base's own files; `inside`: repositories in their place.
list_tracked() {
  local about path paths=()
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
  take_tracked "${paths[@]}"
}

take_tracked() { # path...
  local path i paths=("$@") sizes
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
