"""One process of a `RankPool`: initialises the process group, then runs what it is sent."""

from __future__ import annotations

import datetime
import functools
import sys
import traceback

from llmtrain.dist.quiet import quiet_dependencies

quiet_dependencies()

import cpuinfo  # noqa: E402
import deepspeed.comm  # noqa: E402  (the line above sets what it prints)
import torch  # noqa: E402

from llmtrain.dist import runtime  # noqa: E402
from llmtrain.dist.process_group import switch_off_shared_memory  # noqa: E402
from tests.support.ranks import connect  # noqa: E402


def main() -> None:
    """Serve until the pool closes the connection."""
    host, port, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    connection = connect(host, port, rank)
    switch_off_shared_memory()
    # DeepSpeed's CPU optimizers ask at each construction, which starts processes of its own for a second.
    cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)
    # Each gloo group keeps threads that wake all the time: hundreds of runs in one process share llmtrain's two.
    runtime.new_groups = functools.cache(runtime.new_groups)
    deepspeed.comm.init_distributed("gloo", timeout=datetime.timedelta(seconds=120), verbose=False)
    while True:
        try:
            function, args, kwargs = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, function(*args, **kwargs)))
        except Exception:  # the pool raises it in the test's own process
            connection.send((False, traceback.format_exc()))


if __name__ == "__main__":
    main()
