#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one call of at most ten minutes and without a network: builds for the
# card at hand, runs the GPU tests, compute-sanitizer on a few of them, the examples, and the benchmarks.
# A stage that fails does not stop the next ones; the summary says which did, and the status is then not 0.
set -eu
usage() {
  cat <<'END'
usage: sh bench/gpu/run.sh [--quick] [--dry-run] [--out FOLDER]
  --quick       a few benchmarks only
  --dry-run     says what would be done; needs no GPU
  --out FOLDER  for the results; default: $OUT if set, else bench/results
needs nvcc, CMake, a C++ compiler, Python with PyTorch, and for the tests Catch2 3 and nlohmann_json:
installed, or in the folder TERSEKV_DEPS, which bench/gpu/pack.sh fills.
PYTHON, CUDACXX: other programs than python3 and nvcc. TERSEKV_GPU_SECONDS: for everything (590); below
450 stages are left out.
END
}

quick='' dry='' out=${OUT:-} command="sh bench/gpu/run.sh $*"
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=--quick ;;
    --dry-run) dry=yes ;;
    --out)
      [ $# -ge 2 ] || { echo "run.sh: --out needs a folder" >&2; usage >&2; exit 2; }
      out=$2
      shift ;;
    --out=*) out=${1#--out=} ;;
    -h | --help) usage; exit 0 ;;
    *) echo "run.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
total=${TERSEKV_GPU_SECONDS:-590}
case $total in '' | *[!0-9]*) echo "run.sh: TERSEKV_GPU_SECONDS: expected seconds" >&2; exit 2 ;; esac

absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }
[ -z "$out" ] || out=$(absolute "$out")
deps=${TERSEKV_DEPS:-}
if [ -n "$deps" ]; then
  [ -d "$deps" ] || { echo "run.sh: TERSEKV_DEPS: no folder '$deps'" >&2; exit 2; }
  deps=$(absolute "$deps")
