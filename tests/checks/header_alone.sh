#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# header_alone.sh COMPILER INCLUDE_DIR HEADER: the header compiles with nothing before it, and again.
set -eu
printf '#include <%s>\n#include <%s>\n' "$3" "$3" |
  "$1" -std=c++20 -Wall -Wextra -Wshadow -Wpedantic -Werror -fsyntax-only -I"$2" -x c++ -
