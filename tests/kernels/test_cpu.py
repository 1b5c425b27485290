"""The C kernels equal the formulas for any shape; without a library the formulas are used."""

import ctypes
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.helpers import compiled, on_each_path, on_each_width
from transduct.errors import TransductError
from transduct.functional.attention import attention
from transduct.inference.quantised import STEPS, int8_linear, quantise_rows
from transduct.kernels import cpu
from transduct.kernels.cpu import Packed


def layer_of(outputs, width, bias=True):
    """Weights, steps and a bias."""
    torch.manual_seed(outputs * 1000 + width)
    weight, steps = quantise_rows(torch.randn(outputs, width))
    return weight, steps, torch.randn(outputs) if bias else None


def product_of(x, weight, steps, bias):
    """The formula, its sums in 64 bits: torch's product of integers is wrong where the width is
    one."""
    rows, of_rows = quantise_rows(x)
    sums = (rows.long() @ weight.long().T).float() * steps * of_rows[:, None]
    return sums if bias is None else sums + bias


THREADS = """
import os, torch
from transduct.kernels.cpu import Packed
torch.set_num_threads(3)
x, weight = torch.full((150, 64), 1e-20), torch.full((1024, 64), 1e-20)
product = Packed(weight, None, None)
for small in (False, True, False):
    torch.set_flush_denormal(small)
    print(*{int(product(x).count_nonzero()) for _ in range(4)})
packed = Packed(torch.ones(1030, 1024, dtype=torch.int8), torch.ones(1030), None)
x = torch.ones(2, 1024)
expected = packed(x)
child = os.fork()
if child == 0:
    os._exit(0 if all(torch.equal(packed(x), expected) for _ in range(50)) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.equal(packed(x), expected))
"""


@compiled
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes")
def test_threads_treat_denormals_as_their_caller_does_and_a_forked_process_has_its_own():
    call = [sys.executable, "-c", THREADS]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == [str(150 * 1024), "0", str(150 * 1024), "0", "True"]


# products of 8-bit integers


@on_each_path
@pytest.mark.parametrize("width", [1, 3, 16, 37, 64, 512])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_product_is_that_of_the_formula(width, bias):
    for outputs in (1, 15, 63, 64, 65, 200):
        layer = layer_of(outputs, width, bias)
        packed = Packed(*layer)
        for rows in (0, 1, 2, 3, 5, 6, 7, 13, 64):
            x = torch.randn(rows, width)
            expected = product_of(x, *layer)
            near = {"rtol": 1e-6, "atol": 1e-6 * float(expected.abs().max()) if rows else 0.0}
            torch.testing.assert_close(packed(x), expected, **near)
            if width > 1:
                torch.testing.assert_close(int8_linear(x, *layer), expected, **near)


@on_each_path
# in whole lines of the cache AMX computes, where there is AMX
@pytest.mark.parametrize("width", [37, 64, 128, 192])
@pytest.mark.parametrize("rows", [9, 12, 13, 15, 16, 17, 32, 70])
def test_a_product_is_that_of_the_integers_exactly(rows, width):
    for outputs in (1, 64, 70, 200):
        (weight, steps, _), x = layer_of(outputs, width, bias=False), torch.randn(rows, width)
        assert torch.equal(Packed(weight, steps, None)(x), product_of(x, weight, steps, None))


@on_each_path
def test_rows_of_zeros_huge_and_tiny_rows():
    layer = layer_of(70, 40)
    sizes = torch.tensor([0.0, 1e-30, 1e-13, 1e-6, 1.0, 1e6, 1e30])
    x = torch.randn(7, 40) * sizes[:, None]
    found = Packed(*layer)(x)
    assert torch.equal(found[0], layer[2])
    for one, expected in zip(found, int8_linear(x, *layer), strict=True):
        torch.testing.assert_close(
            one, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max())
        )


@on_each_path
@pytest.mark.parametrize("width", [16, 64, 70])
@pytest.mark.parametrize("place", [0, 3, -1, slice(None)], ids=str)
def test_a_row_with_a_nan_gives_nothing_else(width, place):
    packed, x = Packed(*layer_of(40, width)), torch.randn(3, width)
    x[1, place] = float("nan")
    assert packed(x).isnan().all(1).tolist() == [False, True, False]
    assert packed(x).isnan().any(1).tolist() == [False, True, False]


