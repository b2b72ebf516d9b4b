#!/usr/bin/env bash
# Makes this machine a node: a container host whose sandboxes campaigns use (docs/nodes.md).
#
# Everything is checked before anything is changed. A new version is installed beside the one that
# runs and takes its place once `mainspring doctor` is content with it, so a run that fails leaves
# the node as it was. Running it again, with or without other options, is an upgrade.
set -euo pipefail
umask 022

readonly UNIT=mainspring-node.service
readonly ACCOUNT=mainspring
readonly START_TIMEOUT_S=60
readonly PORT_TIMEOUT_S=5
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
checkout=$(cd "$here/../.." && pwd)

usage() {
    cat <<END
usage: node.sh --database-url URL --temporal-address HOST:PORT [OPTION...]

Run it as root. What is not given is taken from --env-file, then from an earlier run.

  --database-url URL           postgresql://user:password@host:port/name
  --temporal-address ADDRESS   host:port
  --env-file FILE              lines NAME=value with the same and any other MAINSPRING_ variable;
                               keeps the password out of the list of processes
  --node-id NAME               stable and unique; the host name unless given
  --capacity N                 sandboxes alive at once; by memory and cores unless given
  --image-mirrors TEXT         MAINSPRING_IMAGE_MIRRORS
  --source SOURCE              a checkout, a wheel, or a version in your package index;
                               the checkout this script is in unless given
  --python PROGRAM             Python 3.11 to 3.13; found on the PATH unless given
  --no-docker                  bubblewrap alone: no tasks that come as images
  --no-service                 install, but leave starting it to you (no systemd)
  --root DIR                   install below DIR: no packages, no account, no service
  --dry-run                    check, and print what would be done
END
}

fail() {
    echo "node.sh: $1" >&2
    exit "${2:-1}"
}

# --- options ---------------------------------------------------------------------------------

