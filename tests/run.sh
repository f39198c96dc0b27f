#!/bin/sh
# Builds a release with everything that this machine has compilers for, and runs all tests. Usage: sh tests/run.sh
# Debian 12: installs what is missing. Ends with ctest's closing lines and its exit status.
set -eu
cd "$(dirname "$0")/.."

sh samples/install_packages.sh samples/build_packages.txt tests/packages.txt >&2
cmake --preset release
cmake --build --preset release -- -j "$(nproc)"
ctest --test-dir build/release --output-on-failure --timeout 600 -j "$(nproc)"
