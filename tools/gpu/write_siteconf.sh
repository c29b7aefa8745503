#!/usr/bin/env bash
# write_siteconf.sh PYCUDA_SOURCE CUDA_ROOT LIBCUDA_DIR: write PyCUDA's build settings into its source folder, so that
# no file in the home folder is needed. cuRAND is left out: a partial toolkit has no <curand.h>, and only pycuda.curandom
# needs it. --no-as-needed keeps libcuda.so.1 among the libraries that the extension depends on.
set -euo pipefail
cat >"$1/siteconf.py" <<X
CUDA_ROOT = "$2"
CUDA_ENABLE_CURAND = False
CUDADRV_LIB_DIR = ["$3"]
CUDADRV_LIBNAME = ["cuda"]
CXXFLAGS = ["-O1", "-g0", "-w"]
LDFLAGS = ["-Wl,--no-as-needed"]
X
