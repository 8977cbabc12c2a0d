"""SBX as a contender of ``throughput.py`` and ``population.py``, in an environment of its own.

    python sbx_contender.py td3 10000 large
    python sbx_contender.py td3 10000 Reacher-v5 64x64/64

Reads numbers of steps from standard input, and prints the seconds that they took.
"""

from __future__ import annotations

import sys
import time
import warnings

from workload import SIZES, Size, peer_loop


def main() -> None:
    warnings.simplefilter("ignore")
    import sbx

    algorithm, filled, name, *sizes = sys.argv[1:]
    if sizes:
        hidden, batch = sizes[0].split("/")
        size = Size(name, [int(units) for units in hidden.split("x")], int(batch))
    else:
        size = SIZES[name]
    run = peer_loop({"td3": sbx.TD3, "sac": sbx.SAC}[algorithm], algorithm, int(filled), size)
    for line in sys.stdin:
        start = time.perf_counter()
        run(int(line))
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
