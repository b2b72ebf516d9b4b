#!/bin/sh
# Starts PROGRAM of this bundle. It is linked with glibc: in an image without that, bash would tell that
# the program itself does not exist.
here=$(dirname "$(dirname "$(readlink -f "$0")")")
[ -e "$LOADER" ] || {
  echo "$0 needs glibc $GLIBC, and this image has none" >&2
  exit 127
}
exec "$here/$PROGRAM" "$@"
