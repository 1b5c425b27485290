"""The kernels on other systems and processors: compiled for them by Zig's compiler, and run in an
emulator where there is one. Those for x86 run without AVX2, AVX512, VNNI and AMX too."""

import importlib.util
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.checksums import EXPECTED, FLAGS, SOURCES, WARNINGS, build, checksums
from transduct.kernels import cpu

ZIG = (sys.executable, "-m", "ziglang", "cc", "-O1", "-target")
UNITS = ("avx2", "avx512", "floats", "neon", "processor", "threads")
TARGETS = {
    "aarch64-linux-gnu": "_neon",
    "aarch64-macos": "_neon",
    "aarch64-windows-gnu": "_neon",
    "x86_64-macos": "_avx512",
    "x86_64-windows-gnu": "_avx512",
}
ARM_LINUX = "aarch64-linux-musl"  # its programs need no library of the system
# emulated processors, by the fastest instruction set that each has
PROCESSORS = {"neon": "cortex-a72", "dotprod": "neoverse-n1", "i8mm": "max"}

compiler = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None,
    reason="the compiler for other systems is not installed: pip install ziglang",
)
emulator = pytest.mark.skipif(
    shutil.which("qemu-aarch64") is None,
    reason="the emulator of ARM is not installed: apt-get install qemu-user",
)


@compiler
@pytest.mark.parametrize(
    "target",
    [
        # Zig first compiles the system's libraries
        pytest.param(target, marks=() if target == "aarch64-linux-gnu" else pytest.mark.slow)
        for target in TARGETS
    ],
)
def test_the_library_is_built_without_a_warning_for(target, tmp_path):
    library = tmp_path / "library"
    units = [str(SOURCES / f"{unit}.c") for unit in UNITS]
    call = [*ZIG, target, *FLAGS, *WARNINGS, "-shared", *units, "-o", str(library)]
    subprocess.run(call, check=True, timeout=280)
    exported = library.read_bytes()
    for name in cpu.ARGUMENTS:
        suffix = "" if name in cpu.COMMON else TARGETS[target]
        assert f"{name}{suffix}\0".encode() in exported


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("arm") / "program", "_neon", [*ZIG, ARM_LINUX, *WARNINGS])


def changed(lines):
    pairs = zip(lines.splitlines(), EXPECTED.read_text().splitlines(), strict=True)
    return {one.rpartition(" ")[0] for one, other in pairs if one != other}


def emulated(path):
    return "qemu-aarch64", "-cpu", PROCESSORS[path]


@compiler
@emulator
@pytest.mark.slow
@pytest.mark.parametrize("path", PROCESSORS)
def test_arm_gives_the_bits_on_file(program, path):
    """On a processor without faster instructions, which would stop the program."""
    assert changed(checksums(program, path, emulated(path))) == set()


@compiler
@emulator
@pytest.mark.slow
@pytest.mark.parametrize("fastest", PROCESSORS)
def test_arm_says_which_instructions_it_has(program, fastest):
    sets = {path: [*emulated(fastest), program, f"{n}", "ask"] for n, path in enumerate(cpu.PATHS)}
    found = [path for path, call in sets.items() if not subprocess.run(call, timeout=60).returncode]
    assert found == [*PROCESSORS][: [*PROCESSORS].index(fastest) + 1]


INTEGERS = {"int8 products", "int8 extremes", "int8 models"}
# four products in a 16-bit number, as other libraries; the columns of two rows in the wrong order
PLANTED = {
    "neon": (
        "wide.h",
        "sum.val[n] = vpadalq_s16(sum.val[n], low);",
        "low = vqaddq_s16(low, vrev32q_s16(low));"
        "sum.val[n] = vaddq_s32(sum.val[n], vshrq_n_s32(vreinterpretq_s32_s16(low), 16));",
    ),
    "i8mm": ("products.c", "vzip1q_s64(left, right)", "vzip1q_s64(right, left)"),
}


def plant(folder, faults):
    """The sources with faults: a file, what is sound in it, and what is wrong."""
    for source in SOURCES.glob("*.[ch]"):
        shutil.copy(source, folder)
    for name, sound, wrong in faults:
        text = (folder / name).read_text()
        assert sound in text
        (folder / name).write_text(text.replace(sound, wrong))
    return folder


@compiler
@emulator
@pytest.mark.slow
@pytest.mark.parametrize("path", PLANTED)
def test_the_control_a_wrong_product_of_arm_is_found(tmp_path, path):
    wrong = plant(tmp_path, [PLANTED[path]])
    planted = build(tmp_path / "program", "_neon", [*ZIG, ARM_LINUX], wrong)
    assert changed(checksums(planted, path, emulated(path))) == INTEGERS


simde = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64")
    or not any(Path(folder, "simde").is_dir() for folder in ("/usr/include", "/usr/local/include")),
    reason="SIMDe is not installed: apt-get install libsimde-dev",
)
CC = ("cc", "-O1", "-Wno-psabi", "-Wno-empty-body")


@pytest.fixture(scope="module", params=["_avx2", "_avx512"])
def plain(request, tmp_path_factory):
    """The suffix of functions, and the program without the instructions that they use."""
    program = tmp_path_factory.mktemp("plain") / "program"
    return request.param, build(program, request.param, CC, emulated=True)


@pytest.mark.slow
@simde
def test_x86_gives_the_bits_on_file_without_its_instructions(plain):
    suffix, program = plain
    for path in [path for path in cpu.PATHS if cpu.PATHS[path] == suffix]:
        assert (path, changed(checksums(program, path))) == (path, set())


@simde
@pytest.mark.slow
def test_the_control_a_wrong_product_without_avx512_is_found(tmp_path):
    """Signed numbers for unsigned ones, and the columns of another tile."""
    faults = [
        ("products.c", "epi32(sum, numbers, weights)", "epi32(sum, weights, numbers)"),
        ("products.c", "_tile_dpbusd(2, 4, 7)", "_tile_dpbusd(2, 4, 6)"),
    ]
    program = build(tmp_path / "program", "_avx512", CC, plant(tmp_path, faults), emulated=True)
    found = {path: changed(checksums(program, path)) for path in ("avx512", "avx512_vnni", "amx")}
    assert found == {"avx512": set(), "avx512_vnni": INTEGERS, "amx": INTEGERS}
