#!/usr/bin/env bash
# Installs the wheel of ~/raylay/wheels into ~/raylay/venv and puts `raylay` and `ray` on the PATH.
# Does nothing where that very wheel is installed. Settings: ~/raylay/settings (see cluster.yaml).
set -euo pipefail
cd ~/raylay
. ./settings

wheels=(wheels/raylay-*.whl)
if [[ ! -f ${wheels[0]} || ${#wheels[@]} -ne 1 ]]; then
  echo "raylay: ${#wheels[@]} wheels in ~/raylay/wheels, one is needed: run 'make wheel' first" >&2
  exit 1
fi
wanted=$(sha256sum "${wheels[0]}" settings deploy/install.sh | sha256sum)
if [[ ! -f venv/installed || $(<venv/installed) != "$wanted" ]]; then
  if ! "$PYTHON" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))'; then
    echo "raylay: $PYTHON is not Python 3.11 or newer with venv:" \
      "sudo apt-get install python3 python3-venv" >&2
    exit 1
  fi
  if [[ $PACKAGES ]]; then
    # Nothing is installed but the wheel, which holds Python files only.
    rm -rf venv
    "$PYTHON" -m venv --without-pip venv
    site=$(venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "$PACKAGES" >"$site/packages.pth"
    "$PYTHON" -m zipfile -e "${wheels[0]}" "$site"
    for command in ray=ray.scripts.scripts raylay=raylay.services.cli; do
      printf '#!/bin/sh\nexec %q -m %s "$@"\n' "$PWD/venv/bin/python" "${command#*=}" \
        >"venv/bin/${command%%=*}"
      chmod +x "venv/bin/${command%%=*}"
    done
  else
    [[ -x venv/bin/python ]] || "$PYTHON" -m venv venv
    # shellcheck disable=SC2086
    venv/bin/python -m pip install --quiet $PIP_OPTIONS "${wheels[0]}[otlp,prometheus,security]"
    # Of one version there may be two builds: the one that is here now.
    venv/bin/python -m pip install --quiet --no-index --no-deps --force-reinstall "${wheels[0]}"
  fi
  echo "$wanted" >venv/installed
fi

# At the top: where it is not interactive, some .bashrc end early.
touch ~/.bashrc
line='[ -f ~/raylay/env ] && . ~/raylay/env'
if [[ $(head -n 1 ~/.bashrc) != "$line" ]]; then
  { echo "$line"; cat ~/.bashrc; } >~/.bashrc.raylay
  mv ~/.bashrc.raylay ~/.bashrc
fi
