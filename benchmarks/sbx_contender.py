"""SBX as a contender of ``throughput.py`` and ``population.py``, in an environment of its own.

    python sbx_contender.py td3 10000 [Reacher-v5 64x64/64]

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

    algorithm, filled, name, *layers = sys.argv[1:]  # "small", or "Reacher-v5 64x64/64"
    size = SIZES[name] if not layers else Size(name, *_sizes(layers[0]))
    make = {"td3": sbx.TD3, "sac": sbx.SAC}[algorithm]
    run = peer_loop(make, algorithm, int(filled), size)
    for line in sys.stdin:
        start = time.perf_counter()
        run(int(line))
        print(time.perf_counter() - start, flush=True)


def _sizes(layers: str) -> tuple[list[int], int]:
    hidden, batch = layers.split("/")
    return [int(units) for units in hidden.split("x")], int(batch)


if __name__ == "__main__":
    main()
