"""The part of the build that is not Python; everything else is in pyproject.toml."""

from setuptools import Extension, setup

FOLDER = "transduct/functional"
KERNELS = Extension(
    "transduct.functional._kernels",
    [f"{FOLDER}/kernels_{name}.c" for name in ("products", "layers", "search")],
    depends=[f"{FOLDER}/kernels.h"],
    extra_compile_args=["-O3"],
    libraries=["m"],
    optional=True,  # without a compiler decoding takes PyTorch's own operations, and longer
)
setup(ext_modules=[KERNELS])
