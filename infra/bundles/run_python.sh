#!/bin/sh
# Starts MODULE of this bundle with the bundle's Python. Where the image's libc is too old for it: with
# the image's own Python, if that is of the minor version that the bundle's packages are made for.
here=$(dirname "$(dirname "$(readlink -f "$0")")")
libraries=${LD_LIBRARY_PATH-}
own="$here/python/bin/python$VERSION"
if LD_LIBRARY_PATH="$here/python/lib" "$own" -I -S -c '' 2>/dev/null; then
  export LD_LIBRARY_PATH="$here/python/lib"
  exec "$own" -I -S "$here/run_python.py" "$libraries" "$here/site" "$MODULE" "$@"
fi
for python in "python$VERSION" python3 /opt/python/bin/python3 "/usr/local/bin/python$VERSION"; do
  found=$("$python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
  [ "$found" != "$VERSION" ] ||
    exec "$python" -I -S "$here/run_python.py" "$libraries" "$here/site" "$MODULE" "$@"
done
echo "$0 needs glibc $GLIBC or Python $VERSION, and this image has neither" >&2
exit 127
