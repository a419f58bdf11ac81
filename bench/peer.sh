#!/usr/bin/env bash
# Brings llama.cpp's own tools, built natively, for `spore bench --peer`:  bench/peer.sh DIR
# Needs a C++ compiler; about five minutes on two cores. DIR lies outside the repository and may be removed at any time.
set -euo pipefail

version=0.3.36 # of llama-cpp-python, whose source distribution carries llama.cpp
tools=(llama-bench llama-batched-bench llama-quantize llama-perplexity)

[ $# -eq 1 ] || { echo "usage: bench/peer.sh DIR" >&2; exit 2; }
mkdir -p "$1"
dir="$(cd "$1" && pwd)"
command -v c++ >/dev/null || { echo "peer.sh: no C++ compiler (c++) was found: install one and try again" >&2; exit 1; }

if [ ! -x "$dir/venv/bin/cmake" ]; then
    python3 -m venv "$dir/venv"
    "$dir/venv/bin/python" -m pip install --quiet --disable-pip-version-check cmake ninja scikit-build-core
fi
export PATH="$dir/venv/bin:$PATH"

source="$dir/llama_cpp_python-$version/vendor/llama.cpp"
if [ ! -d "$source" ]; then
    # pip asks the package for its metadata even when it only downloads; the build tool for that is already in the venv.
    python -m pip download --disable-pip-version-check --no-deps --no-build-isolation --no-binary :all: \
        --dest "$dir" "llama-cpp-python==$version"
    tar -xzf "$dir/llama_cpp_python-$version.tar.gz" -C "$dir"
fi

cmake -S "$source" -B "$dir/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_MTMD=OFF
cmake --build "$dir/build" --target "${tools[@]}"

echo
echo "Built ${tools[*]}. Now:"
echo "  ./run bench --peer $dir/build/bin"
