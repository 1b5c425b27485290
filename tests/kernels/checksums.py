"""Builds and runs checksums.c, which says what every processor must compute to the bit.

`python -m tests.kernels.checksums` writes checksums.txt anew, on the fastest instruction set here.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from transduct.kernels import cpu

SOURCES, HERE = Path(cpu.__file__).parent, Path(__file__).parent
EXPECTED = HERE / "checksums.txt"
# as in setup.py, but not optimised, which is quicker to compile; the bits are the same
FLAGS = ("-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-DSOURCES=0u")
WARNINGS = ("-Wall", "-Wextra", "-Werror")


def build(
    program: Path,
    suffix: str,
    compiler: Sequence[str] = ("cc",),
    sources: Path = SOURCES,
    emulated: bool = False,
):
    """Compile the program for the instruction sets whose functions have this suffix; `emulated`
    without their instructions."""
    unit = f'-DUNIT="{suffix.strip("_")}.c"'
    folders = [HERE / "emulated", sources] if emulated else [sources]
    files = [HERE / "checksums.c", folders[0] / "processor.c", sources / "threads.c"]
    call = [*compiler, *FLAGS, unit, *[f"-I{folder}" for folder in folders], *map(str, files)]
    subprocess.run([*call, "-o", str(program), "-lpthread", "-lm"], check=True, timeout=300)
    return program


def checksums(program: Path, path: str, emulator: Sequence[str] = ()) -> str:
    """The checksums of an instruction set."""
    call = [*emulator, str(program), str([*cpu.PATHS].index(path))]
    return subprocess.run(call, check=True, capture_output=True, text=True, timeout=600).stdout


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = cpu.library().path
        EXPECTED.write_text(checksums(build(Path(folder) / "program", cpu.PATHS[path]), path))
