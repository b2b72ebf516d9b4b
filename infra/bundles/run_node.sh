#!/bin/sh
# Starts SCRIPT of this bundle with the Node that the bundle has, which is linked with glibc: in an image
# without that, bash would tell that Node itself does not exist.
here=$(dirname "$(dirname "$(readlink -f "$0")")")
[ -e "$LOADER" ] || {
  echo "$0 needs glibc $GLIBC, and this image has none" >&2
  exit 127
}
exec "$here/$NODE" "$here/$SCRIPT" "$@"
