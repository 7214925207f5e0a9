"""DDTREE as a speculative algorithm of SGLang, loaded through the entry point group `sglang.srt.plugins`.

SGLang imports `plugin.register` in every process that it starts. Nothing else in ddviz imports this package,
and this file imports nothing, so that an SGLang which does not use DDTREE pays nothing.

    plugin.py         register(): version check, flags, the algorithm, hooks
    flags.py          --speculative-ddtree-budget and -topk-cap; what DDTREE refuses at start
    requests.py       what DDTREE refuses in a request; budget and cap of one request
    algorithm.py      what SGLang asks a speculative algorithm
    hooks.py          changes to SGLang 0.5.17 that a tree needs, each with its reason
    worker.py         one decoding step: draft, build, compile, verify, commit
    step_buffers.py   the arrays of a step, which stay where they are, and CUDA graphs of stages over them
    draft_head.py     stage 1: the K best tokens of every draft position, through the target's head
    tree_kernels.py   stages 2 and 3 on the GPU: build the tree, compile the retrieve arrays and the mask
    verify_input.py   stage 4: what the target's forward is given
    adjustments.py    stage 4: what requests ask to be changed in the logits, in autoregression's order
    penalties.py      stage 4: repetition, frequency and presence penalties, min_new_tokens, at every node
    acceptance.py     stage 4: accepted path, greedy or sampled, one contract
    commit.py         stage 5: pack the KV of the accepted path
    tracing/          every step of a traced request to a file
    gate.py           single steps, for the app's own server
    self_check.py     before serving: a CUDA graph verifies a branching tree as an eager forward does
"""
