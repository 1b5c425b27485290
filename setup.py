"""The part of the build that is not Python; everything else is in pyproject.toml."""

from pathlib import Path
from zlib import crc32

from setuptools import Extension, setup

FOLDER = Path("transduct/kernels")
SOURCES = sorted(map(str, FOLDER.glob("*.[ch]")))
KERNELS = Extension(
    "transduct.kernels._kernels",
    [name for name in SOURCES if name.endswith(".c")],
    depends=[name for name in SOURCES if name.endswith(".h")],
    # so that an older library beside newer sources is noticed; see `kernels.cpu.library`
    define_macros=[("SOURCES", f"{crc32(b''.join(Path(name).read_bytes() for name in SOURCES))}u")],
    extra_compile_args=["-O3"],
    libraries=["m"],
    optional=True,  # without a compiler PyTorch's own operations do the same, and take longer
)
setup(ext_modules=[KERNELS])
