#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures TerseKV beside PyTorch, llama.cpp and OpenVINO GenAI on this machine, in turns, in one call:
# makes a virtual environment, installs them with pip, builds, measures, and writes a table and plots.
set -eu
usage() {
  cat <<'END'
usage: sh bench/peers/run.sh [options]
  --quick           a few cases, three minutes; all of it: about 45
  --peers LIST      of torch, llama.cpp, openvino (all); "none" installs and measures none
  --only LIST       of attention, steps, overheads, streaming, prompts, engine; other sections stay as
                    they are in the results of the same day
  --out FOLDER      for the results (bench/results)
  --venv FOLDER     the virtual environment (build/peers-venv)
  --dry-run         says what would be done
pip takes packages from where it is configured to. PyTorch's ordinary wheel brings gigabytes of CUDA
libraries that are not used: where an index of wheels for processors can be reached, name it in
PIP_EXTRA_INDEX_URL. A peer that cannot be installed is left out, and the table says so.
END
}

quick='' only='' peers=torch,llama.cpp,openvino out='' venv='' dry='' command="sh bench/peers/run.sh $*"
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=--quick ;;
    --dry-run) dry=yes ;;
    --peers | --only | --out | --venv)
      [ $# -ge 2 ] || { echo "run.sh: $1 needs a value" >&2; usage >&2; exit 2; }
      case $1 in
        --peers) peers=$2 ;;
        --only) only=$2 ;;
        --out) out=$2 ;;
        --venv) venv=$2 ;;
      esac
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "run.sh: unknown option '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
[ "$peers" != none ] || peers=
absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }
[ -z "$out" ] || out=$(absolute "$out")
[ -z "$venv" ] || venv=$(absolute "$venv")
cd "$(dirname "$0")/../.."
: "${out:=$PWD/bench/results}" "${venv:=$PWD/build/peers-venv}"
stem=$out/$(date +%F)-peers-cpu
build=build/peers
model=${XDG_CACHE_HOME:-$HOME/.cache}/tersekv/SmolLM2-135M-Instruct.Q4_1.gguf
python=$venv/bin/python
say() { echo "run.sh: $*" >&2; }
step() { if [ -n "$dry" ]; then echo "$*"; else "$@"; fi; }
wants() { case ,$peers, in *,"$1",*) return 0 ;; *) return 1 ;; esac; }

# peer MODULE COMMAND...: installs what is not there; a failure leaves the peer out.
peer() {
  module=$1
  shift
  if [ -z "$dry" ] && "$python" -c "import $module" >/dev/null 2>&1; then return; fi
  say "installing for $module"
  step "$@" || say "$module could not be installed; it is left out"
}

if [ -z "$dry" ]; then
  . cmake/deps.sh
  tersekv_require build venv
fi
if [ ! -x "$python" ]; then
  # What is there is not ours to write into, or to remove.
  [ ! -e "$venv" ] || { say "$venv is there already, and no virtual environment"; exit 2; }
  step python3 -m venv "$venv" || { rm -rf "$venv"; exit 1; }
fi
if wants torch; then peer torch "$python" -m pip install torch numpy; fi
if wants llama.cpp; then
  # Built from source for this processor. Where its code for AMX crashes (an illegal instruction under
  # some hypervisors), it is built without, and with AVX-512 by name.
  peer llama_cpp "$python" -m pip install --no-binary llama-cpp-python llama-cpp-python
  if [ -z "$dry" ] && [ -f "$model" ] && "$python" -c 'import llama_cpp' >/dev/null 2>&1 &&
    ! "$python" -c 'import llama_cpp, sys
llama = llama_cpp.Llama(sys.argv[1], n_ctx=64, n_threads=1, verbose=False)
llama.eval(llama.tokenize(b"Once upon a time"))' "$model" >/dev/null 2>&1; then
    say "llama.cpp crashes; building it without AMX"
    step env CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON \
-DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON" \
      "$python" -m pip install --force-reinstall --no-cache-dir --no-deps \
      --no-binary llama-cpp-python llama-cpp-python || {
      say "llama.cpp is left out"
      peers=$(echo "$peers" | sed 's/llama\.cpp//')
    }
  fi
fi
if wants openvino; then peer openvino_genai "$python" -m pip install openvino-genai; fi

step cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DTERSEKV_NATIVE=ON -DTERSEKV_BUILD_TESTS=OFF \
  -DTERSEKV_BUILD_EXAMPLES=ON -DTERSEKV_BUILD_BENCHMARKS=ON
step cmake --build "$build" --target tersekv_peers -j "$(nproc)"
engine=''
if step cmake --build "$build" --target tersekv-llama -j "$(nproc)"; then
  engine=$build/examples/tersekv-llama
  [ -n "$dry" ] || [ -f "$model" ] || say "no model: run examples/run.sh once, which fetches it"
fi
[ -n "$dry" ] || [ -f "$model" ] || model=

step mkdir -p "$out"
status=0
step "$python" -B bench/peers/measure.py --library "$build/bench/peers/libtersekv_peers.so" \
  --out "$stem.json" --peers "$peers" ${only:+--only "$only"} $quick ${engine:+--engine "$engine"} \
  ${model:+--model "$model"} --text examples/data/kjv.txt --command "$command" || status=$?
if [ -n "$dry" ]; then
  echo "tables: $stem.md and plots from $stem.json"
  exit 0
fi
[ $status -ne 2 ] || exit 2  # it took nothing of what it was told
"$python" -B bench/peers/table.py "$stem.json" >"$stem.md.part" || { rm -f "$stem.md.part"; exit 1; }
mv "$stem.md.part" "$stem.md"
"$python" -B bench/peers/plot.py "$stem.json" "$stem"
sed -n '/^## Goals/,/^## Decode/p' "$stem.md" | sed '/^## Decode/d'
echo "$stem.md"
exit $status