@on_each_path
@pytest.mark.parametrize("width", [50, 128])
def test_no_row_of_a_packed_product_depends_on_its_neighbours(width):
    packed, x = Packed(*layer_of(130, width)), torch.randn(17, width)
    together = packed(x)
    for number, row in enumerate(x):
        assert torch.equal(packed(row[None])[0], together[number])
    x[1:] *= 1000.0
    assert torch.equal(packed(x)[0], together[0])


@on_each_path
@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, -1)])
def test_the_largest_integers_do_not_overflow(signs):
    width = 2048
    weight = torch.full((65, width), signs[0] * STEPS, dtype=torch.int8)
    for rows in (7, 20):
        found = Packed(weight, torch.ones(65), None)(
            torch.full((rows, width), float(signs[1] * STEPS))
        )
        assert (found == signs[0] * signs[1] * STEPS * STEPS * width).all()


@on_each_path
def test_a_product_takes_rows_with_gaps_between_them():
    packed, x = Packed(*layer_of(20, 12)), torch.randn(12, 9)
    assert torch.equal(packed(x.T), packed(x.T.contiguous()))
    weight, steps, bias = layer_of(12, 20)
    turned = Packed(weight.T.contiguous().T, steps, bias)
    x = torch.randn(3, 20)
    assert torch.equal(turned(x), Packed(weight, steps, bias)(x))


@on_each_path
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_the_number_of_threads_changes_no_bit(rows):
    outputs, width = 1030, 1024
    assert (rows + 3) * outputs * width >= 2**19, "else one thread does it all"
    packed, x = Packed(*layer_of(outputs, width)), torch.randn(rows, width)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            found += [packed(x)]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each, found[0]) for each in found)


@on_each_path
@torch.inference_mode()
def test_calls_from_several_threads_do_not_mix():
    layers = [Packed(*layer_of(size, 1024)) for size in (1030, 1100, 1290)]
    inputs, before = [torch.randn(2, 1024) for _ in layers], torch.get_num_threads()
    expected = [packed(x) for packed, x in zip(layers, inputs, strict=True)]

    def work(number):
        torch.set_num_threads(3)  # of calls from this thread
        return all(
            torch.equal(layers[number](inputs[number]), expected[number]) for _ in range(300)
        )

    try:
        with ThreadPoolExecutor(3) as pool:
            assert all(pool.map(work, range(3)))
    finally:
        torch.set_num_threads(before)


@on_each_path
def test_the_control_a_product_with_other_steps_differs():
    (weight, steps, bias), x = layer_of(20, 12), torch.randn(3, 12)
    assert not torch.allclose(
        Packed(weight, steps.flip(0), bias)(x), int8_linear(x, weight, steps, bias)
    )


# products of float32


def floats_of(outputs, width, bias=True):
    torch.manual_seed(outputs * 1000 + width)
    return torch.randn(outputs, width), None, torch.randn(outputs) if bias else None


@on_each_path
@pytest.mark.parametrize("width", [1, 3, 16, 37, 512])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_product_of_floats_is_that_of_torch(width, bias):
    for outputs in (1, 15, 63, 64, 65, 200):
        weight, _, shift = floats_of(outputs, width, bias)
        packed = Packed(weight, None, shift)
        for rows in (0, 1, 2, 3, 5, 6, 7, 13, 64):
            x = torch.randn(rows, width)
            expected = torch.nn.functional.linear(
                x.double(), weight.double(), shift if shift is None else shift.double()
            )
            torch.testing.assert_close(
                packed(x), expected.float(), rtol=1e-5, atol=1e-5 * width**0.5
            )


@on_each_path
def test_no_row_of_a_product_of_floats_depends_on_its_neighbours_or_on_threads():
    packed, x = Packed(*floats_of(1030, 1024)), torch.randn(17, 1024)
    together, before = packed(x), torch.get_num_threads()
    for number, row in enumerate(x):
        assert torch.equal(packed(row[None])[0], together[number])
    try:
        torch.set_num_threads(3)
        assert torch.equal(packed(x), together)
    finally:
        torch.set_num_threads(before)


