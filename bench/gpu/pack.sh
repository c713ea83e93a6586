#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fills a folder with what the GPU tests need and a machine without a network may lack: Catch2 3 and
# nlohmann_json as they are installed here. Copy it there and name it in TERSEKV_DEPS for run.sh.
#     sh bench/gpu/pack.sh FOLDER
set -eu
case $#,${1:-} in
  1,[!-]*) ;;
  *) echo "usage: sh bench/gpu/pack.sh FOLDER" >&2; exit 2 ;;
esac
folder=$1

# The prefix under which a file is installed.
prefix_of() {
  for prefix in $(printf '%s' "${CMAKE_PREFIX_PATH:-}" | tr ';:' '  ') /usr/local /usr; do
    [ -e "$prefix/$1" ] && { echo "$prefix"; return; }
  done
  echo "pack.sh: $1 is not installed (Debian: $2)" >&2
  exit 1
}
# copy PREFIX PATH...: keeps their places, as packages find their files from where they are.
copy() {
  from=$1
  shift
  for path in "$@"; do
    mkdir -p "$folder/$(dirname "$path")"
    cp -RL "$from/$path" "$folder/$(dirname "$path")/"
  done
}
# What of PREFIX matches the patterns, without PREFIX.
matching() (
  cd "$1"
  shift
  for path in "$@"; do
    # shellcheck disable=SC2086 # patterns
    for found in $path; do if [ -e "$found" ]; then echo "$found"; fi; done
  done
)

catch2=$(prefix_of include/catch2/catch_session.hpp 'catch2, version 3')
json=$(prefix_of include/nlohmann/json.hpp nlohmann-json3-dev)
catch2_files=$(matching "$catch2" 'lib/libCatch2*.a' 'lib/*/libCatch2*.a' lib/cmake/Catch2 \
  'lib/*/cmake/Catch2' 'share/doc/*catch2*/copyright')
json_files=$(matching "$json" share/cmake/nlohmann_json lib/cmake/nlohmann_json \
  'lib/*/cmake/nlohmann_json' 'share/doc/nlohmann-json*/copyright')
# shellcheck disable=SC2086 # lists of words
copy "$catch2" include/catch2 $catch2_files
# shellcheck disable=SC2086
copy "$json" include/nlohmann $json_files

for wanted in Catch2Config.cmake nlohmann_jsonConfig.cmake libCatch2.a libCatch2Main.a; do
  if [ -z "$(find "$folder" -name "$wanted")" ]; then
    echo "pack.sh: $wanted was not found where Catch2 or nlohmann_json is installed" >&2
    exit 1
  fi
done
du -sh "$folder"
