"""Digests, norms and NaNs of tensors and arrays."""

import math

import numpy as np
import pytest
import torch

from xla_nb.protocol.hostile import TooLong
from xla_nb.protocol.variables import BLOCK
from xla_nb.rank import content as of
from xla_nb.rank.content import Incomparable, content
from xla_nb.rank.deadline import Deadline


def looked_at(array, seconds=60.0):
    return content(array, Deadline(seconds))


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "int64", "bool", "complex64"])
def test_a_tensor_and_an_array_with_the_same_elements_have_the_same_digest(dtype):
    tensor = torch.arange(-3, 9).reshape(3, 4).to(getattr(torch, dtype))
    assert looked_at(tensor) == looked_at(tensor.numpy())


def test_one_element_makes_another_digest():
    tensor = torch.zeros(1000)
    before = looked_at(tensor).digest
    tensor[999] = 1e-30
    assert looked_at(tensor).digest != before


@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_the_digest_does_not_depend_on_the_layout(make):
    rows = make([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert looked_at(rows.T).digest == looked_at(make([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]])).digest
    assert looked_at(rows[:, ::2]).digest == looked_at(make([[1.0, 3.0], [4.0, 6.0]])).digest


def test_a_large_one_is_read_in_small_pieces_that_give_the_same_digest(monkeypatch):
    tensor = torch.rand(7, 11, 13, 5).transpose(0, 2)
    whole = looked_at(tensor)
    monkeypatch.setattr(of, "_MOST", 50)
    assert all(piece.size <= 50 for piece in of.pieces(tensor, Deadline(60)))
    split = looked_at(tensor)
    assert split.digest == whole.digest
    assert math.isclose(split.norm, whole.norm)


def test_bfloat16_and_float8_are_read_exactly():
    half = torch.rand(100).to(torch.bfloat16)
    assert looked_at(half).digest == looked_at(half.float()).digest
    assert looked_at(half.to(torch.float8_e4m3fn)).norm > 0


def test_all_nans_are_one_and_counted_and_not_in_the_norm():
    bits = torch.tensor([0x7FC00000, 0x7FC00001, 0x40400000, 0x40800000], dtype=torch.int32)
    one, other = bits.view(torch.float32), torch.tensor([math.nan, math.nan, 3.0, 4.0])
    assert looked_at(one) == looked_at(other)
    assert (looked_at(one).nans, looked_at(one).norm) == (2, 5.0)


@pytest.mark.filterwarnings("error")
def test_odd_numbers_warn_of_nothing():
    bits = torch.tensor([0x7FA00000, 0x7F800000, 0x00000001, 0x7F7FFFFF], dtype=torch.int32)
    assert looked_at(bits.view(torch.float32)).nans == 1


def test_zeros_of_both_signs_are_equal():
    assert looked_at(torch.tensor([-0.0])).digest == looked_at(torch.tensor([0.0])).digest


def test_infinities_are_not_in_the_norm():
    assert looked_at(torch.tensor([math.inf, 3.0, 4.0])).norm == 5.0


def test_a_single_element_is_told():
    assert looked_at(torch.tensor(2.5)).value == "2.5"
    assert looked_at(torch.tensor([1.0, 2.0])).value == ""


def test_no_elements_are_equal_to_no_elements():
    assert looked_at(torch.zeros(0, 3)) == looked_at(torch.zeros(0, 3))


def test_the_byte_order_of_an_array_does_not_count():
    assert looked_at(np.arange(3, dtype=">i4")) == looked_at(np.arange(3, dtype="<i4"))


@pytest.mark.parametrize(
    "array", [np.array([object()]), np.zeros(2, np.longdouble), np.zeros(2, "i4,f8")]
)
def test_elements_whose_bytes_may_differ_though_they_are_equal_are_refused(array):
    with pytest.raises(Incomparable):
        looked_at(array)


def test_an_array_keeps_its_class_out():
    class Mine(np.ndarray):
        def __array_finalize__(self, source):
            if made:
                raise AssertionError("its own method was called")

        def reshape(self, *_):
            raise AssertionError("its own method was called")

        __getitem__ = astype = view = reshape

    made = []
    array = np.arange(3.0)
    mine = array.view(Mine)
    made.append(mine)
    assert looked_at(mine) == looked_at(array)


def test_a_gigabyte_is_given_up_when_its_time_is_over():
    gigabyte = torch.zeros(1, dtype=torch.int8).expand(1 << 30)  # without the memory
    seen = []

    class Counted(Deadline):
        def check(self):
            seen.append(1)
            if len(seen) > 3:
                raise TooLong("it is over")

    with pytest.raises(TooLong):
        content(gigabyte, Counted(60))
    assert len(seen) == 4


def test_blocks_show_where_large_ones_differ():
    tensor = torch.zeros(2 * BLOCK + 10, dtype=torch.int8)
    before = of.blocks(tensor, Deadline(60))
    tensor[BLOCK] = 1
    after = of.blocks(tensor, Deadline(60))
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True]
