"""The backend for NVIDIA GPUs.

Nothing here is loaded before a program asks for a GPU, and nothing needs CUDA to build or to import. `backend` opens
devices; the other modules are its parts, bottom up: `driver` (libcuda and cuBLAS by name), `compiler` (kernels to
cubins), `registry` (the GPU ops), `memory`, the families of ops, `executor`, `update` (trainers).
"""
