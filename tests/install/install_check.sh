#!/bin/sh
# Installs a build, moves the installation, and builds and runs programs against it. Usage: install_check.sh BUILD WORK
set -eu
build=$1
work=$2
here=$(cd "$(dirname "$0")" && pwd)

rm -rf "$work"
mkdir -p "$work"
cmake --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/moved"
prefix=$work/moved

echo "the program of the installation finds its library"
"$prefix/bin/cairn" --version

echo "find_package(cairn)"
cmake -S "$here/outside" -B "$work/outside" -DCMAKE_PREFIX_PATH="$prefix" >"$work/configure.log"
cmake --build "$work/outside" >"$work/build.log"
"$work/outside/outside"

echo "cc with pkg-config"
PKG_CONFIG_PATH=$prefix/lib/pkgconfig
export PKG_CONFIG_PATH
# shellcheck disable=SC2046  # flags are words
${CC:-cc} -std=c11 -Wall -Wextra -Werror "$here/../../samples/hello.c" $(pkg-config --cflags --libs cairn) -o "$work/hello"
answer=$(LD_LIBRARY_PATH="$prefix/lib" "$work/hello" "$prefix/share/cairn/wayfarer.cairn")
echo "hello: $answer"
[ "$answer" = 4821 ]

echo "nothing in the installation names where it was built"
if grep -rlI -e "$work/first" -e "$build" "$prefix"; then
  exit 1
fi
