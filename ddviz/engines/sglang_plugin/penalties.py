"""Stage 4 of 5, draft -> build -> compile -> VERIFY -> commit: penalties, exact at every node of a tree.

In:  the requests' penalties; on the device, how often each request has said each token.
Out: the target's logits [bs*T, V], changed as autoregression would change them after the path to each node.
Not here: logit bias, grammars (adjustments.py).

SGLang's EAGLE counts on the host, one token a step and a step late: a run of accepted tokens counts as its
last one, the tokens of the step under way not at all; its DFLASH does not count (sglang #28179). So nothing
of that is used in decoding. Here the counts are a tensor, a row for every slot of the request pool, which
prefill sets and every commit adds to, on the forward stream; a node's own path is scattered on top.

    frequency   logit -= penalty * count            over what was said, the root and the path included
    presence    logit -= penalty      if count > 0
    repetition  logit *= or /= penalty  if count > 0, after the two above
    min_new     stop tokens are out while fewer than min_new_tokens were said
"""

from typing import Any, NamedTuple

import torch

from ddviz.engines.sglang_plugin.batch import TreeBatch


class Asked(NamedTuple):
    """What the requests of a batch ask, [bs, 1] float32 each, and their stop tokens."""

    frequency: torch.Tensor
    presence: torch.Tensor
    repetition: torch.Tensor
    min_new: torch.Tensor  # [bs, 1] int64
    prompt_len: torch.Tensor  # [bs, 1] int64
    stop_tokens: torch.Tensor  # [bs, m] int64, padded with V


