"""Exports the policy of a run to ONNX or TorchScript.

python recipes/export.py runs/td3/HalfCheetah-v4/uniform-vmf_rank/seed0 format=onnx
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

_ENDINGS = {"onnx": "onnx", "torchscript": "ts"}


@dataclass
class ExportConfig(Config):
    """Writes the policy of a run as an ONNX or TorchScript file."""

    format: str = key("onnx", "format of the file", choices=("onnx", "torchscript"))
    policy: str = key(
        "last",
        "policy.pt, or the newest checkpoint of an unfinished run (last); policy_best.pt (best)",
        choices=("last", "best"),
    )
    output: str | None = key(
        None, "the file to write; null: policy.onnx or policy.ts in the run directory"
    )


@program
def main() -> None:
    """Writes a file that maps raw observations to actions of the environment, and checks it."""
    run_dir, options = read_folder_and_options(
        "python recipes/export.py <run_dir>", sys.argv[1:], ExportConfig
    )
    if not run_dir.exists():
        raise UserError(f"There is no {run_dir}: give the directory of a run, or a policy file.")
    if options.output is not None and Path(options.output).is_dir():
        raise UserError(f"output={options.output} is a folder: give the file to write.")
    if options.format == "onnx":
        _check_packages()
    # Imported here, so that --help and mistakes are answered at once.
    from vmfer_recipes.agent.networks import load_policy_of_run
    from vmfer_recipes.run.exported import export, input_names, usage

    quiet_torchrl()
    policy = load_policy_of_run(run_dir, options.policy)
    folder = run_dir if run_dir.is_dir() else run_dir.parent
    file = Path(options.output or folder / f"policy.{_ENDINGS[options.format]}")
    print(f"Exporting {policy.source}, step {policy.step}, to {options.format} ...", flush=True)
    difference = export(policy, options.format, file)
    print(f"Checked against the original: the actions differ by at most {difference:.1e}.")
    print(f"Written: {file}")
    print(f"Inputs (float32, with a batch dimension): {', '.join(input_names(policy))}")
    print(f"Load it with {usage(policy, options.format, file)}")


def _check_packages() -> None:
    missing = [
        name
        for name in ("onnx", "onnxscript", "onnxruntime")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise UserError(
            f"format=onnx needs the packages {', '.join(missing)}: pip install '.[export]', or use "
            "format=torchscript."
        )


if __name__ == "__main__":
    main()
