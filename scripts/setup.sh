#!/usr/bin/env bash
# Makes the virtual environment of this project: scripts/setup.sh PYTHON VENV
# Installs missing Debian packages where it may (root or password-less sudo), and says so.
set -euo pipefail
python=$1
venv=$2

say() { printf 'setup: %s\n' "$*"; }

# apt_install PACKAGE WHY: true if the package is there afterwards
apt_install() {
  local sudo=""
  if ! command -v apt-get >/dev/null; then
    say "$2; there is no apt-get here to install $1"
    return 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
      say "$2; run 'apt-get install $1' as root to get it"
      return 1
    fi
    sudo="sudo"
  fi
  say "$2: installing Debian's $1"
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1" >/dev/null 2>&1 ||
    { $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1" >/dev/null; }
}

command -v "$python" >/dev/null || { say "no '$python' found; set PYTHON=... to a Python >= 3.10"; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  { say "$("$python" --version) is too old; set PYTHON=... to a Python >= 3.10"; exit 1; }

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  apt_install python3-venv "this Python cannot make virtual environments"
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"

say "installing Python packages into $venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
  --constraint constraints.txt --editable '.[dev]'

# The architectures of the zoo and the peer of the benchmarks. Their own dependencies would bring
# another build of torch, so they come without.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
  --constraint constraints.txt --no-deps torchvision timm torch-pruning

# Optional: what is missing here only leaves out tests that need it.
command -v g++ >/dev/null || apt_install g++ "fused=True and winograd = true want g++" || true
[ -d /usr/share/datasets/fashion-mnist ] ||
  apt_install dataset-fashion-mnist "the Fashion-MNIST tests want their data" || true
command -v chromium >/dev/null || command -v google-chrome >/dev/null ||
  apt_install chromium "the report is opened in Chromium by its test" || true
say "done"
