# Replaces $2, which stands exactly once in the file $1, by $3.
# shellcheck shell=bash
# Each of these takes one pass; ${text%%"$old"*} measures the rest of the text at each character.
LC_ALL=C; path=$1 old=$2 new=$3
[[ -f $path ]] || { echo "There is no file $path."; exit 1; }
if IFS= read -r -d '' text <"$path"; then echo "$path is no text: it holds NUL."; exit 1; fi
[[ $text == *"$old"* ]] || { echo "The old text is not in $path."; exit 1; }
[[ $text != *"$old"*"$old"* ]] || { echo "The old text is more than once in $path."; exit 1; }
text=${text/"$old"/"$new"}
printf %s "$text" >"$path" && echo "Changed $path."
