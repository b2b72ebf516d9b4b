# The program of a sandbox's first process: bash reads it, then `serve` takes calls from stdin.
# shellcheck shell=bash disable=SC2317,SC2094,SC2034 # functions that calls name; names in lists;
# variables of the files that are read after it
# Set before it by the host: NONCE RUN WORKDIR PREPARED RULES LIMITS VARIABLES SPOOL_KB OUTPUT_BYTES
# ORPHAN_S.
# A call ends with the line "go" and a NUL: one whose sender died in the middle is never begun.
# Every call answers with its output and then "<NONCE> <status> <microseconds>". The process that
# sends them may die and another go on (`hello`); what was begun runs on meanwhile. As process 1 of
# its namespace this shell cannot be killed from inside, so a command can end everything else only.

exec 2>/dev/null
# bwrap 0.11 leaves the pipe by which it was told that ids are mapped.
for fd in /proc/self/fd/*; do
  fd=${fd##*/}
  ((fd <= 2)) || eval "exec $fd>&-"
done
umask 022
LC_ALL=C
spool=/dev/null
last_turn=''
declare -A ended # by turn id: status and microseconds
readonly FORGOTTEN=-2
restored='' # digest of the snapshot this sandbox began with
# Unlike ignoring them, handlers are not inherited by commands.
trap : HUP INT QUIT TERM ALRM USR1 USR2 PIPE
orders='' watch='' # to and from who runs the commands, once there is one
kept='' num_kept=0 # the file of what they say
readonly MAX_TURNS=63 # of one reader

serve() {
  local call
  while IFS= read -r -d '' -t "$ORPHAN_S" call; do
    [[ $call == *$'\ngo' ]] && eval "${call%go}"
  done
  # Nobody has said a word for ORPHAN_S: the node is gone, and so is the sandbox.
  exit
}

reply() { # status microseconds
  printf '%s %d %d\n' "$NONCE" "$1" "${2:-0}"
}

# From a new sender: answers under the old nonce are not for it.
hello() {
  NONCE=$1
  reply 0
}

stay() {
  get_ready
  reply 0
}

clock() { # sets `microseconds`
  microseconds=${EPOCHREALTIME:-$SECONDS.000000} # before bash 5: whole seconds
  microseconds=${microseconds/[.,]/}
}

# Runs a command that reads the call's payload of $1 bytes; what it leaves unread is drained, so
# that a full disk never turns payload into calls.
take() {
  head -c "$1" | { "${@:2}" 2>&1; local status=$?; cat >/dev/null; exit "$status"; }
  reply "${PIPESTATUS[1]}"
}

# Ends all that a turn left behind. One that has not begun never will.
stop() { # turn_id
  stand_down
  kill -9 -1 # every process but this one
  await_others
  if [[ ! ${ended[$1]-} ]]; then
    : >"$spool"
    last_turn=$1
    ended[$1]='-1 0'
  fi
  get_ready
  reply 0
}

# Succeeds when this turn was the last one and nothing but this shell runs any more; what a command
# left behind gets a second to end.
settle() { # turn_id
  local pause
  stand_down
  for pause in 0.005 0.005 0.01 0.03 0.1 0.2 0.3 0.4; do
    [[ $1 == "$last_turn" ]] || break
    others_run || { reply 0; return; }
    read -r -t "$pause" -u "$silent" _
  done
  reply 1
}

# Nothing runs after it but this shell. It starts no process: others may have all there may be. Only as
# process 1 of its namespace: anywhere else the signal would reach processes that are not a sandbox's.
end_others() {
  [[ $$ != 1 ]] || kill -KILL -1
  stand_down
  [[ $$ != 1 ]] || await_others
}

# Waits for a second at most: what was killed may have a system call to end first.
await_others() {
  local pause
  for pause in 0.0005 0.001 0.002 0.005 0.01 0.03 0.1 0.2 0.3 0.4; do
    others_run || return
    read -r -t "$pause" -u "$silent" _
  done
}

