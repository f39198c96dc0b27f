#!/bin/sh
# From a fresh Debian 12 machine to a memory that answers, in one command: sh samples/quickstart.sh
# Installs missing packages, builds a release into build/quickstart, reads a page, saves, and asks it in new processes.
set -eu
cd "$(dirname "$0")/.."
build=build/quickstart
log=$build/build.log

if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); else bold="" plain=""; fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

say "1. Build"
sh samples/install_packages.sh samples/build_packages.txt
mkdir -p "$build"
gpu=OFF
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then gpu=AUTO; fi
echo "a release into $build (log: $log)"
if ! { cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DCAIRN_TESTS=OFF -DCAIRN_BINDINGS= \
         -DCAIRN_BACKEND_CUDA=$gpu -DCAIRN_BACKEND_ROCM=OFF && cmake --build "$build"; } >"$log" 2>&1; then
  tail -n 30 "$log" >&2
  echo "the build failed; the whole log: $log" >&2
  exit 1
fi

cairn=$build/bin/cairn
memory=$build/notebook.state
rm -f "$memory"

say "2. Remember a page ($(wc -c <samples/notebook.txt) bytes, four facts among other things)"
grep '^Note:' samples/notebook.txt
echo
"$cairn" remember --state "$memory" --text samples/notebook.txt

say "3. Ask the memory, each time in a new process that never saw the page"
wrong=0
ask() {
  answer=$("$cairn" ask --state "$memory" "$1")
  mark="right"
  if [ "$answer" != "$2" ]; then
    mark="wrong: the page says $2"
    wrong=1
  fi
  printf '  %-48s %s%s%s  (%s)\n' "$1" "$bold" "$answer" "$plain" "$mark"
}
ask "What is the code of Marlen Tovik?" "4821"
ask "What is the town of Selda Brunn?" "Port Velsa"
ask "Tell me the price of the round table." "318"

say "4. The memory: $(wc -c <"$memory") bytes. It grows only until every slot is written, however long the text"
"$cairn" inspect "$memory"

printf '\nNext: %s --help, and README.md\n' "$cairn"
exit $wrong
