"""A package with a custom op, in Python and compiled: `pip install .`, with dynet_cy installed."""

from Cython.Build import cythonize
from setuptools import Extension, setup

import dynet_cy as dy

compiled = Extension(
    "rbf.compiled",
    ["rbf/compiled.pyx", "rbf/kernels.c"],
    include_dirs=[dy.get_include(), "rbf"],
    extra_compile_args=["-O3"],
)
setup(
    name="rbf",
    version="1.0",
    packages=["rbf"],
    ext_modules=cythonize([compiled], include_path=[dy.get_cython_path()], language_level=3),
)