@on_each_path
@pytest.mark.parametrize("layer", [layer_of, floats_of])
def test_rows_may_lie_in_any_shape_and_of_any_type(layer):
    packed, x = Packed(*layer(20, 12)), torch.randn(2, 3, 12)
    flat = packed(x.flatten(0, 1))
    assert torch.equal(packed(x), flat.view(2, 3, 20))
    assert torch.equal(packed(x[0, 0]), flat[0])
    assert torch.equal(packed(x.double()), packed(x))
    turned = x.flatten(0, 1).T.contiguous().T
    assert torch.equal(packed(turned), flat)


@on_each_path
@pytest.mark.parametrize("layer", [layer_of, floats_of])
def test_rows_of_another_width_are_refused(layer):
    with pytest.raises(ValueError, match="the input is 11 wide, the matrix expects 12"):
        Packed(*layer(20, 12))(torch.randn(3, 11))


# norms


@on_each_width
@pytest.mark.parametrize("width", [1, 16, 51])
@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, torch.nn.RMSNorm])
@torch.inference_mode()
def test_a_norm_is_that_of_torch(width, kind):
    torch.manual_seed(width)
    norm = kind(width, eps=1e-5)
    for parameter in norm.parameters():
        parameter.normal_()
    packed = cpu.PackedNorm((norm.weight, getattr(norm, "bias", None), norm.eps))
    for x in (torch.randn(7, width), torch.randn(width, 3).T, torch.randn(0, width)):
        torch.testing.assert_close(packed(x), norm(x), atol=1e-5, rtol=1e-5)


# attention of a single query a row


