"""One step of an algorithm of SGLang's own, as the hooks see it go by.

In:  the arguments of the functions that the step calls, in the order of its stages.
Out: what TracedStep copies to the host, by the names that steps.py reads.
Not here: the hooks (target.py, kernels.py, eagle.py, dflash.py), where a step begins and ends (start.py).

What is derived: parents, from the links; of a DFLASH step that is greedy, the chain's path, from its length.
Indices out of a traced engine are clamped before they address memory: they may be the fault that is looked
for, and a tracer must not turn it into a crash. They are recorded as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ddviz.engines.sglang_plugin.batch import AcceptedBatch
from ddviz.engines.sglang_plugin.tracing import reading
from ddviz.engines.sglang_plugin.tracing.traced_step import TracedStep, harmless

UNSEEN = "nothing that ddviz hooks accepted a path in this step"
PART = "an acceptance kernel was called for a part of the batch, which is not recorded"
_CHANGES = ("logit_bias", "acc_additive_penalties", "acc_scaling_penalties", "grammar_mask")


class UnderWay:
    """The step that the scheduler's thread runs now; None between steps, and where nobody is traced."""

    step: BuiltinStep | None = None


@dataclass(frozen=True, slots=True)
class LinkedTree:
    tokens: torch.Tensor  # [bs, T] int64
    parents: torch.Tensor  # [bs, T] int64, -1 for the root and for nodes that no link reaches

    @property
    def width(self) -> int:
        return self.tokens.shape[1]


