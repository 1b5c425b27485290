"""The part of the build that is not Python; everything else is in pyproject.toml."""

from setuptools import Extension, setup

KERNELS = Extension(
    "transduct.functional._kernels",
    ["transduct/functional/kernels.c"],
    extra_compile_args=["-O3"],
    libraries=["m"],
    optional=True,  # without a compiler decoding takes PyTorch's own operations, and longer
)
setup(ext_modules=[KERNELS])
