# The program of a sandbox's first process: bash reads it, then `serve` takes calls from stdin.
# shellcheck shell=bash disable=SC2317,SC2094,SC2034 # functions that calls name; names in lists;
# variables of the files that are read after it
# Set before it by the host: NONCE RUN WORKDIR PREPARED LIMITS VARIABLES SPOOL_KB OUTPUT_BYTES ORPHAN_S.
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
exec {drained_fd}<> <(:)
orders='' watch='' # to and from who runs the commands, once there is one
prepared='' num_prepared=0 # the file that keeps the next command's output

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

make_pipe() { # sets `from` and `into`
  local both
  exec {both}<> <(:)
  exec {from}<"/dev/fd/$both" {into}>"/dev/fd/$both" {both}>&-
}

# Two processes serve all turns, so that a turn starts none but its command; what reads its output was
# started after the answer before. Not before the first call after `boot`: by then the host has put
# limits on this shell and all it starts.
get_ready() {
  local from into
  if [[ ! $watch ]]; then
    make_pipe
    exec {watch}< <(attend <&"$from")
    exec {from}<&-
    orders=$into
  fi
  [[ ! $prepared ]] || return 0
  # Of its own: a reader that is not needed tells its end all the same.
  prepared=$RUN/$((++num_prepared))
  printf '%s\0' "$prepared" >&"$orders"
  read -r -u "$watch" # else the turn finds that nothing answers
}

# What a command left behind may have hold of it, or is not to: the next turn gets another.
stand_down() {
  [[ $watch ]] || return 0
  exec {orders}>&-
  read -r -t 1 -u "$watch" # its end
  exec {watch}<&-
  watch='' prepared=''
}

# Runs the commands it is told, and says of each: a line once its output has a reader, another when it
# is sure to begin, its process group, its status. A pipe and not the file itself is a command's stdout,
# because opening /dev/stderr anew would truncate a file; each opens the pipe for itself, so that it
# ends with the command and what that left behind.
attend() {
  local spool cpu_s command nothing begin sink ready output
  exec {into}>&- {from}<&- {nothing}</dev/null
  make_pipe
  exec {into}>&-
  output=$from
  make_pipe
  ready=$from
  exec {begin}> >(collect)
  exec {into}>&-
  set -m # a command gets a process group of its own
  eval "$LIMITS"
  eval "$VARIABLES"
  while read -r -d '' spool; do
    exec {sink}>"/dev/fd/$output"
    echo "$spool" >&"$begin" && read -r -u "$ready" && echo || return
    read -r -d '' cpu_s && IFS= read -r -d '' command && echo || return
    {
      ulimit -t "$cpu_s"
      cd -- "$WORKDIR" || cd /
      exec bash -c "$command"
    } <&"$nothing" >&"$sink" 2>&1 \
      {nothing}<&- {sink}>&- {output}<&- {ready}<&- {begin}>&- {drained_fd}>&- &
    exec {sink}>&-
    echo $!
    wait $!
    echo $?
  done
}

# Keeps the first SPOOL_KB of each command's output and drains the rest. The command starts after the
# program that reads it, so that numbers of processes are the same each time. Not by bash's own `read`: a
# NUL that it takes as its time runs out is lost (bash 5.2 looks at the clock after the delimiter).
collect() {
  local spool
  exec >&2
  ulimit -f "$SPOOL_KB"
  trap '' XFSZ
  exec {ready}<&-
  while read -r spool; do
    cat <&"$output" >"$spool" &
    echo "$spool $!" >&"$drained_fd"
    echo >&"$into"
    wait $!
    case $? in
      0) ;;
      1) cat <&"$output" ;; # the file is full
      *) cat <&"$output" >>"$spool" || cat <&"$output" ;; # a command has killed it
    esac
    echo "$spool" >&"$drained_fd"
  done
}

