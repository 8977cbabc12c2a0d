"""Exports the policy of a run to ONNX.

python recipes/export.py runs/td3/HalfCheetah-v4/uniform-vmf_rank/seed0
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from vmfer_recipes.config.command_line import read_folder_and_options
from vmfer_recipes.config.errors import UserError
from vmfer_recipes.config.keys import Config, key
from vmfer_recipes.config.launch import program, quiet_torchrl


@dataclass
class ExportConfig(Config):
    """Writes the policy of a run as an ONNX file."""

    policy: str = key(
        "last",
        "policy.pt, or the newest checkpoint of an unfinished run (last); policy_best.pt (best)",
        choices=("last", "best"),
    )
    output: str | None = key(None, "the file to write; null: policy.onnx in the run directory")


@program
def main() -> None:
    """Writes a file that maps raw observations to actions of the environment, and checks it."""
    run_dir, options = read_folder_and_options(
        "python recipes/export.py <run_dir>", sys.argv[1:], ExportConfig
    )
    if not run_dir.exists():
        raise UserError(f"There is no {run_dir}: give the directory of a run, or a policy file.")
    folder = run_dir if run_dir.is_dir() else run_dir.parent
    file = Path(options.output or folder / "policy.onnx")
    if file.is_dir():
        raise UserError(f"output={file} is a folder: give the file to write.")
    if not file.parent.is_dir():
        raise UserError(f"There is no folder {file.parent}: create it, or choose another output=.")
    packages = ("onnx", "onnxscript", "onnxruntime")
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise UserError(
            f"An export needs the packages {', '.join(missing)}: pip install '.[export]'."
        )
    # Imported here to keep --help and error messages fast.
    from vmfer_recipes.agent.networks import load_policy_of_run
    from vmfer_recipes.run.exported import export, input_names, usage

    quiet_torchrl()
    policy = load_policy_of_run(run_dir, options.policy)
    print(f"Exporting {policy.source}, step {policy.step}, to ONNX ...", flush=True)
    difference = export(policy, file)
    print(f"Checked against the original: the actions differ by at most {difference:.1e}.")
    print(f"Written: {file}")
    print(f"Inputs (float32, with a batch dimension): {', '.join(input_names(policy))}")
    print(f"Load it with {usage(policy, file)}")


if __name__ == "__main__":
    main()