def by_hand(query, keys, values, times, lengths=None, slots=None):
    """Each head of each row by the formula, over what it sees gathered one by one."""
    (rows, heads, _), (sources, groups, *_, d_v) = query.shape, values.shape
    out = torch.zeros(rows, heads, d_v)
    for row in range(rows):
        source = row // (rows // sources)
        seen = times if lengths is None else int(lengths[source])
        places = [0] * seen if slots is None else slots[row, :seen].tolist()
        for head in range(heads):
            held = [x[source, head // (heads // groups)] for x in (keys, values)]
            key, value = (
                torch.stack([x[t, slot] for t, slot in enumerate(places)]) if seen else None
                for x in held
            )
            if seen:
                out[row, head] = attention(query[row, head][None], key, value)[0]
    return out


@on_each_width
@pytest.mark.parametrize("heads, groups", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("d_k, d_v", [(16, 16), (5, 7), (17, 40), (64, 1)])
@pytest.mark.parametrize("seen", ["all", "lengths", "slots"])
def test_attention_of_rows_is_the_formula(heads, groups, d_k, d_v, seen):
    torch.manual_seed(1)
    sources, beam, width, room = 3, 2, 2, 40
    query = torch.randn(sources * beam, heads, d_k)
    keys, values = (torch.randn(sources, groups, room, width, d) for d in (d_k, d_v))
    for times in (1, 15, 16, 33):
        lengths = torch.tensor([times, 0, (times + 1) // 2]) if seen == "lengths" else None
        slots = (
            torch.randint(width, (len(query), times), dtype=torch.int32)
            if seen == "slots"
            else None
        )
        found = cpu.rows_attention(query, keys, values, times, lengths, slots)
        torch.testing.assert_close(
            found,
            by_hand(query, keys, values, times, lengths, slots),
            atol=2e-6,
            rtol=2e-5,
            msg=f"{times} times",
        )


@on_each_width
def test_caches_of_float16_hold_the_same_numbers():
    """Odd widths too, whose last vectors are not whole."""
    torch.manual_seed(1)
    for d_k, d_v in ((64, 32), (5, 17)):
        query, slots = torch.randn(6, 4, d_k), torch.randint(2, (6, 9), dtype=torch.int32)
        keys, values = (torch.randn(3, 2, 12, 2, d).half() for d in (d_k, d_v))
        found = cpu.rows_attention(query, keys, values, 9, slots=slots)
        assert torch.equal(
            found, cpu.rows_attention(query, keys.float(), values.float(), 9, slots=slots)
        )
        assert not torch.equal(
            found, cpu.rows_attention(query, keys, values + 0.01, 9, slots=slots)
        )


@on_each_width
def test_keys_and_values_of_sources_are_rounded_to_float16():
    torch.manual_seed(1)
    key, value = (cpu.Packed(torch.randn(20, 16), None, torch.randn(20)) for _ in range(2))
    x, offsets = torch.randn(7, 16), torch.tensor([0, 5, 5, 7])
    x[1], x[6] = 1e6, float("nan")
    found = cpu.remember(key, value, x, offsets, 5, 4, torch.float16)
    for half, whole in zip(
        found, cpu.remember(key, value, x, offsets, 5, 4, torch.float32), strict=True
    ):
        largest = torch.finfo(torch.float16).max
        expected = whole.clamp(-largest, largest).half()
        torch.testing.assert_close(half, expected, rtol=0.0, atol=0.0, equal_nan=True)
        assert half[0].abs().max() == largest


@on_each_width
def test_attention_over_nothing_is_zero():
    query, keys = torch.randn(2, 4, 5), torch.randn(2, 4, 3, 1, 5)
    assert not cpu.rows_attention(query, keys, keys, 3, torch.tensor([0, 0])).any()
    assert not cpu.rows_attention(
        query, keys[:, :, :0].contiguous(), keys[:, :, :0].contiguous(), 0
    ).any()


@on_each_width
def test_a_query_may_be_a_part_of_longer_rows():
    torch.manual_seed(1)
    whole = torch.randn(4, 100)
    query = whole[:, :24].unflatten(1, (3, 8))
    assert query.stride(0) == 100
    keys, values = torch.randn(2, 3, 6, 2, 8), torch.randn(2, 3, 6, 2, 5)
    expected = cpu.rows_attention(query.contiguous(), keys, values, 5)
    assert torch.equal(cpu.rows_attention(query, keys, values, 5), expected)


@on_each_width
def test_nan_stays_nan():
    query, keys = torch.ones(2, 1, 4), torch.zeros(2, 1, 3, 1, 4)
    keys[0, 0, 1, 0, 2] = float("nan")
    found = cpu.rows_attention(query, keys, torch.ones(2, 1, 3, 1, 4), 3)
    assert found.isnan().flatten(1).all(1).tolist() == [True, False]


@on_each_width
def test_scores_far_apart_do_no_harm():
    query, keys, values = (
        torch.ones(1, 1, 4),
        torch.zeros(1, 1, 3, 1, 4),
        torch.randn(1, 1, 3, 1, 4),
    )
    keys[0, 0, 1] = 1e4
    torch.testing.assert_close(cpu.rows_attention(query, keys, values, 3), values[:, :, 1, 0])
    keys[0, 0, :2] = -1e4
    torch.testing.assert_close(cpu.rows_attention(query, keys, values, 3), values[:, :, 2, 0])


@on_each_width
def test_the_control_other_slots_are_seen():
    query, keys = torch.randn(2, 1, 4), torch.randn(1, 1, 6, 2, 4)
    slots = torch.tensor([[0] * 6, [1] * 6], dtype=torch.int32)
    one, other = (
        cpu.rows_attention(query, keys, keys, 6, slots=each) for each in (slots, 1 - slots)
    )
    assert not torch.isclose(one, other).any()


# without the library


class Stranger:
    """A library for a processor that this one is not."""

    def __init__(self, path):
        self.path = path

    def has_path(self, path):
        return 0


@compiled
@pytest.mark.parametrize("ending", [".so", ".pyd"])
def test_a_library_of_other_sources_is_named_and_passed_over(monkeypatch, tmp_path, ending):
    """A library built before its sources were changed; on Windows its name ends in .pyd."""
    here = Path(cpu.__file__).parent
    for path in here.glob("*.[ch]"):
        shutil.copy(path, tmp_path)
    for path in here.glob("_kernels*.so"):
        shutil.copy(path, (tmp_path / path.name).with_suffix(ending))
    monkeypatch.setattr(cpu, "__file__", str(tmp_path / "kernels.py"))
    assert cpu._compiled.__wrapped__() is not None
    (tmp_path / "search.c").write_text("/* other */")
    with pytest.warns(
        UserWarning,
        match="built from other sources; decoding and training are slower until you install again",
    ):
        assert cpu._compiled.__wrapped__() is None
    # of a time when libraries said nothing of their sources
    monkeypatch.setattr(ctypes, "CDLL", Stranger)
    with pytest.warns(UserWarning, match="built from other sources"):
        assert cpu._compiled.__wrapped__() is None


@compiled
def test_a_library_for_another_system_is_passed_over(monkeypatch, tmp_path):
    """A library for another system, as in a folder shared with a container."""
    monkeypatch.setattr(cpu, "__file__", str(tmp_path / "kernels.py"))
    (tmp_path / "_kernels.cpython-311-darwin.so").write_bytes(b"not for this system")
    with pytest.warns(
        UserWarning,
        match=(
            r"darwin\.so: cannot be loaded \(.*\); decoding and training are slower until "
            r"you install again"
        ),
    ):
        assert cpu._compiled.__wrapped__() is None
    for path in Path(cpu.__spec__.origin).parent.glob("*.[chs]*"):
        shutil.copy(path, tmp_path)
    assert cpu._compiled.__wrapped__() is not None


def test_where_nothing_was_compiled_there_is_no_library(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu, "__file__", str(tmp_path / "kernels.py"))
    assert cpu._compiled.__wrapped__() is None


@pytest.fixture
def limited(monkeypatch):
    """Limits the instruction sets, or switches the kernels off."""
    monkeypatch.setattr(cpu, "library", cpu.library.__wrapped__)
    return lambda name: monkeypatch.setenv(cpu.LIMIT, name)


def test_where_the_processor_lacks_instructions_there_is_no_library(monkeypatch, limited):
    monkeypatch.setattr(cpu, "_compiled", lambda: Stranger("here"))
    assert cpu.library() is None
    for kernel in cpu.report():
        assert (kernel.used, kernel.available) == (None, [])
        assert kernel.reason.startswith("this processor has no ")


def test_without_a_compiler_a_report_says_so(monkeypatch, limited):
    monkeypatch.setattr(cpu, "_compiled", lambda: None)
    assert {kernel.reason for kernel in cpu.report()} == {
        "the kernels are not compiled: install again where there is a C compiler"
    }


@compiled
def test_a_report_names_what_is_used_and_what_limits_it(limited):
    here = cpu._available()
    limited(here[0])
    integers, *_ = cpu.report()
    assert (integers.used, integers.available) == (here[0], here)
    assert len(here) == 1 or integers.reason == f"TRANSDUCT_KERNELS is {here[0]}"
    limited("none")
    assert cpu.library() is None
    assert {kernel.used for kernel in cpu.report()} == {None}
    limited("")
    assert cpu.report()[0].used == here[-1]
    cpu.library()


def test_a_limit_that_is_no_instruction_set_is_refused(limited):
    limited("avx1024")
    with pytest.raises(
        TransductError,
        match=r"TRANSDUCT_KERNELS=avx1024 is unknown; choose one of none, avx2, .*, i8mm",
    ):
        cpu.library()


def test_without_a_library_the_kernels_support_no_tensor(monkeypatch):
    monkeypatch.setattr(cpu, "library", lambda: None)
    assert not cpu.supports()
    assert not cpu.supports(torch.ones(1))


@compiled
def test_the_kernels_are_for_float32_on_a_cpu():
    assert cpu.supports(torch.ones(1), torch.ones(2))
    assert not cpu.supports(torch.ones(1), torch.ones(1, dtype=torch.bfloat16))
    assert not cpu.supports(torch.ones(1, dtype=torch.float64))
    assert not cpu.supports(torch.ones(1, device="meta"))
    half = torch.ones(1, dtype=torch.float16)
    assert cpu.supports(torch.ones(1), caches=[half, torch.ones(1)])
    assert not cpu.supports(half)
    assert not cpu.supports(torch.ones(1), caches=[torch.ones(1, dtype=torch.bfloat16)])


def test_a_tensor_that_is_not_contiguous_has_no_pointer():
    assert cpu.pointer(None) is None
    assert cpu.pointer(x := torch.zeros(3, 2)) == x.data_ptr()
    with pytest.raises(
        AssertionError, match=r"the kernels read contiguous tensors, found strides \(1, 0\)"
    ):
        cpu.pointer(torch.zeros(3, 1).expand(-1, 2))
