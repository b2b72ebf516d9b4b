#!/bin/sh
# Starts MODULE of this bundle with a Python of the minor version that its packages are made for.
here=$(dirname "$(dirname "$(readlink -f "$0")")")
for python in "python$VERSION" python3 /opt/python/bin/python3 "/usr/local/bin/python$VERSION"; do
  found=$("$python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
  [ "$found" != "$VERSION" ] || exec "$python" -I -S "$here/run_python.py" "$here/site" "$MODULE" "$@"
done
echo "$0 needs Python $VERSION, which this image does not have" >&2
exit 127
