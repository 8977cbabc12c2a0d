"""Continues several methods from the same checkpoints of runs and compares their returns.

python recipes/fork.py run=runs/td3/Hopper-v4/uniform-fresh/seed0 at=100000 arms=[fresh,vmf_rank]
"""

from vmfer_recipes.fork.command import main

if __name__ == "__main__":
    main()
