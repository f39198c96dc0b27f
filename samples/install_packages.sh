#!/bin/sh
# Installs the Debian or Ubuntu packages named in the given lists, those that are missing. Usage: install_packages.sh LIST...
set -eu

missing=""
for package in $(cat "$@"); do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

as_root=""
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "missing packages:$missing" >&2
    echo "install them as root, or install sudo: apt-get install --no-install-recommends$missing" >&2
    exit 1
  fi
  as_root="sudo"
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get -q -o DPkg::Lock::Timeout=300 update
# shellcheck disable=SC2086  # a list of names
$as_root apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $missing
