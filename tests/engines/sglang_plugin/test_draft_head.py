"""The draft head on the CPU: one rank against log_softmax, several ranks against one."""

from types import SimpleNamespace

import pytest
import torch

from ddviz.engines.sglang_plugin.draft_head import DraftHead

BLOCK, HIDDEN, VOCABULARY = 4, 8, 60


class OneRank:
    world_size = 1


class Ranks:
    """Tensor parallelism in one process: `all_gather` of one rank is answered from all ranks' heads."""

    def __init__(self, heads_of):
        self.world_size, self._heads_of, self._call = len(heads_of), heads_of, 0

    def all_gather(self, _tensor, dim):
        parts = [parts[self._call] for parts in self._heads_of]
        self._call += 1
        return torch.cat(parts, dim=dim)


def shard(weight, rank, ranks):
    """What sglang's ParallelLMHead holds: this rank's rows, then padding."""
    rows = weight.shape[0] // ranks
    padded = torch.cat([weight[rank * rows : (rank + 1) * rows], torch.full((3, weight.shape[1]), 9.0)])
    indices = SimpleNamespace(num_org_elements=rows, org_vocab_start_index=rank * rows, num_added_elements=0)
    return SimpleNamespace(weight=padded, shard_indices=indices)


@pytest.fixture
def drawn():
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn((VOCABULARY, HIDDEN), generator=generator)
    hidden = torch.randn((3 * BLOCK, HIDDEN), generator=generator)
    return weight, hidden


def expected(weight, hidden, k):
    logits = hidden.view(3, BLOCK, HIDDEN)[:, 1:] @ weight.T
    return torch.log_softmax(logits, dim=-1).topk(k, dim=-1)


def test_the_lists_are_the_best_of_log_softmax_and_leave_the_root_out(drawn):
    weight, hidden = drawn
    head = DraftHead(SimpleNamespace(weight=weight), BLOCK, k=5, tp_group=OneRank())
    logprobs, ids = head.top_k(hidden)
    wanted = expected(weight, hidden, 5)
    assert logprobs.shape == ids.shape == (3, BLOCK - 1, 5)
    torch.testing.assert_close(logprobs, wanted.values)
    assert torch.equal(ids, wanted.indices)


def test_ranks_with_a_shard_each_agree_with_one_rank(drawn):
    weight, hidden = drawn
    ranks = 3
    sent = []
    for rank in range(ranks):
        logits = (
            hidden.view(3, BLOCK, HIDDEN)[:, 1:] @ shard(weight, rank, ranks).weight[: VOCABULARY // ranks].T
        )
        top, ids = logits.topk(5, dim=-1)
        sent.append((top, ids + rank * VOCABULARY // ranks, torch.logsumexp(logits, -1, keepdim=True)))
    wanted = expected(weight, hidden, 5)
    for rank in range(ranks):
        head = DraftHead(shard(weight, rank, ranks), BLOCK, k=5, tp_group=Ranks(sent))
        logprobs, ids = head.top_k(hidden)
        torch.testing.assert_close(logprobs, wanted.values)
        assert torch.equal(ids, wanted.indices)


def test_what_a_graph_leaves_is_what_an_eager_call_returns(drawn):
    weight, hidden = drawn
    head = DraftHead(SimpleNamespace(weight=weight), BLOCK, k=5, tp_group=OneRank())
    head.reserve(max_bs=6)
    head(hidden)
    for left, returned in zip(head.lists(3), head.top_k(hidden), strict=True):
        assert torch.equal(left, returned)


def test_k_is_the_vocabulary_where_that_is_smaller(drawn):
    weight, hidden = drawn
    head = DraftHead(SimpleNamespace(weight=weight[:4]), BLOCK, k=64, tp_group=OneRank())
    assert head.top_k(hidden)[0].shape == (3, BLOCK - 1, 4)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (None, "unquantised lm_head"),
        (SimpleNamespace(weight=torch.zeros((4, 2), dtype=torch.int8)), "unquantised lm_head"),
    ],
)
def test_a_target_without_a_usable_head_is_refused(head, words):
    with pytest.raises(ValueError, match=words):
        DraftHead(head, BLOCK, k=4, tp_group=OneRank())


def test_an_added_vocabulary_is_refused(drawn):
    head = shard(drawn[0], 0, 1)
    head.shard_indices.num_added_elements = 2
    with pytest.raises(ValueError, match="added vocabulary"):
        DraftHead(head, BLOCK, k=4, tp_group=OneRank())
