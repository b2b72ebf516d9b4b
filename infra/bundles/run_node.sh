#!/bin/sh
# Starts SCRIPT of this bundle with the Node that the bundle has.
here=$(dirname "$(dirname "$(readlink -f "$0")")")
exec "$here/$NODE" "$here/$SCRIPT" "$@"
