# Sourced by the other scripts: makes a virtual environment, installs the project with the extras given, sets $python.
#
#   PYTHON=python3.12   interpreter to make the environment with (3.11 or newer; found if not given)
#   VENV=.venv          where the environment lives
set -euo pipefail

prepare_environment() {  # prepare_environment EXTRAS
  local venv=${VENV:-.venv} candidate
  if [ ! -x "$venv/bin/python" ]; then
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
      if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        "$candidate" -m venv "$venv"
        break
      fi
    done
    if [ ! -x "$venv/bin/python" ]; then
      echo "no Python 3.11 or newer found; set PYTHON to one (and install its venv module)" >&2
      exit 1
    fi
  fi
  python=$venv/bin/python
  "$python" -m pip install --quiet --disable-pip-version-check --editable ".[$1]"
}
