#!/usr/bin/env bash
# For a GPU machine without a network: collect in DIR what it needs, less than 3 MB: a wheel of PyCUDA for its Python,
# the packages that PyCUDA imports, and PyCUDA's sdist as a fallback. Run it in the repository's root on a machine with a
# network and the CUDA headers. Copy DIR to the GPU machine with the checkout, and begin every command there with
# `source tools/gpu/env.sh DIR || exit`.
#
#   bash tools/gpu/prepare_wheels.sh [DIR [VERSION]]        (.gpuwheels; Python 3.12)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=${1:-.gpuwheels}
version=${2:-3.12}
pycuda=2026.1
cuda=${CUDA_ROOT:-/usr/local/cuda}
mkdir -p "$dir/sdist"
dir=$(cd "$dir" && pwd)

python3 -m pip download -q --no-deps --only-binary=:all: --python-version "$version" --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform any \
    -d "$dir" pytools platformdirs mako siphash24 markupsafe safetensors scipy-openblas32 greenlet

# The wheel must be built by the Python version of the GPU machine.
py=""
for c in "python$version" "$HOME"/.pyenv/versions/"$version".*/bin/"python$version"; do
    if command -v "$c" >/dev/null && "$c" -c 'import ensurepip' 2>/dev/null; then
        py=$c
        break
    fi
done
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
"${py:-python3}" -m venv "$tmp/v"
if [ -n "$py" ]; then
    bash "$here/install_pycuda.sh" "$tmp/v/bin/python" "$dir"
else
    echo "no Python $version here: PyCUDA will be built on the GPU machine, in one to two minutes" >&2
fi
"$tmp/v/bin/pip" install -q setuptools wheel 'numpy>=2'
CUDA_ROOT=$cuda "$tmp/v/bin/pip" download -q --no-deps --no-build-isolation --no-binary pycuda -d "$dir/sdist" "pycuda==$pycuda"
du -sh "$dir"
ls "$dir" "$dir/sdist"
