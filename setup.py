"""The part of the build that is not Python; everything else is in pyproject.toml."""

from pathlib import Path
from zlib import crc32

from setuptools import Extension, setup

FOLDER = Path("transduct/kernels")
SOURCES = sorted(map(str, FOLDER.glob("*.[ch]")))
# the others are compiled within these, once for each instruction set
UNITS = "avx2", "avx512", "neon", "floats", "processor", "threads"
KERNELS = Extension(
    "transduct.kernels._kernels",
    [str(FOLDER / f"{unit}.c") for unit in UNITS],
    depends=SOURCES,
    # so that an older library beside newer sources is noticed; see `kernels.cpu.library`
    define_macros=[("SOURCES", f"{crc32(b''.join(Path(name).read_bytes() for name in SOURCES))}u")],
    # no contraction, so that every processor rounds alike; roots by the instruction alone
    extra_compile_args=["-O3", "-ffp-contract=off", "-fno-math-errno"],
    optional=True,  # without a compiler PyTorch's own operations do the same, and take longer
)
setup(ext_modules=[KERNELS])
