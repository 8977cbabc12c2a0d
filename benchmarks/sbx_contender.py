"""SBX as a contender of ``throughput.py``, in an environment of its own.

Reads numbers of steps from standard input, and prints the seconds that they took.
"""

from __future__ import annotations

import sys
import time
import warnings

from workload import SIZES, peer_loop


def main() -> None:
    warnings.simplefilter("ignore")
    import sbx

    algorithm, filled, size = sys.argv[1:]
    make = {"td3": sbx.TD3, "sac": sbx.SAC}[algorithm]
    run = peer_loop(make, algorithm, int(filled), SIZES[size])
    for line in sys.stdin:
        start = time.perf_counter()
        run(int(line))
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
