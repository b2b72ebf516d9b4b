#!/bin/sh
# The bundle's Python for programs that it starts with sys.executable: it needs its libraries.
here=$(dirname "$(dirname "$(readlink -f "$0")")")
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$here/bin/python$VERSION" "$@"
