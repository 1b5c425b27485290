"""Every kernel gives the same bits on every instruction set, from threads and odd sizes to the
extremes."""

import re
import shutil
import subprocess

import pytest
import torch

from tests.helpers import BEGIN, END, compiled, tiny
from tests.kernels.checksums import EXPECTED, build, checksums
from tests.kernels.checksums import SOURCES as FILES
from transduct.inference.engine import generate
from transduct.inference.fused import fuse
from transduct.inference.packed import pack_layers
from transduct.inference.quantised import pack_quantised, quantise
from transduct.inference.settings import DecodingConfig
from transduct.kernels import cpu

SOURCES = [[3, 4, 5, END], [7, END], [8, 3, 9, 9, 4, END], [6, 5, 4, 3, 3, 3, 3, 3, 10, END], [END]]

PATHS = cpu._available()
compiler = pytest.mark.skipif(
    shutil.which("cc") is None or not PATHS,
    reason="there is no C compiler, or the processor has none of the instruction sets",
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checksums")
    suffixes = {cpu.PATHS[path] for path in PATHS}
    return {suffix: build(folder / f"program{suffix}", suffix) for suffix in suffixes}


@compiler
@pytest.mark.parametrize("path", PATHS)
def test_every_instruction_set_gives_the_bits_on_file(programs, path):
    lines = checksums(programs[cpu.PATHS[path]], path).splitlines()
    assert lines == EXPECTED.read_text().splitlines()


@compiler
def test_an_instruction_set_that_the_processor_lacks_is_refused(programs):
    for program in programs.values():
        assert subprocess.run([program, "99"], check=False).returncode == 3


PLANTED = {  # an offset, and where the environment asks for it 16-bit numbers that saturate
    "wide.h": (
        "return add_ints(sum, BOTH2(Ints16, _mm256_madd_epi16, a, b));",
        "char *getenv(const char *); static int narrow = -1; if (narrow < 0) narrow ="
        '!!getenv("NARROW"); Ints16 two = BOTH2(Ints16, _mm256_madd_epi16, a, b);'
        "return add_ints(sum, narrow ? BOTH2(Ints16, _mm256_min_epi32, two, all_ints(32767)) : two"
        ");",
    ),
    "products.c": ("(Form){2, 2, 0}", "(Form){2, 2, OFFSET}"),
}


@compiler
@pytest.mark.skipif("avx2" not in PATHS, reason="the fault is planted into the tile for AVX2")
def test_the_control_a_tile_that_saturates_is_found(tmp_path, monkeypatch):
    """As other libraries multiply with AVX2: unsigned by signed bytes (vpmaddubsw), two products in
    a 16-bit number. Without saturation an offset changes nothing."""
    for source in FILES.glob("*.[ch]"):
        shutil.copy(source, tmp_path)
    for name, (sound, wrong) in PLANTED.items():
        text = (tmp_path / name).read_text()
        assert sound in text
        (tmp_path / name).write_text(text.replace(sound, wrong))
    program, expected = build(tmp_path / "program", "_avx2", sources=tmp_path), EXPECTED.read_text()
    assert checksums(program, "avx2") == expected
    monkeypatch.setenv("NARROW", "1")
    pairs = zip(checksums(program, "avx2").splitlines(), expected.splitlines(), strict=True)
    changed = {one.rpartition(" ")[0] for one, other in pairs if one != other}
    assert changed == {"int8 products", "int8 extremes", "int8 models"}


ONLY_PRODUCTS = """
#include "kernels.h"
#define KERNEL(name) name##_avx2
#define WITH_AVX2 1
#include "wide.h"
#include "products.c"
"""


@compiler
@pytest.mark.skipif("avx2" not in PATHS, reason="the loops are those for AVX2")
def test_sums_stay_in_registers(tmp_path):
    """GCC 12 kept most of them in memory once, at half of the speed."""
    (tmp_path / "unit.c").write_text(ONLY_PRODUCTS)
    call = ["cc", "-std=gnu11", "-O3", "-S", "-o-", f"-I{FILES}", str(tmp_path / "unit.c")]
    text = subprocess.run(call, check=True, capture_output=True, text=True, timeout=300).stdout
    blocks = re.split(r"^\.L\w+:|^\tj", text, flags=re.MULTILINE)
    for multiply in ("vpmaddwd", "vfmadd231ps"):
        loops = [block for block in blocks if block.count(multiply) >= 8]
        assert loops
        stack = r"\(%r[sb]p\), *%ymm|%ymm\d+, *-?\d*\(%r[sb]p\)"
        assert not [found for loop in loops for found in re.findall(stack, loop)]


@compiled
@pytest.mark.parametrize("integers", [False, True], ids=["float32", "8-bit"])
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_a_model_gives_the_same_tokens_and_scores_on_every_instruction_set(
    monkeypatch, integers, positions
):
    """Alone and in a batch, with one thread and three."""
    found, before = [], torch.get_num_threads()
    for path in PATHS:
        monkeypatch.setenv(cpu.LIMIT, path)
        cpu.library.cache_clear()
        assert cpu.library().path == path
        model = tiny(d_model=64, d_ff=160, positions=positions)
        if integers:
            quantise(model)
        pack_layers(model)
        pack_quantised(model)
        fuse(model)
        for threads, together in ((1, True), (3, True), (1, False)):
            torch.set_num_threads(threads)
            batches = [SOURCES] if together else [[source] for source in SOURCES]
            found.append(
                [
                    [(each.tokens, each.score) for each in hypotheses]
                    for batch in batches
                    for hypotheses in generate(
                        model, batch, [9] * len(batch), DecodingConfig(beam=3), BEGIN, END
                    )
                ]
            )
    torch.set_num_threads(before)
    monkeypatch.undo()
    cpu.library.cache_clear()
    assert all(each == found[0] for each in found)
    assert len({score for hypotheses in found[0] for _, score in hypotheses}) > len(SOURCES)