# Waits until all that the command wrote is in the spool; sets `drained` once nothing else can come. A
# daemon may keep the pipe open without end: then it is enough that the reader sleeps, because it found
# the pipe empty. Time alone tells nothing: on a busy machine the reader may not have run at all.
await_spool() {
  local line reader='' name state i
  for ((i = 0; i < 40; i++)); do
    while read -r -t 0.25 -u "$drained_fd" line; do
      case $line in
        "$spool") drained=$spool && return ;;
        "$spool "*) reader=${line##* } ;;
      esac
    done
    # Without a line it was killed as it began. One that ended has filled the spool.
    read -r _ name state _ <"/proc/$reader/stat" || return
    [[ "$name $state" != '(cat) S' ]] || return
  done
}

# The host wants this turn to end as at its timeout. Whenever else it comes, it means nothing.
stop_turn() {
  [[ ! ${stopped-} ]] || { stopped=1; [[ ! $group ]] || kill -9 -- "-$group"; }
}
trap stop_turn USR1

turn() { # turn_id timeout_s cpu_s command
  if [[ ${ended[$1]-} ]]; then
    again "$1"
    return
  fi
  : >"$spool"
  local microseconds began group='' stopped=0 status='' timed_out=0 drained=''
  clock
  began=$microseconds
  for _ in 1 2; do
    get_ready
    printf '%s\0' "$3" "$4" >&"$orders"
    read -r -u "$watch" && break
    stand_down # it was killed before, by what an earlier command left behind
  done
  spool=$prepared prepared=''
  read -r -u "$watch" group
  ((!stopped)) || kill -9 -- "-$group"
  read -r -t "$2" -u "$watch" status
  if (($? > 128)); then
    timed_out=1
    kill -9 -- "-$group"
    read -r -t 1 -u "$watch" status
  fi
  group=''
  timed_out=$((timed_out | stopped))
  await_spool
  clock
  # No status: the command killed even the process that waited for it.
  last_turn=$1
  ended[$1]="$((timed_out ? -1 : ${status:-137})) $((microseconds - began))"
  again "$1"
  [[ $status && $drained == "$spool" ]] || stand_down
  get_ready
}

# Ends all that a turn left behind. One that has not begun never will.
stop() { # turn_id
  stand_down
  kill -9 -1 # every process but this one
  if [[ ! ${ended[$1]-} ]]; then
    : >"$spool"
    last_turn=$1
    ended[$1]='-1 0'
  fi
  get_ready
  reply 0
}

# The answer of a turn that ran; its command never runs again.
again() { # turn_id
  if [[ $1 == "$last_turn" ]]; then
    show_spool
    reply "${ended[$1]% *}" "${ended[$1]#* }"
  else
    reply $FORGOTTEN
  fi
}

# bash itself shows short output without NULs, which saves starting a program.
show_spool() {
  local text
  if IFS= read -r -d '' -n 65536 text <"$spool"; then
    head -c $((OUTPUT_BYTES + 1)) "$spool"
  else
    printf %s "$text"
  fi
}

last_bytes() {
  tail -c "$1" "$spool"
  reply $?
}

# Succeeds when this turn was the last one and nothing but this shell runs any more; what a command
# left behind gets a second to end.
settle() { # turn_id
  local pause
  stand_down
  for pause in 0.005 0.005 0.01 0.03 0.1 0.2 0.3 0.4; do
    [[ $1 == "$last_turn" ]] || break
    others_run || { reply 0; return; }
    read -r -t "$pause" -u "$drained_fd" _
  done
  reply 1
}

# Nothing runs after it but this shell. It starts no process: others may have all there may be. Only as
# process 1 of its namespace: anywhere else the signal would reach processes that are not a sandbox's.
end_others() {
  local pause
  stand_down
  [[ $$ == 1 ]] || return
  kill -KILL -1
  for pause in 0.0005 0.001 0.002 0.005 0.01 0.03 0.1 0.2 0.3 0.4; do
    others_run || return
    read -r -t "$pause" -u "$drained_fd" _
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
    exec </dev/null {drained_fd}>&-
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
  exec </dev/null {drained_fd}>&-
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
  local program missing=()
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
