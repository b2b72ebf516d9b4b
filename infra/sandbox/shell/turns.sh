# Turns: what runs the commands of a sandbox, keeps their output and shows it. Read after shell.sh.
# shellcheck shell=bash disable=SC2034,SC2154 # variables of shell.sh, of callers, in names
# Invariants: a turn's command runs once; whatever it does to the processes beside it or to files, its
# turn ends, and the next one has its own output alone; numbers of processes are the same each time.

make_pipe() { # sets `from` and `into`
  local both
  # Since bash 5.1 a short here-string is a pipe, which saves starting a process.
  exec {both}<<<''
  if [[ -p /dev/fd/$both ]]; then
    read -r -u "$both"
  else
    exec {both}<&-
    exec {both}<> <(:)
  fi
  exec {from}<"/dev/fd/$both" {into}>"/dev/fd/$both" {both}<&-
}

# Two processes serve all turns, so that a turn starts none but its command. Not before the first
# call after `boot`: by then the host has put limits on this shell and all it starts.
get_ready() {
  [[ ! $watch ]] || return 0
  local from into
  num_turns=0 reader=0
  # Turns use two pipes for their output by turns: see `attend`.
  make_pipe
  current=$from
  exec {into}>&-
  make_pipe
  following=$from
  exec {into}>&-
  num_kept=$((num_kept + 1))
  if ! exec {kept}>>"$RUN/$num_kept"; then # a full disk: this turn's output is lost
    exec {kept}>/dev/null
    num_turns=$MAX_TURNS
  fi
  make_pipe
  exec {watch}< <(attend <&"$from")
  exec {from}<&-
  orders=$into
  read -r -u "$watch" reader || reader=0 # the turn finds that nothing answers
}

# What a command left behind may have hold of it, or is not to: the next turn gets another.
stand_down() {
  [[ $watch ]] || return 0
  exec {orders}>&-
  read -r -t 1 -u "$watch" # its end
  exec {watch}<&- {current}<&- {following}<&-
  watch=''
  [[ $spool == "/dev/fd/$kept" ]] || exec {kept}>&-
}

# Runs the commands it is told, and says of each: a line once it is sure to begin, its process group,
# an "e" and its status. A pipe and not the file itself is a command's stdout, because opening
# /dev/stderr anew would truncate a file; each opens the pipe for itself, so that it ends with the
# command and what that left behind. Meanwhile the other pipe is held open here: there the one reader of
# all output waits for the next command, but not before it has written all that this one said. Its
# number is told first, before any command starts: numbers of processes are the same each time.
attend() {
  local cpu_s command nothing sink other readings=("/dev/fd/$current" "/dev/fd/$following")
  exec {into}>&- {from}<&- {nothing}</dev/null
  close_file "$spool"
  exec {sink}>"/dev/fd/$current"
  for other in 1 2 3 4 5; do readings+=("${readings[@]}"); done # one more than MAX_TURNS
  {
    ulimit -f "$SPOOL_KB"
    trap '' XFSZ
    exec cat "${readings[@]}"
  } <&"$nothing" >&"$kept" {nothing}<&- {kept}>&- {sink}>&- {silent}>&- &
  echo $!
  set -m # a command gets a process group of its own
  eval "$LIMITS"
  eval "$VARIABLES"
  while read -r -d '' cpu_s && IFS= read -r -d '' command && echo; do
    exec {other}>"/dev/fd/$following"
    {
      ulimit -t "$cpu_s"
      cd -- "$WORKDIR" || cd /
      exec bash -c "$command"
    } <&"$nothing" >&"$sink" 2>&1 {nothing}<&- {sink}>&- {other}>&- {current}<&- {following}<&- \
      {kept}>&- {silent}>&- &
    exec {sink}>&-
    sink=$other
    swap_pipes
    echo $!
    wait $!
    echo "e$?"
  done
}

