# Kinds of files by their names, for patches. Read before patch.sh; pure.
# shellcheck shell=bash

# Made again from nothing: where it is ignored it is not worth a word.
is_cache() { # path
  case /$1 in
    */__pycache__/* | */.pytest_cache/* | */.mypy_cache/* | */.ruff_cache/* | */.hypothesis/*) ;;
    */.tox/* | */.nox/* | */.eggs/* | */.ipynb_checkpoints/* | */.nyc_output/* | */htmlcov/*) ;;
    *.pyc | *.pyo | */.coverage | */.coverage.* | */.DS_Store | *.swp | *.swo) ;;
    *) return 1 ;;
  esac
}

# Left by programs that ran: named where it is ignored, never taken.
is_noise() { # path
  case $1 in
    *.log | *.tmp | *.bak | *.orig | *.rej | *~) ;;
    *) return 1 ;;
  esac
}

# Sets `product` to the outermost folder of a path that tools install or build. Half of one is of no
# use: it is taken whole or not at all.
find_product() { # path
  local rest=$1 last='' name
  product=''
  case /$1 in
    */node_modules/* | */bower_components/* | */site-packages/* | */.gradle/* | */CMakeFiles/*) ;;
    */.venv/* | */venv/* | */virtualenv/* | */*.egg-info/* | */*.dist-info/*) ;;
    */.next/* | */.nuxt/* | */.parcel-cache/* | */.turbo/*) ;;
    */target/debug/* | */target/release/* | */target/classes/*) ;;
    */build/lib*/* | */build/temp*/* | */build/bdist*/*) ;;
    *) return 1 ;;
  esac
  while [[ $rest == */* ]]; do
    name=${rest%%/*}
    rest=${rest#*/}
    product+=$name/
    case $last/$name in
      */node_modules | */bower_components | */site-packages | */.gradle | */CMakeFiles) return ;;
      */.venv | */venv | */virtualenv | */*.egg-info | */*.dist-info) return ;;
      */.next | */.nuxt | */.parcel-cache | */.turbo) return ;;
      target/debug | target/release | target/classes) return ;;
      build/lib* | build/temp* | build/bdist*) return ;;
    esac
    last=$name
  done
}
