#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# header_alone.sh COMPILER INCLUDE_DIR HEADER [INCLUDE_DIR...]: the header compiles with nothing before
# it, and again.
set -eu
compiler=$1 folder=$2 header=$3
shift 3
for more in "$@"; do
  shift
  set -- "$@" "-I$more"
done
printf '#include <%s>\n#include <%s>\n' "$header" "$header" |
  "$compiler" -std=c++20 -Wall -Wextra -Wshadow -Wpedantic -Werror -fsyntax-only -I"$folder" "$@" \
    -x c++ -