close_file() { # path of a descriptor, or another
  local file=${1#/dev/fd/}
  [[ $file == /* ]] || exec {file}>&-
}

swap_pipes() {
  local other=$current
  current=$following following=$other
}

# Succeeds when the reader has written all that this turn's command said and nothing else can come. That
# it sleeps would tell nothing: on a busy machine it may not have run at all.
has_all() {
  [[ /proc/$reader/fd/3 -ef /dev/fd/$following ]] && is_at_end
}

is_at_end() {
  read -r -t 0 -u "$current" && ! IFS= read -r -d '' -n1 -u "$current"
}

# Reads what the command says from here on if the reader is gone: a command has killed it, or it could
# not write any more, as to a file of SPOOL_KB. Some programs of its name go on to the next pipe then.
# Fails when there is nothing left to read.
keep_reading() {
  local state first
  if read -r _ _ state _ <"/proc/$reader/stat" && [[ $state != [XZ] ]]; then
    [[ /proc/$reader/fd/3 -ef /dev/fd/$following ]] || return 0
    ! is_at_end || return
  elif [[ $is_second ]] && wait "$reader"; then
    return 1
  fi
  is_second=1
  {
    ulimit -f "$SPOOL_KB"
    trap '' XFSZ
    IFS= read -r -d '' -n1 first || exit 0
    if [[ $first ]]; then printf %s "$first"; else printf '\0'; fi || exec >/dev/null
    exec cat
  } <&"$current" >&"$kept" {kept}>&- {orders}>&- {watch}<&- {silent}>&- &
  reader=$!
}

# Waits until all that the command wrote is in the spool; sets `drained` once nothing else can come. A
# daemon may keep the pipe open without end: then it is enough that the reader sleeps, because it found
# the pipe empty.
await_spool() {
  local i name state pauses=(0.0005 0.001 0.002 0.004 0.008 0.016 0.03 0.06 0.13)
  [[ $watch ]] || return # it never began
  for ((i = 0; i < 50; i++)); do
    ! has_all || { drained=1; return; }
    keep_reading || { ! has_all || drained=1; return; }
    if ((i >= ${#pauses[@]})); then
      read -r _ name state _ <"/proc/$reader/stat"
      # Its first one may not have begun to read; a second one is this shell until it has to write.
      [[ $state != S || ($name != '(cat)' && ! $is_second) ]] || return
    fi
    read -r -t "${pauses[i]:-0.25}" -u "$silent"
  done
}

# The host wants this turn to end as at its timeout. Whenever else it comes, it means nothing.
stop_turn() {
  [[ ! ${stopped-} ]] || { stopped=1; [[ ! $group ]] || kill -9 -- "-$group"; }
}
trap stop_turn USR1

turn() { # turn_id timeout_s cpu_s command; the time has three decimals
  if [[ ${ended[$1]-} ]]; then
    again "$1"
    return
  fi
  : >"$spool"
  local microseconds began group='' stopped=0 status='' timed_out=0 drained='' is_second='' last=$spool
  clock
  began=$microseconds
  for _ in 1 2; do
    get_ready
    # Each turn's file is one that can be written and read, whatever an earlier command did to it.
    : <"/dev/fd/$kept" >"/dev/fd/$kept" && printf '%s\0' "$3" "$4" >&"$orders" &&
      read -r -u "$watch" && break
    stand_down # it was killed before, by what an earlier command left behind
  done
  spool=/dev/fd/$kept
  [[ $last == "$spool" ]] || close_file "$last"
  read -r -u "$watch" group
  ((!stopped)) || kill -9 -- "-$group"
  await_end "${2/./}"
  group=''
  timed_out=$((timed_out | stopped))
  await_spool
  clock
  # No status: the command killed even the process that waited for it.
  last_turn=$1
  ended[$1]="$((timed_out ? -1 : ${status:-137})) $((microseconds - began))"
  again "$1"
  num_turns=$((num_turns + 1))
  [[ $status && $drained && $num_turns -lt $MAX_TURNS ]] || stand_down
  swap_pipes
  get_ready
}

# Sets `status` and `timed_out`; sees to it meanwhile that somebody reads what the command says.
await_end() { # timeout_ms
  local left=$((10#$1)) ms=32 pause
  while ((left > 0)); do
    ms=$((ms < 1000 ? ms * 2 : ms))
    ms=$((ms < left ? ms : left))
    left=$((left - ms))
    printf -v pause '%d.%03d' $((ms / 1000)) $((ms % 1000))
    ! get_status "$pause" || return 0
    keep_reading
  done
  timed_out=1
  kill -9 -- "-$group"
  get_status 1
}

# Fails when the time runs out. Of a whole line a part could be lost then: bash looks at the clock after
# it has read. A single letter is there or not.
get_status() { # seconds
  local letter='' code
  IFS= read -r -N 1 -t "$1" -u "$watch" letter
  code=$?
  [[ ! $letter ]] || read -r -u "$watch" status
  [[ $letter ]] || ((code <= 128)) # none any more
}

# The answer of a turn that ran; its command never runs again.
again() { # turn_id
  if [[ $1 == "$last_turn" ]]; then
    show_spool
    reply "${ended[$1]% *}" "${ended[$1]#* }"
  else
    reply "$FORGOTTEN"
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
