#!/usr/bin/env bash
# Build and install PyCUDA on a machine without an NVIDIA driver and perhaps with only a part of the CUDA toolkit: for
# tests on the emulated driver and for compile checks. About 90 s on one core; the wheel is cached in WHEELDIR.
#
#   bash tools/gpu/install_pycuda.sh [PYTHON [WHEELDIR]]     (python3, ~/.cache/dynet_cy/wheels)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
py=${1:-python3}
dir=${2:-$HOME/.cache/dynet_cy/wheels}
cuda=${CUDA_ROOT:-/usr/local/cuda}
v=2026.1
tag=$("$py" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
mkdir -p "$dir"
if ! ls "$dir"/pycuda-$v-"$tag"-*.whl >/dev/null 2>&1; then
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    "$py" -m venv "$tmp/v"
    "$tmp/v/bin/pip" install -q setuptools wheel 'numpy>=2'
    CUDA_ROOT=$cuda "$tmp/v/bin/pip" download -q --no-deps --no-build-isolation --no-binary pycuda -d "$tmp" "pycuda==$v"
    "$py" "$here/make_driver.py" "$tmp/stub" "$cuda/include"
    tar xzf "$tmp/pycuda-$v.tar.gz" -C "$tmp"
    bash "$here/write_siteconf.sh" "$tmp/pycuda-$v" "$cuda" "$tmp/stub"
    (cd "$tmp/pycuda-$v" && PATH="$cuda/bin:$PATH" "$tmp/v/bin/pip" wheel -q --no-build-isolation --no-deps -w "$dir" .)
fi
"$py" -m pip install -q numpy "$dir"/pycuda-$v-"$tag"-*.whl
