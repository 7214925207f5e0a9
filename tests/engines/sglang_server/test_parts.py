"""What a server says, how far it is, the gate between its steps and the app."""

import threading
import time

import pytest

from ddviz.engines.sglang_plugin.gate import Gate
from ddviz.engines.sglang_server.asking import Limits, facts_of
from ddviz.engines.sglang_server.child import progress_of
from ddviz.engines.sglang_server.gatekeeper import Gatekeeper
from ddviz.engines.sglang_server.own import obituary
from tests.engines.sglang_server.conftest import wait_until


@pytest.mark.parametrize(
    ("line", "doing", "fraction"),
    [
        ("[2026-11-30 03:40:31] Load weight begin. avail mem=138.00 GB", "loading the weights", 0.10),
        ("Loading safetensors checkpoint shards:   0% Completed | 0/4", "loading the weights", 0.15),
        ("Loading safetensors checkpoint shards:  50% Completed | 2/4", "loading the weights", 0.30),
        ("Capturing batches (bs=1 avail_mem=9.00 GB):  50%|###  | 4/8", "capturing CUDA graphs", 0.70),
        ("The server is fired up and ready to roll!", "waiting for its first answer", 0.95),
    ],
)
def test_a_line_of_the_log_tells_how_far_it_is(line, doing, fraction):
    told = progress_of(line)
    assert told.doing == doing
    assert told.fraction == pytest.approx(fraction)


def test_most_lines_tell_nothing():
    assert progress_of("[2026-11-30 03:40:30] Using default HuggingFace chat template") is None


def test_a_cap_of_none_is_the_budget():
    info = {
        "speculative_algorithm": "ddtree",
        "speculative_ddtree_budget": 64,
        "speculative_ddtree_topk_cap": 0,
    }
    assert facts_of(info).limits == Limits(64, 64)


def test_an_empty_answer_is_a_server_without_anything():
    facts = facts_of({})
    assert (facts.algorithm, facts.has_plugin, facts.limits, facts.modes) == (None, False, None, ("ar",))


def test_memory_that_does_not_suffice_gets_its_own_remedy():
    told = obituary("ended with exit code 1", ["torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB"])
    assert "OutOfMemoryError: CUDA out of memory" in told
    assert "-- --mem-fraction-static 0.7" in told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "[2026-11-30 19:45:00 TP0] RuntimeError: no kernel image",
            "exit code 1: RuntimeError: no kernel image;",
        ),
        ("[rank0]: torch.OutOfMemoryError: x", "exit code 1: torch.OutOfMemoryError: x;"),
        ("python3 -m sglang.launch_server: error: no -x", "exit code 1: error: no -x;"),
        (
            "sglang serve: error: unrecognized arguments: -x",
            "exit code 1: error: unrecognized arguments: -x;",
        ),
        (
            "[2026-11-30 19:45:00] API disabled (ModuleNotFoundError: No module named 'a')",
            "exit code 1; what",
        ),
    ],
)
def test_an_obituary_quotes_the_error_and_no_warning_that_mentions_one(line, told):
    assert told in obituary("ended with exit code 1", ["Load weight begin", line, "Killed"]).splitlines()[0]


# --- the gate


class Steps:
    """A scheduler that would step as fast as it can."""

    def __init__(self, folder):
        self.taken, self.gate, self._goes_on = 0, Gate(folder), True
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while self._goes_on:
            self.gate.pass_through()
            self.taken += 1
            time.sleep(0.002)

    def end(self):
        self._goes_on = False
        self._thread.join(5)


@pytest.fixture
def gatekeeper(tmp_path):
    return Gatekeeper(tmp_path / "gate")


@pytest.fixture
def ranks(gatekeeper):
    """Two processes of tensor parallelism, as two threads."""
    ranks = [Steps(gatekeeper.folder) for _ in range(2)]
    yield ranks
    gatekeeper.open()
    for steps in ranks:
        steps.end()


def test_an_open_gate_holds_nobody(gatekeeper, ranks):
    wait_until(lambda: all(steps.taken > 5 for steps in ranks))
    assert not gatekeeper.holds and not gatekeeper.is_closed


def test_each_word_lets_one_step_through_in_every_rank(gatekeeper, ranks):
    gatekeeper.allow()
    wait_until(lambda: gatekeeper.holds)
    time.sleep(0.05)
    before = [steps.taken for steps in ranks]
    for count in (1, 2, 3):
        gatekeeper.allow()
        wait_until(lambda: gatekeeper.holds)
        time.sleep(0.05)
        assert [steps.taken for steps in ranks] == [taken + count for taken in before]


def test_open_again_it_lets_all_through_and_the_next_round_counts_anew(gatekeeper, ranks):
    for _ in range(2):
        gatekeeper.allow()
        wait_until(lambda: gatekeeper.holds)
        time.sleep(0.05)
        halted = ranks[0].taken
        gatekeeper.open()
        wait_until(lambda halted=halted: ranks[0].taken > halted + 5)
        assert not gatekeeper.holds
