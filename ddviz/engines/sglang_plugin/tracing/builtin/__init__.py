"""Tracing of SGLang's own algorithms: EAGLE, EAGLE3, STANDALONE, NGRAM, the chain of DFLASH, and of whatever
else calls the two tree kernels.

    start.py    which algorithm a scheduler runs; its tracer; where a step begins and ends
    step.py     one step, put together from what the hooks below see of it
    target.py   the target's verify forward: slots, positions, mask, logits before anything changes them
    kernels.py  the two tree kernels: candidates, links, coins, probabilities, the accepted path
    eagle.py    EAGLE's draft scores, and the KV rows that EAGLE and NGRAM move
    dflash.py   DFLASH's greedy acceptance, which calls no tree kernel, and the drafter's KV
    table.py    every hook with the arguments that it reads; which of them fit this SGLang

A hook runs the original, reads its arguments and answers on the forward stream, and changes nothing. What
SGLang keeps in static buffers is copied inside the hook: the next replay overwrites it.
"""
