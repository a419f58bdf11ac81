#!/usr/bin/env bash
# Brings llama.cpp's own tools for `spore bench --peer` and bench/server.py:  bench/peer.sh DIR [--only avx2] [--mtmd]
# Built for this very CPU into DIR/build; with `--only avx2` for AVX2 and nothing above it (no AVX-512, no VNNI) into
# DIR/build-avx2, as the peer of our AVX2 target on a bigger CPU.
# With `--only ik --source FOLDER` it builds the tools of ik_llama.cpp instead, from a folder with its source, into
# DIR/build-ik; with `--only avx2` too, into DIR/build-ik-avx2. Half of the time goes into its FlashAttention kernels for
# caches of every type: `--f16-cache` builds those for an f16 cache alone, which is what `spore bench` measures, and
# `--no-flash-attention` none (then `fa=on` is ggml's own, slower attention).
# With `--mtmd` it builds what reads pictures instead, into the same folder: libmtmd, and the driver that
# bench/vision_peer.py and bench/vision_speed.py start. A folder may have both.
# Needs a C++ compiler; about ten minutes on two cores. DIR lies outside the repository and may be removed at any time.
# CMAKE_BUILD_PARALLEL_LEVEL=N limits the compilers that run at a time.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

version=0.3.36 # of llama-cpp-python, whose source distribution carries llama.cpp
tools=(llama-bench llama-batched-bench llama-quantize llama-perplexity llama-server)

usage() {
    echo "usage: bench/peer.sh DIR [--only avx2] [--mtmd]" >&2
    echo "       bench/peer.sh DIR --only ik --source FOLDER [--only avx2] [--f16-cache | --no-flash-attention]" >&2
    exit 2
}
target=native has_mtmd='' is_ik='' source='' attention=()
[ $# -ge 1 ] && [ -n "$1" ] && [ "${1#-}" = "$1" ] || usage
place=$1
shift
while [ $# -gt 0 ]; do
    case "$1 ${2-}" in
    "--only avx2") target=avx2 && shift 2 ;;
    "--only ik") is_ik=1 tools=(llama-bench llama-batched-bench) && shift 2 ;;
    "--source "?*) source=$2 && shift 2 ;;
    "--f16-cache "*) attention=(-DGGML_IQK_FA_ALL_QUANTS=OFF) && shift ;;
    "--no-flash-attention "*) attention=(-DGGML_IQK_FLASH_ATTENTION=OFF) && shift ;;
    "--mtmd "*) has_mtmd=1 tools=(mtmd) && shift ;;
    *) usage ;;
    esac
done
[ -z "$is_ik" ] || [ -z "$has_mtmd" ] || usage
[ -n "$is_ik" ] || [ -z "$source${attention[*]-}" ] || usage
if [ -n "$is_ik" ] && [ ! -f "$source/ggml/src/iqk/iqk_mul_mat.cpp" ]; then
    echo "peer.sh: --source '$source' does not hold the source of ik_llama.cpp: give a folder with a copy of" \
        "github.com/ikawrakow/ik_llama.cpp" >&2
    exit 1
fi
mkdir -p "$place"
dir="$(cd "$place" && pwd)"
command -v c++ >/dev/null || { echo "peer.sh: no C++ compiler (c++) was found: install one and try again" >&2; exit 1; }

case $target in
native) build="$dir/build" flags=(-DGGML_NATIVE=ON) ;;
avx2)
    build="$dir/build-avx2"
    flags=(-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON
        -DGGML_AVX_VNNI=OFF -DGGML_AVX512=OFF -DGGML_AVX512_VBMI=OFF -DGGML_AVX512_VNNI=OFF -DGGML_AVX512_BF16=OFF)
    ;;
esac

if [ ! -x "$dir/venv/bin/cmake" ]; then
    python3 -m venv "$dir/venv"
    "$dir/venv/bin/python" -m pip install --quiet --disable-pip-version-check cmake ninja scikit-build-core
fi
export PATH="$dir/venv/bin:$PATH"

if [ -n "$is_ik" ]; then
    build="$dir/build-ik${build#"$dir/build"}"
    case "${attention[*]-}" in
    *FLASH_ATTENTION*) # its own option does not link: ggml calls both functions, and takes its own way where they return 0
        mkdir -p "$build"
        printf '%s\n' 'unsigned long iqk_fa_work_buffer_size() { return 0; }' \
            'int iqk_flash_attn_noalibi() { return 0; }' | cc -x c -c - -o "$build/no_flash_attention.o"
        attention+=("-DCMAKE_EXE_LINKER_FLAGS=$build/no_flash_attention.o")
        ;;
    esac
    cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "${flags[@]}" ${attention[@]+"${attention[@]}"} \
        -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF -DGGML_CCACHE=OFF
    cmake --build "$build" --target "${tools[@]}"
    echo
    echo "Built ${tools[*]} of ik_llama.cpp ($target). Now:"
    echo "  ./run bench --peer $build/bin"
    exit
fi

source="$dir/llama_cpp_python-$version/vendor/llama.cpp"
if [ ! -d "$source" ]; then
    # pip asks the package for its metadata even when it only downloads; the build tool for that is already in the venv.
    python -m pip download --disable-pip-version-check --no-deps --no-build-isolation --no-binary :all: \
        --dest "$dir" "llama-cpp-python==$version"
    tar -xzf "$dir/llama_cpp_python-$version.tar.gz" -C "$dir"
fi

cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "${flags[@]}" -DLLAMA_CURL=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=ON -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DMTMD_VIDEO=OFF
cmake --build "$build" --target "${tools[@]}"

echo
if [ -z "$has_mtmd" ]; then
    echo "Built ${tools[*]} ($target). Now:"
    echo "  ./run bench --peer $build/bin"
    exit
fi
origin="\$ORIGIN" # where the driver itself lies
[ "$(uname -s)" != Darwin ] || origin=@loader_path
c++ -std=c++17 -O2 -I"$source/include" -I"$source/ggml/include" -I"$source/tools/mtmd" "$here/mtmd_driver.cpp" \
    -L"$build/bin" -lmtmd -lllama -lggml -lggml-base "-Wl,-rpath,$origin" -o "$build/bin/mtmd-driver"
echo "Built ${tools[*]} mtmd-driver ($target). Now:"
echo "  python bench/vision_peer.py $build/bin"
echo "  python bench/vision_speed.py $build/bin"
