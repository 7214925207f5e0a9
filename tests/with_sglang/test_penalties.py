"""The plugin's penalties against SGLang's own, which autoregression uses, fed token by token."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ddviz.engines.sglang_plugin.penalties import Penalties
from tests.engines.sglang_plugin.test_penalties import PATH_LEN, PENALTIES, VOCABULARY, WIDTH, request, trees


def by_sglang(req, said, logits):
    """One row of logits as SGLang's autoregression changes it after the tokens `said`."""
    from sglang.srt.sampling.penaltylib import BatchedPenalizerOrchestrator
    from sglang.srt.sampling.penaltylib.frequency_penalty import BatchedFrequencyPenalizer
    from sglang.srt.sampling.penaltylib.min_new_tokens import BatchedMinNewTokensPenalizer
    from sglang.srt.sampling.penaltylib.presence_penalty import BatchedPresencePenalizer
    from sglang.srt.sampling.penaltylib.repetition_penalty import BatchedRepetitionPenalizer

    batch = Batch(reqs=[req], device="cpu")
    kinds = {
        BatchedFrequencyPenalizer,
        BatchedMinNewTokensPenalizer,
        BatchedPresencePenalizer,
        BatchedRepetitionPenalizer,
    }
    orchestrator = BatchedPenalizerOrchestrator(VOCABULARY, batch, kinds)
    for token in said:
        orchestrator.cumulate_output_tokens(torch.tensor([token]))
    row = logits.clone().view(1, -1)
    additive = torch.zeros_like(row)
    orchestrator.accumulate_additive_penalties(additive)
    row += additive
    scaling = orchestrator.accumulate_scaling_penalties()
    if scaling is not None:
        row = torch.where(row < 0, row * scaling, row / scaling)
    return row[0]


class Batch(SimpleNamespace):
    """The orchestrator holds its batch by a weak reference, which a plain namespace does not take."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("params", PENALTIES, ids=lambda p: "+".join(p))
def test_the_root_and_a_leaf_are_changed_as_sglang_changes_a_decoding_step(params):
    generator = torch.Generator().manual_seed(3)
    req, said = request("a", **params), [4, 4, 7, 1]
    rows = torch.tensor([1])
    penalties = Penalties(3, VOCABULARY, "cpu")
    penalties.prefilled([req], rows, torch.tensor(said[:1]))
    penalties.committed([req], rows, torch.tensor([said[1:]]), torch.tensor([3]))
    tree = trees(np.random.default_rng(2), said[-1:])
    raw = torch.randn((WIDTH, VOCABULARY), generator=generator) * 3
    logits = raw.clone()
    penalties.adjust([req], rows, torch.tensor([5 + 3]), tree, logits, PATH_LEN)
    torch.testing.assert_close(logits[0], by_sglang(req, said, raw[0]))
    path = [int(tree.tokens[0, node]) for node in (1, 3, 6)]
    torch.testing.assert_close(logits[6], by_sglang(req, said + path, raw[6]))