fi
# A program by its path, which may be said from where this was called; a name stays one.
program() { case $1 in */*) absolute "$1" ;; *) echo "$1" ;; esac; }
python=$(program "${PYTHON:-python3}")
nvcc=$(program "${CUDACXX:-}")
cd "$(dirname "$0")/../.."
[ -n "$out" ] || out=$PWD/bench/results

find_program() { # by its name, else beside CUDA's
  command -v "$1" || { [ -x "/usr/local/cuda/bin/$1" ] && echo "/usr/local/cuda/bin/$1"; } || :
}
[ -n "$nvcc" ] || nvcc=$(find_program nvcc)
sanitizer=$(find_program compute-sanitizer)
ask_card() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | sed -n 1p; }
capability=$(ask_card compute_cap | tr -d '. ') || :
card=$(ask_card name) || :
driver=$(ask_card driver_version) || :
if [ -n "$dry" ]; then
  : "${capability:=CAPABILITY}" "${card:=CARD}" "${driver:=DRIVER}" "${nvcc:=nvcc}"
  : "${sanitizer:=compute-sanitizer}"
elif [ -z "$capability" ]; then
  echo "run.sh: nvidia-smi shows no GPU (--dry-run needs none)" >&2
  exit 1
elif [ -z "$nvcc" ]; then
  echo "run.sh: no nvcc in PATH, CUDACXX or /usr/local/cuda" >&2
  exit 1
fi
slug=$(echo "$card" | tr '[:upper:]' '[:lower:]' |
  sed 's/nvidia//; s/[^a-z0-9]\{1,\}/-/g; s/^-//; s/-$//')
stem=$out/$(date +%F)-gpu-${slug:-card}
build=build/gpu-$capability
if command -v ninja >/dev/null 2>&1; then
  generator=Ninja keep_going='-k 0'
else
  generator='Unix Makefiles' keep_going=-k
fi
jobs=$(nproc 2>/dev/null || echo 2)
start=$(date +%s)
failures=0
stages=$build/stages.txt
if [ -z "$dry" ]; then
  mkdir -p "$build" "$out"
  : >"$stages"
fi

left() { echo $((total - ($(date +%s) - start))); }

# stage NAME SECONDS RESERVE COMMAND...: for SECONDS at most, and so that RESERVE seconds are left for
# later stages.
stage() {
  name=$1 limit=$2 reserve=$3
  shift 3
  if [ -n "$dry" ]; then
    printf '%s, at most %s s: %s\n' "$name" "$limit" "$*"
    return
  fi
  room=$(($(left) - reserve))
  [ "$room" -lt "$limit" ] && limit=$room
  begun=$(date +%s)
  log=$build/$name.log
  if [ "$limit" -lt 5 ]; then
    verdict=no-time
  elif timeout -k 5 "$limit" "$@" >"$log" 2>&1; then
    verdict=ok
  else
    status=$?
    verdict="FAILED($status)"
    case $status in 124 | 137) verdict="TIMED-OUT($limit)" ;; esac
    tail -n 40 "$log"
  fi
  [ "$verdict" = ok ] || failures=$((failures + 1))
  line="$name $verdict $(($(date +%s) - begun))"
  echo "$line" >>"$stages"
  echo "=== $line s"
}
# The path of what was built, or one that says what is missing when it is run.
built() {
  found=
  [ -d "$build" ] && found=$(find "$build" -name "$1" -type f | sed -n 1p)
  echo "${found:-$build/$1}"
}

# configure STAGE TESTS
configure() {
  stage "$1" 60 300 cmake -S . -B "$build" -G "$generator" -DCMAKE_BUILD_TYPE=Release \
    -DTERSEKV_BUILD_CUDA=ON -DTERSEKV_BUILD_TESTS="$2" -DTERSEKV_BUILD_BENCHMARKS=ON \
    -DTERSEKV_BUILD_EXAMPLES=OFF -DCMAKE_CUDA_COMPILER="$nvcc" \
    -DCMAKE_CUDA_ARCHITECTURES="$capability" -DPython3_EXECUTABLE="$(command -v "$python" || :)" \
    ${deps:+-DCMAKE_PREFIX_PATH="$deps"}
}
targets='tersekv_gpu_bench tersekv_gpu_tests'
configure configure ON
if [ "${verdict:-ok}" != ok ]; then # without Catch2, say: benchmarks need none
  configure benchmarks-only OFF
  targets=tersekv_gpu_bench
fi
# shellcheck disable=SC2086 # words
stage build 240 240 cmake --build "$build" --target $targets -j "$jobs" -- $keep_going
stage tests 180 200 env TERSEKV_NO_SKIP=1 ctest --test-dir "$build" -R '^gpu\.' \
  --output-on-failure --no-tests=error
for tool in memcheck racecheck; do
  stage $tool 150 170 "${sanitizer:-compute-sanitizer}" --tool $tool --error-exitcode 9 \
    "$(built tersekv_gpu_tests)" '[small]'
done
stage examples 120 170 sh bench/gpu/examples.sh "${nvcc:-nvcc}" "$capability" "$build"

# A case that has begun goes on for some seconds, and the tables need a moment.
seconds=$(($(left) - 40))
[ "$seconds" -gt 0 ] || seconds=1
library=$(built 'libtersekv_gpu_bench.*')
[ -n "$dry" ] || rm -f "$stem.json"  # an earlier run's would pass for this one's
stage benchmarks $((seconds + 25)) 10 "$python" -B bench/gpu/measure.py --library "$library" \
  --out "$stem.json" --seconds "$seconds" --driver "$driver" --command "$command" $quick
if [ -n "$dry" ]; then
  echo "tables: $stem.md from $stem.json"
  exit 0
fi
if [ -s "$stem.json" ] &&
  "$python" -B bench/gpu/table.py "$stem.json" "$stages" >"$build/table.md"; then
  cp "$build/table.md" "$stem.md"
  sed -n '/^## Goals/,/^## Decode/p' "$stem.md" | sed '/^## Decode/d'
else
  echo "tables FAILED 0" >>"$stages"
  failures=$((failures + 1))
fi
echo
sed 's/$/ s/' "$stages"
if [ "$failures" -ne 0 ]; then
  (cd "$build" && tar czf "$stem-logs.tgz" ./*.log stages.txt)
  echo "run.sh: $failures stages failed; their logs: $build/STAGE.log, all in $stem-logs.tgz"
  exit 1
fi
echo "$stem.md"