class Penalties:
    """Counts and adjustments of one worker. Costs nothing while no request asks for a penalty."""

    def __init__(self, pool_rows: int, vocabulary: int, device: torch.device | str) -> None:
        """pool_rows: rows of the request pool; the counts [pool_rows, V] are made when first needed."""
        self._shape, self._device = (pool_rows, vocabulary), device
        self._counts: torch.Tensor | None = None
        self._known: tuple[list[str], Asked] | None = None

    def prefilled(self, reqs: list[Any], pool_rows: torch.Tensor, first_tokens: torch.Tensor) -> None:
        """Begin the rows of requests whose prefill gave first_tokens [bs].

        A retracted request has said something already: its output is the host's, complete at this point.
        """
        asking = [i for i, req in enumerate(reqs) if asks(req.sampling_params)]
        if not asking:
            return
        if self._counts is None:
            self._counts = torch.zeros(self._shape, dtype=torch.float32, device=self._device)
        at = torch.tensor(asking, device=self._device)
        rows = pool_rows[at].long()
        said = [torch.tensor(reqs[i].output_ids, dtype=torch.int64).to(self._device) for i in asking]
        begun = torch.stack([torch.bincount(ids, minlength=self._shape[1]).float() for ids in said])
        begun.scatter_add_(1, first_tokens[at].long().unsqueeze(1), torch.ones_like(begun[:, :1]))
        self._counts[rows] = begun

    def adjust(
        self,
        reqs: list[Any],
        pool_rows: torch.Tensor,
        seq_lens: torch.Tensor,
        tree: TreeBatch,
        logits: torch.Tensor,
        max_path_len: int,
    ) -> bool:
        """Change logits [bs*T, V] in place. False: nobody asks for a penalty, nothing was changed."""
        if not any(asks(req.sampling_params) for req in reqs):
            return False
        assert self._counts is not None, "a request was not prefilled"
        asked = self._asked(reqs)
        bs, width = tree.tokens.shape
        rows = logits.view(bs, width, -1)
        counts = self._counts[pool_rows.long()]  # [bs, V], the root counted
        path = _paths(tree, max_path_len, counts)

        rows.sub_((asked.frequency * counts + asked.presence * (counts > 0)).unsqueeze(1))
        per_token = asked.frequency.unsqueeze(1) * path.valid + asked.presence.unsqueeze(1) * path.new
        rows.scatter_add_(2, path.tokens, -per_token.to(rows.dtype))

        factor = torch.where(counts > 0, asked.repetition, 1.0).unsqueeze(1)
        rows.copy_(torch.where(rows < 0, rows * factor, rows / factor))
        kept = rows.gather(2, path.tokens)
        factor = asked.repetition.unsqueeze(1)
        scaled = torch.where(kept < 0, kept * factor, kept / factor)
        # a token may stand in a path more than once: only its `new` place writes
        rows.scatter_add_(2, path.tokens, torch.where(path.new, scaled - kept, 0.0).to(rows.dtype))

        said = (seq_lens.long().view(bs, 1) - asked.prompt_len + 1) + tree.depths
        short = said < asked.min_new  # [bs, T]
        banned = torch.zeros((bs, rows.shape[2] + 1), device=rows.device)
        banned.scatter_(1, asked.stop_tokens, -torch.inf)
        rows.add_(torch.where(short.unsqueeze(2), banned[:, None, :-1], 0.0))
        return True

    def committed(
        self, reqs: list[Any], pool_rows: torch.Tensor, emitted: torch.Tensor, accept_lens: torch.Tensor
    ) -> None:
        """Count the accepted runs emitted [bs, S], of which accept_lens [bs] tokens hold."""
        if self._counts is None or not any(asks(req.sampling_params) for req in reqs):
            return
        place = torch.arange(emitted.shape[1], device=emitted.device)
        valid = (place < accept_lens.unsqueeze(1)).float()
        flat = pool_rows.long().unsqueeze(1) * self._shape[1] + emitted.clamp(0, self._shape[1] - 1)
        self._counts.view(-1).scatter_add_(0, flat.view(-1), valid.view(-1))

    def _asked(self, reqs: list[Any]) -> Asked:
        """Copied to the device when the batch changes."""
        ids = [req.rid for req in reqs]
        if self._known is None or self._known[0] != ids:
            self._known = (ids, self._upload(reqs))
        return self._known[1]

    def _upload(self, reqs: list[Any]) -> Asked:
        def column(values: list[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype).unsqueeze(1).to(self._device, non_blocking=True)

        params = [req.sampling_params for req in reqs]
        stops = [stop_tokens_of(req) for req in reqs]
        most = max(1, *(len(ids) for ids in stops))
        padded = [[*ids, *[self._shape[1]] * (most - len(ids))] for ids in stops]
        return Asked(
            frequency=column([p.frequency_penalty for p in params], torch.float32),
            presence=column([p.presence_penalty for p in params], torch.float32),
            repetition=column([p.repetition_penalty for p in params], torch.float32),
            min_new=column([p.min_new_tokens for p in params], torch.int64),
            prompt_len=column([len(req.origin_input_ids) for req in reqs], torch.int64),
            stop_tokens=torch.tensor(padded).to(self._device, non_blocking=True),
        )


def asks(params: Any) -> bool:
    """Whether a request asks for any penalty."""
    return bool(
        params.frequency_penalty
        or params.presence_penalty
        or params.repetition_penalty != 1.0
        or params.min_new_tokens
    )


def stop_tokens_of(req: Any) -> list[int]:
    """The tokens that min_new_tokens keeps out, as SGLang has them."""
    ids = set(req.sampling_params.stop_token_ids or ())
    if req.tokenizer is not None:
        ids |= set(getattr(req.tokenizer, "additional_stop_token_ids", None) or ())
        if req.tokenizer.eos_token_id is not None:
            ids.add(req.tokenizer.eos_token_id)
    return sorted(ids)


class _Paths(NamedTuple):
    """The path to each node, itself among it, the root not; [bs, T, B-1] each."""

    tokens: torch.Tensor  # int64, 0 where there is none
    valid: torch.Tensor  # bool
    new: torch.Tensor  # bool, one place of every token of the path that was never said before


def _paths(tree: TreeBatch, max_path_len: int, counts: torch.Tensor) -> _Paths:
    """counts [bs, V]: how often each token was said, the root counted."""
    bs, width = tree.tokens.shape
    node = torch.arange(width, device=counts.device).expand(bs, width)
    tokens, valid = [], []
    for _ in range(max_path_len - 1):
        on_path = node > 0
        here = node.clamp(min=0)
        tokens.append(tree.tokens.gather(1, here) * on_path)
        valid.append(on_path)
        node = tree.parents.gather(1, here).long()
    on_paths, are_valid = torch.stack(tokens, 2), torch.stack(valid, 2)
    same = on_paths.unsqueeze(3) == on_paths.unsqueeze(2)
    earlier = torch.ones(same.shape[-2:], dtype=torch.bool, device=same.device).tril(-1)
    repeated = (same & are_valid.unsqueeze(2) & earlier).any(dim=3)
    said = counts.gather(1, on_paths.view(bs, -1)).view(on_paths.shape) > 0
    return _Paths(on_paths, are_valid, are_valid & ~repeated & ~said)
