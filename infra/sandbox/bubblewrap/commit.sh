# Makes a repository of the files in the current directory, with the same commit id everywhere.
# shellcheck shell=bash

set -e
umask 022
export GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z
git -c init.defaultBranch=main init -q --template=
# copies keep their times and nothing else of what git compares by default
git config core.checkStat minimal
git config core.trustCtime false
git add -A -f .
git -c core.logAllRefUpdates=false commit -q --no-verify --allow-empty -m 'Base commit'
git repack -adq
rm -f .git/COMMIT_EDITMSG
