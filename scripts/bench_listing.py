"""How long a trace folder takes to be listed: `python scripts/bench_listing.py [FILES]`, 10,000 by default.

Makes a folder of small traces, as a server leaves it, and times what Replay's list and Live's list of
requests ask of it, once with nothing known and once again.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

from ddviz.app.traces import Registry

SAMPLE = Path(__file__).parents[1] / "traces" / "quicksort-greedy.ddviz"


def main(files: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        traces, empty = Path(folder) / "traces", Path(folder) / "empty"
        traces.mkdir()
        head = SAMPLE.read_bytes()[:4096]
        for number in range(files):
            stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(1_790_000_000 + number))
            (traces / f"{stamp}-client-{number}.ddviz").write_bytes(head)
        registry = Registry(empty, empty, traces)
        for name, ask in (("saved runs", registry.saved_runs), ("requests", registry.requests)):
            for when in ("first", "again"):
                begin = time.perf_counter()
                listed = len(ask())
                took = time.perf_counter() - begin
                print(f"{name}, {when}: {listed} of {files} in {1000 * took:.0f} ms")
        link = registry.link_of(registry.requests()[-1].id)
        begin = time.perf_counter()
        assert registry.linked(link)
        print(f"a link to one of them: {1000 * (time.perf_counter() - begin):.0f} ms")
        shutil.rmtree(traces)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
