#!/bin/sh
# Compiles the generated sources of a folder together with others. Usage: compile.sh MCS OUTPUT FOLDER SOURCE...
set -eu
compiler=$1 output=$2 folder=$3
shift 3
exec "$compiler" -unsafe -langversion:latest -nowarn:0414 -target:library -out:"$output" "$folder"/*.cs "$@"
