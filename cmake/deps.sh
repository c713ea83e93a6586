# SPDX-License-Identifier: Apache-2.0
#
# What the scripts need, and how to get it. Sourced, not run:
#
#     . cmake/deps.sh
#     tersekv_require build tests      # returns when everything is there, exits 1 when it cannot be
#
# Groups: build (compiler, cmake, ninja) · engine (ICU, Eigen, nlohmann_json) · tests (engine +
# Catch2 v3) · bench (Google Benchmark, python3) · venv (python3 with virtual environments) · model
# (python3 with pip) · checks (clang, clang-format) · portable (a compiler for aarch64, qemu).
#
# Presence is judged by what the build will look for (a program, a header), never by the package
# database, so libraries installed in other ways count (CMAKE_PREFIX_PATH is honoured). apt is
# touched only when something is missing.

tersekv_say() { printf 'tersekv: %s\n' "$*" >&2; }

# tersekv_version_at_least 3.25.1 3.25
tersekv_version_at_least() {
  printf '%s %s\n' "$1" "$2" | awk '{
    n = split($1, have, "."); m = split($2, want, ".")
    for (i = 1; i <= (n > m ? n : m); ++i) {
      if (have[i] + 0 > want[i] + 0) exit 0
      if (have[i] + 0 < want[i] + 0) exit 1
    }
    exit 0 }'
}

# True when the compiler finds the header, or some prefix in CMAKE_PREFIX_PATH has it.
tersekv_has_header() {
  for tersekv_prefix in $(printf '%s' "${CMAKE_PREFIX_PATH:-}" | tr ';:' '  '); do
    for tersekv_sub in include include/eigen3; do
      [ -e "$tersekv_prefix/$tersekv_sub/$1" ] && return 0
    done
  done
  tersekv_has g++ || { [ -e "/usr/include/$1" ]; return; }
  printf '#if !__has_include(<%s>)\n#error missing\n#endif\n' "$1" |
    ${CXX:-g++} -std=c++20 -I/usr/include/eigen3 -E -x c++ - >/dev/null 2>&1
}

tersekv_has() {
  case $1 in
    g++) tersekv_compiler=${CXX:-g++} # which may be run by another program
      command -v "${tersekv_compiler%% *}" >/dev/null 2>&1 ;;
    cmake)
      command -v cmake >/dev/null 2>&1 &&
        tersekv_version_at_least "$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')" 3.25 ;;
    ninja-build) command -v ninja >/dev/null 2>&1 ;;
    libicu-dev) tersekv_has_header unicode/uchar.h ;;
    libeigen3-dev) tersekv_has_header Eigen/Core ;;
    nlohmann-json3-dev) tersekv_has_header nlohmann/json.hpp ;;
    catch2) tersekv_has_header catch2/catch_session.hpp ;; # a header that version 2 does not have
    libbenchmark-dev) tersekv_has_header benchmark/benchmark.h ;;
    python3) command -v python3 >/dev/null 2>&1 ;;
    python3-venv) python3 -c 'import venv, ensurepip' >/dev/null 2>&1 ;;
    python3-pip) python3 -m pip --version >/dev/null 2>&1 ;;
    clang) command -v clang++ >/dev/null 2>&1 ;;
    clang-format) command -v clang-format >/dev/null 2>&1 ;;
    g++-aarch64-linux-gnu) command -v aarch64-linux-gnu-g++ >/dev/null 2>&1 ;;
    qemu-user) command -v qemu-aarch64 >/dev/null 2>&1 ;;
    *) tersekv_say "cmake/deps.sh does not know '$1'"; exit 1 ;;
  esac
}

tersekv_group() {
  case $1 in
    build) echo "g++ cmake ninja-build" ;;
    engine) echo "libicu-dev libeigen3-dev nlohmann-json3-dev" ;;
    tests) echo "libicu-dev libeigen3-dev nlohmann-json3-dev catch2 python3" ;;
    bench) echo "libbenchmark-dev python3" ;;
    venv) echo "python3 python3-venv" ;;
    model) echo "python3 python3-pip" ;;
    checks) echo "clang clang-format" ;;
    portable) echo "g++-aarch64-linux-gnu qemu-user" ;;
    *) tersekv_say "cmake/deps.sh has no group '$1'"; exit 1 ;;
  esac
}

# The packages of the given groups that are missing, each once.
tersekv_missing() {
  tersekv_list=
  for tersekv_name in "$@"; do
    tersekv_packages=$(tersekv_group "$tersekv_name") || return 1
    for tersekv_package in $tersekv_packages; do
      case " $tersekv_list " in *" $tersekv_package "*) continue ;; esac
      tersekv_has "$tersekv_package" || tersekv_list="$tersekv_list $tersekv_package"
    done
  done
  echo "$tersekv_list"
}