declare -A given=() env=()
root='' source='' python='' env_file='' dry_run='' docker=yes service=yes
while (($#)); do
    case $1 in
    --dry-run) dry_run=yes ;;
    --no-docker) docker='' ;;
    --no-service) service='' ;;
    -h | --help)
        usage
        exit
        ;;
    --database-url | --temporal-address | --node-id | --image-mirrors | --capacity | \
        --source | --python | --env-file | --root)
        [ -n "${2-}" ] || fail "$1 needs a value" 2
        case $1 in
        --source) source=$2 ;;
        --python) python=$2 ;;
        --env-file) env_file=$2 ;;
        --root) root=${2%/} service='' docker='' ;;
        *)
            name=${1#--} name=${name^^}
            given[MAINSPRING_${name//-/_}]=$2
            ;;
        esac
        shift
        ;;
    *) fail "unknown option $1; --help lists them" 2 ;;
    esac
    shift
done

readonly base=$root/opt/mainspring
readonly state=$root/var/lib/mainspring-node
readonly config=$root/etc/mainspring/node.env
release=$(date -u +%Y%m%d-%H%M%S)-$$
readonly new_venv=$base/venvs/$release
readonly new_config=$config.new

# --- checks: nothing is changed here ---------------------------------------------------------

read_env() { # file
    local line value number=0
    while IFS= read -r line || [ -n "$line" ]; do
        number=$((number + 1))
        [[ $line =~ ^[[:space:]]*(#|$) ]] && continue
        [[ $line =~ ^([A-Z_][A-Z0-9_]*)=(.*)$ ]] || fail "$1, line $number: not NAME=value" 2
        value=${BASH_REMATCH[2]}
        case $value in
        \'*\') value=${value#\'} value=${value%\'} ;;
        \"*\") value=${value#\"} value=${value%\"} ;;
        esac
        env[${BASH_REMATCH[1]}]=$value
    done <"$1"
}

# As many sandboxes as have a GiB each, and at most four a core: most wait for the model.
default_capacity() {
    local kib cores
    kib=$(awk '/^MemTotal:/ {print $2}' /proc/meminfo)
    cores=$(nproc)
    local by_memory=$((kib >> 20)) by_cores=$((cores * 4))
    local capacity=$((by_memory < by_cores ? by_memory : by_cores))
    echo $((capacity > 0 ? capacity : 1))
}

check_settings() {
    [ ! -r "$config" ] || read_env "$config"
    if [ -n "$env_file" ]; then
        [ -r "$env_file" ] || fail "--env-file $env_file cannot be read" 2
        read_env "$env_file"
    fi
    local name
    for name in "${!given[@]}"; do env[$name]=${given[$name]}; done
    : "${env[MAINSPRING_NODE_ID]:=$(hostname)}"
    : "${env[MAINSPRING_CAPACITY]:=$(default_capacity)}"
    for name in DATABASE_URL TEMPORAL_ADDRESS; do
        [ -n "${env[MAINSPRING_$name]-}" ] ||
            fail "no address: give --$(tr _ - <<<"${name,,}") or MAINSPRING_$name in --env-file" 2
    done
    [[ ${env[MAINSPRING_DATABASE_URL]} == postgresql://?* ]] ||
        fail "MAINSPRING_DATABASE_URL must be postgresql://user:password@host:port/name" 2
    [[ ${env[MAINSPRING_CAPACITY]} =~ ^[1-9][0-9]*$ ]] ||
        fail "--capacity ${env[MAINSPRING_CAPACITY]}: not a whole number above 0" 2
    [ -z "${env[MAINSPRING_HOME]-}" ] ||
        fail "MAINSPRING_HOME cannot be chosen on a node: it is $state" 2
    for name in "${!env[@]}"; do
        [[ ${env[$name]} != *[\'\\]* ]] ||
            fail "$name holds a single quote or a backslash, which its file cannot carry" 2
    done
}

check_machine() {
    [ -n "$dry_run$root" ] || [ "$(id -u)" = 0 ] || fail "run it as root (or with --dry-run)"
    [ -z "$service" ] || [ -d /run/systemd/system ] ||
        fail "systemd does not run here: give --no-service, or use infra/deploy/node.compose.yml"
}

check_source() {
    if [ -z "$source" ]; then
        [ -f "$checkout/pyproject.toml" ] || fail "give --source: this script is in no checkout" 2
        source=$checkout
    fi
    constraints=$checkout/constraints.txt
    if [ -f "$source/pyproject.toml" ]; then
        source=$(cd "$source" && pwd)
        constraints=$source/constraints.txt
    elif [[ $source == *.whl && -f $source ]]; then
        source=$(realpath "$source")
    elif [[ $source =~ ^[0-9]+(\.[0-9a-z]+)+$ ]]; then
        source=mainspring==$source
    else
        fail "--source $source is no checkout, no wheel and no version" 2
    fi
    [ -f "$constraints" ] || constraints=''
}

fits() { # program: is it a Python that can be used?
    [[ $("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>&1) =~ ^3\.1[123]$ ]]
}

# Sets `packages`, what is to be installed first.
check_programs() {
    local candidate
    packages=()
    if [ -n "$python" ]; then
        fits "$python" || fail "--python $python is no Python 3.11 to 3.13" 2
        python=$(command -v "$python")
    else
        for candidate in /usr/bin/python3.1{1,2,3} python3.1{1,2,3} python3; do
            if fits "$candidate"; then
                python=$(command -v "$candidate")
                break
            fi
        done
        [ -n "$python" ] || fail "Python 3.11 to 3.13 is not here: install one, or give --python"
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        [[ $python == /usr/bin/* ]] || fail "$python cannot make environments: it lacks ensurepip"
        packages+=("python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv")
    fi
    command -v git >/dev/null || packages+=(git)
    [ -z "$docker" ] || [ -S /run/docker.sock ] || command -v dockerd >/dev/null ||
        packages+=(docker.io)
    ((${#packages[@]} == 0)) || [ -z "$root" ] || fail "missing here: ${packages[*]}"
    ((${#packages[@]} == 0)) || command -v apt-get >/dev/null ||
        fail "missing here: ${packages[*]}; install them (there is no apt-get to do it with)"
    [ "$(id -u)" != 0 ] || [ -n "$root" ] || runuser -u nobody -- "$python" -c '' 2>/dev/null ||
        fail "$python can be run by root alone: give --python with one that every user can run"
}

check_addresses() {
    ADDRESSES="${env[MAINSPRING_DATABASE_URL]} ${env[MAINSPRING_TEMPORAL_ADDRESS]}" \
        TIMEOUT_S=$PORT_TIMEOUT_S "$python" -c '
import os, socket, sys
from urllib.parse import urlsplit

names = ("the database", 5432), ("Temporal", 7233)
for (name, default), text in zip(names, os.environ["ADDRESSES"].split(" ")):
    parts = urlsplit(text if "://" in text else "//" + text)
    refused = ""
    for one in filter(None, parts.netloc.rpartition("@")[2].split(",")):
        try:
            place = urlsplit("//" + one)
            host, port = place.hostname or "", place.port or default
        except ValueError as error:
            sys.exit(f"node.sh: the address of {name} cannot be read: {error}")
        try:
            socket.create_connection((host, port), float(os.environ["TIMEOUT_S"])).close()
            break
        except OSError as error:
            refused = refused or f"node.sh: {name} does not answer at {host}:{port}: {error}"
    else:
        if refused:
            sys.exit(refused)
' || exit 1
}

# --- changes ---------------------------------------------------------------------------------

step='' switched='' finished=''

change() { # what it does, and the command that does it
    step=$1
    if [ -n "$dry_run" ]; then
        echo "would $step"
    else
        echo "$step"
        "${@:2}"
    fi
}

clean_up() {
    [ -n "$step" ] && [ -z "$finished$dry_run" ] || return 0
    echo "node.sh: failed to $step" >&2
    if [ -n "$switched" ]; then
        echo "  the new version is in place; run this again once the cause is gone" >&2
    else
        rm -rf "$new_venv" "$new_config"
        echo "  a node that ran here before runs on as it was" >&2
    fi
}

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    apt-get -qq install --yes --no-install-recommends "${packages[@]}"
}

make_account() {
    getent passwd "$ACCOUNT" >/dev/null ||
        useradd --system --user-group --home-dir "$state" --shell /usr/sbin/nologin "$ACCOUNT"
    # Whoever is in it can be root on this machine by way of Docker.
    [ -z "$docker" ] || usermod --append --groups docker "$ACCOUNT"
}

make_folders() {
    local owner=()
    [ -n "$root" ] || owner=(--owner "$ACCOUNT" --group "$ACCOUNT")
    install -d "$base/venvs" "$(dirname "$config")"
    install -d --mode 750 "${owner[@]}" "$state"
}

make_venv() {
    # With the official verdicts: nodes grade.
    local wanted="${source}[swe]"
    [[ $source != mainspring==* ]] || wanted="mainspring[swe]==${source#*==}"
    "$python" -m venv "$new_venv"
    "$new_venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        ${constraints:+-c "$constraints"} "$wanted"
}

write_config() {
    local name
    install --mode 600 /dev/null "$new_config"
    while IFS= read -r name; do
        printf "%s='%s'\n" "$name" "${env[$name]}"
    done < <(printf '%s\n' "${!env[@]}" | sort) >"$new_config"
}

as_node() {
    if [ -n "$root" ]; then "$@"; else runuser -u "$ACCOUNT" -- "$@"; fi
}

examine() (
    set -a
    # shellcheck source=/dev/null
    . "$new_config"
    export MAINSPRING_HOME=$state
    cd "$state"
    as_node "$new_venv/bin/mainspring" doctor
)

switch_over() {
    mv "$new_config" "$config"
    ln -s "venvs/$release" "$base/venv.new"
    mv -T "$base/venv.new" "$base/venv"
    switched=yes
    install -D --mode 644 "$here/$UNIT" "$root/etc/systemd/system/$UNIT"
}

start_service() {
    local since
    since=$(date +%s)
    systemctl daemon-reload
    systemctl --quiet enable "$UNIT"
    systemctl restart "$UNIT"
    while (($(date +%s) < since + START_TIMEOUT_S)); do
        if grep -q 'node is up' < <(journalctl --unit "$UNIT" --since "@$since" --output cat); then
            return
        fi
        [ "$(systemctl show --property NRestarts --value "$UNIT")" = 0 ] || break
        sleep 1
    done
    journalctl --unit "$UNIT" --since "@$since" --output cat --lines 20 >&2
    return 1
}

remove_old_venvs() {
    find "$base/venvs" -mindepth 1 -maxdepth 1 ! -name "$release" -exec rm -rf {} +
}

check_settings
check_machine
check_source
check_programs
check_addresses
trap clean_up EXIT

node=${env[MAINSPRING_NODE_ID]}
((${#packages[@]} == 0)) || change "install ${packages[*]}" install_packages
[ -z "$docker" ] || [ -z "$service" ] ||
    change "start Docker" systemctl --quiet enable --now docker
[ -n "$root" ] || change "make the account $ACCOUNT${docker:+, in the group docker}" make_account
change "make $base and $state" make_folders
change "install $source with $python" make_venv
change "write $config for node $node, ${env[MAINSPRING_CAPACITY]} sandboxes" write_config
change "ask \`mainspring doctor\`" examine
change "put the new version and $UNIT in place" switch_over
[ -z "$service" ] || change "start $UNIT" start_service
change "remove earlier versions" remove_old_venvs
finished=yes
[ -z "$dry_run" ] || exit 0
if [ -n "$service" ]; then
    echo "node $node is up; its log: journalctl -u ${UNIT%.service}"
else
    echo "node $node is installed; the command in ExecStart= of $UNIT runs it," \
        "with the variables of $config and MAINSPRING_HOME=$state"
fi
