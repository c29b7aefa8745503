# On a GPU machine without a network: source tools/gpu/env.sh [DIR] in the repository's root. Installs the packages that
# prepare_wheels.sh has put into DIR in build/gpu_site, checks that PyCUDA sees the GPU, and builds dynet_cy in place.
# Source it, so that the environment variables remain set. It returns non-zero when a step fails.
_gpu_dir=${1:-.gpuwheels}
_gpu_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
_gpu_site=$PWD/build/gpu_site
export CUDA_ROOT=${CUDA_ROOT:-/usr/local/cuda}
case ":$PATH:" in *":$CUDA_ROOT/bin:"*) ;; *) export PATH="$CUDA_ROOT/bin:$PATH" ;; esac
export PYTHONUNBUFFERED=1
export PYTHONPATH="$PWD:$_gpu_site${PYTHONPATH:+:$PYTHONPATH}"

# The driver's library, which the loader usually finds by itself.
_gpu_libcuda() {
    local d IFS=:
    for d in ${LD_LIBRARY_PATH:-}; do [ -e "$d/libcuda.so.1" ] && echo "$d/libcuda.so.1"; done
    ldconfig -p 2>/dev/null | awk '/libcuda\.so\.1 .*x86-64/ {print $NF; exit}'
    ls /usr/local/nvidia/lib64/libcuda.so.1 /usr/local/nvidia/lib/libcuda.so.1 /usr/lib/x86_64-linux-gnu/libcuda.so.1 2>/dev/null
}
if ! python3 -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null; then
    _gpu_lib=$(_gpu_libcuda | head -1)
    [ -n "$_gpu_lib" ] && export LD_LIBRARY_PATH="$(dirname "$_gpu_lib")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi

_gpu_sees() {
    python3 -c '
import pycuda.driver as d
d.init()
print("PyCUDA sees", d.Device(0).name(), d.Device(0).compute_capability(), "driver", d.get_driver_version())'
}

_gpu_setup() {
    if [ ! -d "$_gpu_site/pytools" ]; then
        python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$_gpu_site" "$_gpu_dir"/*.whl || return 1
    fi
    if ! _gpu_sees; then # there is no wheel, or it does not load: build it on this machine
        echo "building PyCUDA from its sdist" >&2
        rm -rf build/pycuda
        mkdir -p build/pycuda/lib
        ln -sf "$(_gpu_libcuda | head -1)" build/pycuda/lib/libcuda.so
        tar xzf "$_gpu_dir"/sdist/pycuda-*.tar.gz -C build/pycuda || return 1
        set -- "$PWD"/build/pycuda/pycuda-*
        bash "$_gpu_here/write_siteconf.sh" "$1" "$CUDA_ROOT" "$PWD/build/pycuda/lib" || return 1
        (cd "$1" && python3 -m pip install -q --no-build-isolation --no-deps --no-index --upgrade --target "$_gpu_site" . >../log 2>&1) \
            || { tail -20 build/pycuda/log >&2; return 1; }
        _gpu_sees || return 1
    fi
    python3 setup.py -q build_ext --inplace >build/gpu_build.log 2>&1 || { tail -30 build/gpu_build.log >&2; return 1; }
}
_gpu_setup
