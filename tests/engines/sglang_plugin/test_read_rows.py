"""Row statistics in Triton's interpreter, against torch."""

import pytest
import torch

from ddviz.engines.sglang_plugin.tracing.read_rows import RowFacts, read_rows


def read(values, m, block=16):
    out = RowFacts.empty(len(values), m, "cpu")
    read_rows(values, out, block=block)
    return out


@pytest.mark.parametrize("vocabulary", [16, 40, 257])
def test_a_row_is_read_as_torch_reads_it(vocabulary):
    values = torch.randn((3, vocabulary), generator=torch.Generator().manual_seed(vocabulary)) * 4
    out = read(values, 6)
    top, ids = values.topk(6, dim=-1)
    probs = torch.softmax(values.double(), -1)
    assert torch.equal(out.top_ids.long(), ids)
    assert torch.equal(out.top_values, top)
    torch.testing.assert_close(out.logsumexp, torch.logsumexp(values, -1))
    entropy = -(probs * probs.log()).sum(-1).float()
    torch.testing.assert_close(out.entropy, entropy, atol=1e-5, rtol=1e-5)
    assert out.nonfinite.tolist() == [0, 0, 0]


def test_of_equal_values_the_first_comes_first_also_across_blocks():
    values = torch.tensor([[1.0, 3.0, -2.0, 3.0, 0.0, 1.0, 3.0, -2.0]])
    out = read(values, 5, block=2)
    assert out.top_ids.tolist() == [[1, 3, 6, 0, 5]]
    assert out.top_values.tolist() == [[3.0, 3.0, 3.0, 1.0, 1.0]]


def test_what_is_not_finite_is_counted_and_left_out():
    inf, nan = float("inf"), float("nan")
    values = torch.tensor([[0.0, nan, 2.0, -inf, inf, 1.0], [-inf, -inf, nan, -inf, 5.0, -inf]])
    out = read(values, 3, block=4)
    assert out.nonfinite.tolist() == [3, 5]
    assert out.top_ids[0].tolist() == [2, 5, 0]
    torch.testing.assert_close(
        out.logsumexp, torch.tensor([torch.logsumexp(torch.tensor([0.0, 2, 1]), 0), 5])
    )
    assert out.top_ids[1, 0] == 4 and out.top_values[1].tolist() == [5.0, -inf, -inf]
    assert out.entropy[1] == 0


def test_bfloat16_rows_that_do_not_follow_each_other():
    wide = torch.randn((4, 50), generator=torch.Generator().manual_seed(0)).bfloat16()
    values = wide[:, :40]
    out = read(values, 2)
    assert torch.equal(out.top_values, values.float().topk(2, dim=-1).values)
    torch.testing.assert_close(out.logsumexp, torch.logsumexp(values.float(), -1))
