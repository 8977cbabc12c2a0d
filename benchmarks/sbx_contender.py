"""SBX as a contender of ``throughput.py`` and ``population.py``, in an environment of its own.

    python sbx_contender.py td3 10000 [Reacher-v5 64x64/64]

Reads numbers of steps from standard input, and prints the seconds that they took.
"""

from __future__ import annotations

import sys
import time
import warnings

import workload


def main() -> None:
    warnings.simplefilter("ignore")
    import sbx

    algorithm, filled, *task = sys.argv[1:]
    if task:
        workload.TASK, size = task
        hidden, batch = size.split("/")
        workload.HIDDEN, workload.BATCH = [int(units) for units in hidden.split("x")], int(batch)
    run = workload.peer_loop({"td3": sbx.TD3, "sac": sbx.SAC}[algorithm], algorithm, int(filled))
    for line in sys.stdin:
        start = time.perf_counter()
        run(int(line))
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
