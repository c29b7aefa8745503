"""Kernels: the C functions that compute on floats, one set for each instruction set."""
