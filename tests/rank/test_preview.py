"""Short texts for results, and for variables without reading from a device."""

import dataclasses
import sys

import numpy as np
import pytest
import torch

from xla_nb.rank import preview as module
from xla_nb.rank.preview import short_repr


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.ones(2, 3), "Tensor (2, 3) float32"),
        (np.ones((2, 3)), "ndarray (2, 3) float64"),
        ([torch.ones(2), 1], "[Tensor (2,) float32, 1]"),
        ({"x": torch.tensor(1.0)}, "{'x': Tensor () float32}"),
        (1, "1"),
        ("a\nb", "'a\\nb'"),
        (None, "None"),
    ],
)
def test_short_repr_shows_tensors_by_shape_and_dtype(value, text):
    assert short_repr(value) == text


def test_short_repr_is_short_for_any_value():
    for value in ("x" * 10**6, b"x" * 10**6, list(range(10**6)), 10**999, {"k" * 999: "v" * 999}):
        assert len(short_repr(value)) <= 80


def test_repr_that_exits_is_replaced():
    class Quits:
        def __repr__(self):
            sys.exit(1)

    assert "SystemExit" in short_repr(Quits()) or short_repr(Quits()).startswith("<Quits instance")


def test_repr_may_compute_with_cpu_tensors():
    class Mean:
        def __repr__(self):
            return f"mean {torch.ones(2).mean().item()}"

    assert short_repr(Mean()) == "mean 1.0"


def test_repr_cannot_compute_with_device_tensors():
    tensor = torch.ones(2, device="meta")
    for look in (tensor.sum, tensor.tolist, lambda: torch.stack([tensor]), lambda: tensor + 1):
        with pytest.raises(module.Unread):
            module.in_short(look)
    assert module.in_short(lambda: f"{tensor} {tensor!r} {tensor.shape} {len(tensor)}") == (
        "Tensor (2,) float32 Tensor (2,) float32 torch.Size([2]) 2"
    )


# ---------------------------------------------------------------- the preview of a result


def preview_of(value):
    return short_repr(value, reads=True)


@pytest.mark.parametrize(
    ("value", "preview"),
    [
        (None, "None"),
        (3, "3"),
        ("a", "'a'"),
        ([1, (2, 3)], "[1, (2, 3)]"),
        ({"loss": 0.25}, "{'loss': 0.25}"),
    ],
)
def test_short_value_is_shown_unchanged(value, preview):
    assert preview_of(value) == preview


@dataclasses.dataclass
class Output:
    logits: object
    loss: object


@pytest.mark.parametrize(
    ("value", "preview"),
    [
        (
            torch.nn.Linear(2, 1).state_dict(),
            "OrderedDict({'weight': Tensor (1, 2) float32, 'bias': Tensor (1,) float32})",
        ),
        (
            Output(torch.ones(4, 2), torch.tensor(0.5)),
            "Output(logits=Tensor (4, 2) float32, loss=tensor(0.5000))",
        ),
    ],
)
def test_tensors_inside_a_result_are_shown_by_shape_and_dtype(value, preview):
    assert preview_of(value) == preview


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_long_bytes_show_only_their_start(kind):
    assert preview_of(kind(b"ab" * 10_000)) == f"{kind(b'ab' * 30)!r}…"


def test_array_is_shown_by_shape_and_dtype():
    assert preview_of(np.zeros((2, 3), np.float32)) == "ndarray (2, 3) float32"


def test_tensor_is_shown_by_shape_and_dtype():
    assert preview_of(torch.ones(2, 3, dtype=torch.bfloat16)) == "Tensor (2, 3) bfloat16"


def test_nested_arrays_are_shown_by_shape_and_dtype():
    value = {"loss": 0.5, "grads": [np.zeros(4), torch.ones(2, 3, dtype=torch.bfloat16)]}
    preview = "{'loss': 0.5, 'grads': [ndarray (4,) float64, Tensor (2, 3) bfloat16]}"
    assert preview_of(value) == preview


def test_scalar_array_is_shown_as_its_number():
    assert preview_of(np.float32(0.5)) == "0.5"
    assert preview_of(np.array(2)) == "array(2)"


def test_long_string_keeps_both_ends():
    preview = preview_of("a" * 1000 + "z" * 1000)
    assert preview.startswith("'aaa")
    assert preview.endswith("zzz'")
    assert len(preview) <= 80


def test_long_list_keeps_its_first_items():
    assert preview_of(list(range(1000))) == "[0, 1, 2, 3, 4, 5, ...]"


def test_preview_has_at_most_80_characters():
    longest = ["x" * 36, "y" * 36]
    assert preview_of(longest) == repr(longest)
    assert len(repr(longest)) == 80
    assert preview_of(["x" * 36, "y" * 37]) == repr(longest)[:77] + "yy…"


@pytest.mark.parametrize("wrap", [lambda it: it, lambda it: {"key": it}, lambda it: (it,) * 5])
def test_long_repr_is_truncated_at_any_depth(wrap):
    class Long:
        def __repr__(self):
            return "r" * 500

    assert len(preview_of(wrap(Long()))) <= 80


def test_multiline_repr_is_shown_on_one_line():
    class Lines:
        def __repr__(self):
            return "one\n  two\n"

    assert preview_of(Lines()) == "one two"


def test_value_with_failing_repr_is_named():
    class Odd:
        def __repr__(self):
            raise ValueError

    assert "Odd instance" in preview_of(Odd())


def test_recursive_value_is_shown():
    value = []
    value.append(value)
    assert len(preview_of(value)) <= 80
