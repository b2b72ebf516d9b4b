# Applies the patch that is graded. Set before it: patch, tests and folders.
# shellcheck shell=bash disable=SC2154

# Where the task's folder is below the top of its repository git counts paths from the top: it would
# skip these files, and be content.
below=$(git rev-parse --show-prefix 2>/dev/null)
apply() { git -c core.fileMode=true -c filter.lfs.required=false apply --directory="$below" "$@"; }
exact() {
  local told
  told=$(LC_ALL=C apply -v --whitespace=nowarn "$patch" 2>&1)
  local status=$? line
  while IFS= read -r line; do
    case $line in
      "Skipped patch '"*) skipped=1 && echo "git leaves it out: $line" ;;
      'Checking patch '* | 'Applied patch '* | 'Applying: '*) ;;
      *) echo "$line" ;;
    esac
  done <<<"$told"
  return "$status"
}
# For a patch against other versions of the files; tried aside first: a conflict would leave marks.
three_way() {
  cp -- "$(git rev-parse --git-path index)" "$patch.index" &&
    GIT_INDEX_FILE=$PWD/$patch.index apply --3way --cached "$patch" || return
  git update-index -q --refresh # or else the times of a copied tree count as changes
  apply --3way "$patch"
}
# For inexact context. Unlike git itself it would also write into .git.
fuzzy() {
  local fuzzy=(patch --batch --no-backup-if-mismatch --fuzz=5 -p1 -i "$patch")
  ! "${fuzzy[@]}" --dry-run | grep -qi "file.*[ '/]\.git/" && "${fuzzy[@]}"
}
# Where the hidden tests' folders are when links are followed.
places() { realpath -m -- "${folders[@]}" 2>/dev/null; }

before=$(places)
declare -A links
for folder in "${folders[@]}"; do [[ -L $folder ]] && links[$folder]=1; done
skipped=0
[[ ! -s $patch ]] || exact || three_way || fuzzy
applied=$?
((applied)) || applied=$skipped
rm -f "$patch" "$patch.index"
((applied == 0)) || exit $applied
# What the patch put where the tests go makes way for them.
for folder in "${folders[@]}"; do
  [[ -d $folder && ( ! -L $folder || ${links[$folder]-} ) ]] || rm -f -- "$folder"
done
rm -rf -- "${tests[@]}"
[[ $(places) == "$before" ]] || { echo "the patch moves the hidden tests' folder"; exit 1; }