others_run() {
  local file stat
  for file in /proc/[0-9]*/stat; do
    [[ $file != "/proc/$$/stat" ]] && read -r stat <"$file" && [[ ${stat##*) } != Z* ]] && return
  done
  return 1
}

# Sets `places`: directories no list of changes covers. Where the root is an image's, the host lists
# what changed in it: $RUN/changed has "<C|A|D><path>" and a NUL for what was changed, added or
# deleted. Elsewhere these are all an agent can write, and the list is empty.
find_places() {
  places=(/dev/shm)
  [[ ! $PREPARED ]] || places+=("$WORKDIR" /tmp "$HOME")
}

# Shows an archive of all that commands may have changed, or fails.
pack() { # cpu_s max_bytes
  (
    exec </dev/null {silent}>&-
    eval "$LIMITS"
    ulimit -t "$1"
    set -o pipefail
    list_changes || exit
    {
      # Directories after what they hold: root without its powers cannot fill a read-only one.
      archive --no-recursion -T "$RUN/files" && archive -T "$RUN/whole" &&
        archive --no-recursion -T "$RUN/directories"
    } | compress | head -c $(($2 + 1)) >"$RUN/snapshot"
  ) && cat "$RUN/snapshot"
  reply $?
  : >"$RUN/snapshot"
  get_ready
}

archive() {
  # This format has whole names and times; sparse files stay so.
  tar -c -f - -P -S --format=posix --pax-option=delete=atime,delete=ctime --numeric-owner --null "$@"
}

compress() { if type -P gzip >/dev/null; then gzip -1; else cat; fi; }

# Writes what to pack: `files`, `directories` without what is in them, `whole` ones, and what is to
# be `gone` before unpacking (with a slash at the end: if it is no directory).
list_changes() {
  local places place path entry
  shopt -s dotglob nullglob
  find_places
  # The container's own mounts, where nothing can be put back.
  for place in /dev /etc/hosts /etc/hostname /etc/resolv.conf; do
    [[ ! $place -nt $RUN/booted ]] || return
  done
  {
    note 3 "$RUN/gone"
    for place in "${places[@]}"; do
      [[ -r $place && -x $place ]] || return
      [[ ! -O $place ]] || note 4 "$place"
      for path in "$place"/*; do note 5 "$path"; done
    done
    while IFS= read -r -d '' entry; do
      path=${entry:1}
      if [[ -d $path && ! -L $path ]]; then
        [[ -r $path && -x $path ]] || return
        # Another user's directory stays as it is; only entries of it can have changed.
        [[ ! -O $path ]] || note 4 "$path"
        [[ $entry == D* ]] || path+=/ # not a new one in the place of another
      elif [[ $entry != D* || -e $path || -L $path ]]; then
        [[ -O $path || -L $path ]] || return
        note 3 "$path"
      fi
      note 6 "$path"
    done <"$RUN/changed"
  } 3>"$RUN/files" 4>"$RUN/directories" 5>"$RUN/whole" 6>"$RUN/gone"
}

note() { # descriptor path
  printf '%s\0' "$2" >&"$1" || exit # a list cut short would make a wrong snapshot
}

# Unpacks $RUN/snapshot in a fresh sandbox, whose own $RUN/changed is what its start added. Once:
# whoever asks again, not knowing that it was done, may have run turns since.
restore() { # cpu_s digest
  stand_down
  if [[ $restored == "$2" ]]; then
    reply 0
  elif [[ $restored ]] || ((${#ended[@]})); then
    echo "it is not fresh"
    reply 1
  else
    unpack "$1" 2>&1
    local status=$?
    restored=$2
    ((status == 0)) || restored=failed
    reply "$status"
  fi
  : >"$RUN/snapshot"
  get_ready
}

unpack() ( # cpu_s
  exec </dev/null {silent}>&-
  eval "$LIMITS"
  ulimit -t "$1"
  shopt -s dotglob nullglob
  find_places
  for place in "${places[@]}"; do rm -rf -- "${place:?}"/* || exit; done
  while IFS= read -r -d '' entry; do
    [[ $entry != A* ]] || rm -rf -- "${entry:1}" || exit
  done <"$RUN/changed"
  tar -x -i -P -f "$RUN/snapshot" "$RUN/gone" || exit
  while IFS= read -r -d '' path; do
    [[ $path == */ && -d ${path%/} && ! -L ${path%/} ]] && continue
    path=${path%/}
    [[ ! -e $path && ! -L $path ]] || rm -rf -- "$path" || exit
  done <"$RUN/gone"
  tar -x -i -P -p --no-same-owner --delay-directory-restore -f "$RUN/snapshot"
)

boot() {
  local program missing=() from into
  make_pipe
  exec {silent}<>"/dev/fd/$from" {from}<&- {into}>&-
  { [[ -d $RUN ]] || mkdir -p "$RUN"; } && : >"$RUN/booted"
  for program in cat cp dd git head mkdir tail tar; do
    type -P "$program" >/dev/null || missing+=("$program")
  done
  if ((${#missing[@]})); then
    echo "it lacks ${missing[*]}"
    reply 3
  elif [[ $PREPARED ]]; then
    base_repos=("$PREPARED/.git") base_trees=("$WORKDIR") base_commits=(HEAD)
    new_objects=$RUN/objects has_index=1
    cp -a "$PREPARED/." "$WORKDIR" 2>&1
    reply $?
  elif without_variables adopt_repository; then
    align_numbers
    reply 0
  else
    echo "there is nothing at $WORKDIR"
    reply 4
  fi
}

# A container's own start takes a number of process numbers that differs; the next one is the same.
align_numbers() {
  local number=1
  while ((number % 64)); do
    : &
    number=$!
    wait "$number"
  done
}