class BuiltinStep(TracedStep):
    """A step some rows of which are traced. Every method takes the whole batch's tensors."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._clock.mark()
        self._kept["seq_len"] = self._batch.seq_lens[self._rows].long()
        self._width = 0
        self._logits: torch.Tensor | None = None  # [bs*T, V], where the engine changes them in place
        self._raw_pairs: torch.Tensor | None = None  # see reading.token_probs
        self._path: torch.Tensor | None = None  # [bs, S] accept_index as it was written
        self._lens: torch.Tensor | None = None  # [bs] int64 nodes of the path, root included
        self._unseen = UNSEEN

    @property
    def batch_size(self) -> int:
        return len(self._batch.reqs)

    def passed(self, stage: str) -> None:
        """A stage is over."""
        self._clock.mark(stage)

    # draft

    @harmless
    def scored(self, scores: torch.Tensor) -> None:
        """Cumulative draft probabilities [bs, T-1] of the nodes beside the root, whose own is 1."""
        self._keep(scores=torch.nn.functional.pad(scores.float(), (1, 0), value=1.0))

    # verify

    @harmless
    def verified(
        self,
        input_ids: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor | None,
        logits: torch.Tensor,
    ) -> None:
        """After the target's forward over [bs*T] tokens, before its logits are changed."""
        bs = self.batch_size
        self._width = width = input_ids.numel() // bs
        self._logits = logits[: bs * width]
        statistics, probs = reading.row_statistics(self._logits, width, self._rows)
        self._raw_pairs = reading.token_probs(probs, input_ids.view(bs, width)[self._rows])
        self._kept |= statistics
        self._kept["slots"] = slots.view(bs, width)[self._rows].long()
        if positions is not None:
            self._kept["positions"] = positions.view(bs, width)[self._rows].long()

    @harmless
    def masked(self, mask: torch.Tensor) -> None:
        """The flat mask that attention read: T rows of committed length + T cells a request."""
        self._kept["mask"] = reading.mask_cells(mask, self._batch.seq_lens, self._width, self._rows)

    @harmless
    def accepted(self, given: Mapping[str, Any]) -> None:
        """After one of the two tree kernels; `given` are its arguments by name, written or not."""
        if len(given["candidates"]) != self.batch_size:
            self._unseen = PART
            return
        links = {name: given[f"retrieve_{name}"] for name in ("index", "next_token", "next_sibling")}
        parents = reading.parents_of(links["next_token"], links["next_sibling"])
        tree = LinkedTree(given["candidates"].long(), parents)
        # predicts are in the place of the node they follow, so the path says where to read them
        flat = given["accept_index"].long().clamp(0, given["predicts"].numel() - 1)
        self._keep(
            path_tokens=given["predicts"][flat],
            retrieve_index=links["index"],
            next_token=links["next_token"],
            next_sibling=links["next_sibling"],
        )
        self._take(tree, given["accept_index"], given["accept_token_num"])
        if "target_predict" in given:
            self._follow(tree, given["target_predict"])
        else:
            self._sample(tree, given)
        self.passed("verify")

    @harmless
    def followed_chain(
        self, tokens: torch.Tensor, best: torch.Tensor, num_accepted: torch.Tensor, path: torch.Tensor | None
    ) -> None:
        """After DFLASH's greedy acceptance: no links, no flat ids. All [bs, B] but num_accepted [bs].

        path  the tokens that come after the nodes of the path; None: they are read from the step's result
        """
        bs, width = tokens.shape
        flat = torch.arange(bs * width, device=tokens.device).view(bs, width)
        tree = LinkedTree(tokens.long(), (flat[:1] - 1).expand(bs, -1))
        if path is not None:
            self._keep(path_tokens=path)
        self._take(tree, flat, num_accepted)
        self._follow(tree, best)
        self.passed("verify")

    def _take(self, tree: LinkedTree, index: torch.Tensor, num_accepted: torch.Tensor) -> None:
        """The tree that was verified, and the path [bs, S] by flat ids that was accepted in it."""
        self._path, self._lens = index.clone(), num_accepted.long() + 1
        self._keep(
            tokens=tree.tokens,
            parents=tree.parents,
            counts=_counts(tree.parents),
            accept_index=index,
            num_accepted=num_accepted,
        )
        if self._raw_pairs is not None:
            own = tree.parents[self._rows]
            self._kept["raw_node_probs"] = reading.of_parents(self._raw_pairs, own)

    def _follow(self, tree: LinkedTree, best: torch.Tensor) -> None:
        """What a greedy step followed: best [bs, T] is the argmax that the engine took."""
        own = best[self._rows].int()
        if self._logits is not None and _changed(self._batch):
            self.adjusted(self._logits, tree)
            _put_first(self._kept["filtered_top_ids"], self._kept["filtered_top_probs"], own)
        elif "raw_argmax" in self._kept:
            self._kept["raw_argmax"] = own

    def _sample(self, tree: LinkedTree, given: Mapping[str, Any]) -> None:
        bs, width = tree.tokens.shape
        vocabulary = given["target_probs"].shape[-1]
        first = torch.arange(bs, device=self._rows.device).unsqueeze(1) * width
        path = given["accept_index"].long()
        self.sampled(
            slice(0, bs),
            tree,
            given["target_probs"].view(bs, width, vocabulary),
            given["draft_probs"].view(bs, width, vocabulary),
            AcceptedBatch(
                predicts=given["predicts"].clamp(0, vocabulary - 1),
                accept_index=path.clamp(min=first, max=first + width - 1),
                num_accepted=given["accept_token_num"].clamp(0, path.shape[1] - 1),
            ),
            given["uniform_samples"],
            given["uniform_samples_for_final_sampling"],
        )

    # commit

    @harmless
    def moved(self, destinations: torch.Tensor, sources: torch.Tensor) -> None:
        """KV rows that a step moves: the requests' paths one behind the other, without gaps."""
        if self._path is None or self._lens is None:
            return
        first = (self._lens.cumsum(0) - self._lens)[self._rows].unsqueeze(1)
        at = first + torch.arange(self._path.shape[1], device=first.device)
        at = at.clamp(0, sources.numel() - 1)
        self._kept |= {"src_slots": sources[at].long(), "dst_slots": destinations[at].long()}

    @harmless
    def appended(self, positions: torch.Tensor) -> None:
        """Positions [bs*B] of what is appended to the drafter's KV, of which the path's length counts."""
        self._keep(draft_kv_positions=positions.view(self.batch_size, -1).long())

    def finished(self, result: Any) -> None:
        """The worker has launched all of the step."""
        self._finished(result)
        self.passed("commit")
        self.launched(result, bool(result.can_run_cuda_graph))

    @harmless
    def _finished(self, result: Any) -> None:
        if self._lens is None:
            return
        said = result.next_token_ids.view(self.batch_size, -1).long()
        if "path_tokens" not in self._kept:
            self._keep(path_tokens=said)
        bonus = getattr(result.next_draft_input, "bonus_tokens", None)
        if bonus is None:  # NGRAM hands on what it said, the bonus last
            last = (self._lens - 1).clamp(0, said.shape[1] - 1)
            bonus = said.gather(1, last.unsqueeze(1)).squeeze(1)
        self._keep(bonus=bonus, new_seq_len=result.new_seq_lens)

    # towards the host

    def _keep(self, **tensors: torch.Tensor) -> None:
        self._kept |= {name: tensor[self._rows] for name, tensor in tensors.items()}

    def _send(self) -> None:
        if self._lens is not None:
            self._kept |= self._moved_slots()
            super()._send()

    def _moved_slots(self) -> dict[str, torch.Tensor]:
        """Where no row was moved, each node's KV is where it was: at the slot of the node."""
        if "src_slots" in self._kept or "slots" not in self._kept or self._path is None:
            return {}
        slots = self._kept["slots"]
        local = self._path[self._rows].long() - self._rows.unsqueeze(1) * slots.shape[1]
        found = slots.gather(1, local.clamp(0, slots.shape[1] - 1))
        return {"src_slots": found, "dst_slots": found}

    def _why_lost(self) -> str:
        return self._unseen if self._lens is None and not self.broken else super()._why_lost()


def _counts(parents: torch.Tensor) -> torch.Tensor:
    """[bs] nodes with root: up to the last that a link reaches."""
    nodes = torch.arange(1, parents.shape[1] + 1, device=parents.device)
    return torch.where(parents >= 0, nodes, 1).amax(dim=1).int()


def _changed(batch: Any) -> bool:
    """Whether anything changes the logits between the forward and the argmax."""
    info = batch.sampling_info
    asked = any(getattr(info, name, None) is not None for name in _CHANGES)
    return asked or bool(getattr(info, "has_custom_logit_processor", False) or batch.has_grammar)


def _put_first(ids: torch.Tensor, probs: torch.Tensor, best: torch.Tensor) -> None:
    """Of tied candidates [n, T, m], the one that the engine took stands first; in place."""
    at = (ids == best.unsqueeze(-1)).int().argmax(dim=-1, keepdim=True)  # 0 where it is not among them
    for values in (ids, probs):
        first, other = values[..., :1].clone(), values.gather(-1, at)
        values.scatter_(-1, at, first)
        values[..., :1] = other