tersekv_apt() {
  # shellcheck disable=SC2086 # TERSEKV_SUDO is empty or one word
  $TERSEKV_SUDO env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=300 "$@" >&2
}

tersekv_candidate() { LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: //p'; }

# Debian 12's own Catch2 is version 2; version 3 is in its backports. The mirror is the one the
# machine already uses for the release. The extra source lives for this one installation only.
tersekv_install_catch2() {
  tersekv_version=$(tersekv_candidate catch2)
  if tersekv_version_at_least "${tersekv_version%%-*}" 3; then
    tersekv_apt install --no-install-recommends catch2
    return
  fi
  # shellcheck source=/dev/null
  tersekv_codename=$(. /etc/os-release && [ "${ID:-}" = debian ] && echo "${VERSION_CODENAME:-}") || :
  # shellcheck disable=SC2016 # apt expands these
  tersekv_mirror=$(apt-get indextargets 'Created-By: Packages' --format '$(RELEASE) $(REPO_URI)' |
    awk -v codename="$tersekv_codename" '$1 == codename && codename != "" { print $2; exit }')
  if [ -z "$tersekv_mirror" ]; then
    tersekv_say "Catch2 3 or newer is needed; this distribution offers '${tersekv_version:-none}'."
    tersekv_say "Debian 12, Ubuntu 24.04 and later have it; elsewhere install it and set CMAKE_PREFIX_PATH."
    return 1
  fi
  tersekv_parts=$(mktemp -d)
  cp /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources "$tersekv_parts" 2>/dev/null || :
  tersekv_keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  tersekv_options=
  [ -e "$tersekv_keyring" ] && tersekv_options="[signed-by=$tersekv_keyring] "
  echo "deb $tersekv_options$tersekv_mirror $tersekv_codename-backports main" \
    >"$tersekv_parts/backports.list"
  chmod 755 "$tersekv_parts" # apt reads it as its own user
  tersekv_apt update -o Dir::Etc::sourcelist="$tersekv_parts/backports.list" \
    -o Dir::Etc::sourceparts=/dev/null -o APT::Get::List-Cleanup=0 &&
    tersekv_apt install --no-install-recommends -o Dir::Etc::sourceparts="$tersekv_parts" \
      "catch2/$tersekv_codename-backports" && tersekv_status=0 || tersekv_status=1
  rm -rf "$tersekv_parts"
  return "$tersekv_status"
}

# tersekv_require group...
tersekv_require() {
  tersekv_wanted=$(tersekv_missing "$@") || exit 1
  [ -z "$tersekv_wanted" ] && return 0
  tersekv_say "missing:$tersekv_wanted"

  TERSEKV_SUDO=none
  if [ "$(id -u)" = 0 ]; then
    TERSEKV_SUDO=
  elif command -v sudo >/dev/null 2>&1 && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    TERSEKV_SUDO=sudo
  fi
  if ! command -v apt-get >/dev/null 2>&1 || [ "$TERSEKV_SUDO" = none ]; then
    tersekv_say "cannot install them here (needs apt and root). Run this as root, or on Debian or Ubuntu:"
    tersekv_say "    apt-get update && apt-get install$tersekv_wanted"
    case $tersekv_wanted in *catch2*)
      tersekv_say "    (Catch2 must be version 3: on Debian 12 it comes from bookworm-backports)" ;;
    esac
    exit 1
  fi

  tersekv_plain=
  for tersekv_package in $tersekv_wanted; do
    [ "$tersekv_package" = catch2 ] || tersekv_plain="$tersekv_plain $tersekv_package"
  done
  for tersekv_package in $tersekv_wanted; do
    case $(tersekv_candidate "$tersekv_package") in '' | '(none)') tersekv_apt update; break ;; esac
  done
  if [ -n "$tersekv_plain" ]; then
    # shellcheck disable=SC2086 # a list of words
    tersekv_apt install --no-install-recommends $tersekv_plain ||
      { tersekv_apt update && tersekv_apt install --no-install-recommends $tersekv_plain; } || :
  fi
  case $tersekv_wanted in *catch2*) tersekv_install_catch2 || : ;; esac

  tersekv_wanted=$(tersekv_missing "$@") || exit 1
  [ -z "$tersekv_wanted" ] && return 0
  tersekv_say "could not install:$tersekv_wanted (see the messages above)"
  exit 1
}
