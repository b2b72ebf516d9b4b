# Tells which files a task's solution left outside of its working directory: these are not graded.
# Set before it: solution. Run in the working directory.
# shellcheck shell=bash disable=SC2154

# Each file system by itself: the node's own, which a sandbox without an image shows, is none of them.
find / /tmp /dev/shm "$HOME" -xdev \( -path /proc -o -path /sys -o -path "$PWD" -o -path "$solution" \
  -o -path /run/mainspring -o -name .cache -o -name __pycache__ \) -prune -o \
  -type f -cnewer "$solution/solve.sh" -print 2>/dev/null | sort -u | {
  mapfile -t -n 5 files
  more=$(wc -l)
  ((${#files[@]})) || exit 0
  printf -v named '%s, ' "${files[@]}"
  ((more == 0)) && more='' || more=" and $more more"
  echo "${named%, }$more: outside of the working directory, so not graded"
}
