"""The first line of a run and its progress: a bar on a terminal, lines in a log file."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, TextIO

from tqdm import tqdm

from vmfer_recipes.config.names import run_title
from vmfer_recipes.config.training import Config
from vmfer_recipes.run.evaluation import Evaluation
from vmfer_recipes.sweep.jobs import sweep_position

__all__ = ["Progress", "start_message"]

_BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"


def start_message(cfg: Config, start: int) -> str:
    """The first line of a run: what starts, and where its files are.

    Args:
        cfg: the configuration of the run.
        start: the step from which it resumes; 0 for a new run.
    """
    position = sweep_position()
    place = "" if position is None else f"Run {position[0]} of {position[1]}: "
    resumed = f" Resuming at step {start}." if start else ""
    return (
        f"{place}{run_title(cfg)}, device={cfg.device}, {cfg.total_frames:,} steps, in "
        f"{cfg.run_dir}.{resumed}"
    )


class Progress:
    """Shows how far a run is.

    A thread draws, so that the clock of the bar also runs during long steps, evaluations and
    checkpoints. The time left is that of the steps that learn: random actions are much faster.

    Args:
        start: the step at which the run starts or resumes.
        total: its last step.
        random_steps: the steps of random actions before learning starts.
        stream: where to write; by default stderr.
        clock: the time in seconds.
    """

    _newest: ClassVar[Progress | None] = None

    def __init__(
        self,
        start: int,
        total: int,
        random_steps: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._step, self._total = start, total
        self._first_learning = max(start, random_steps)
        self._began = clock()
        self._learning_since: float | None = self._began if start >= random_steps else None
        self._results: list[str] = []
        self._evaluating = ""
        self._bar: tqdm | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._draw_regularly, daemon=True)

    def __enter__(self) -> Progress:
        # A failed run of a sweep may leave its bar open: Hydra keeps the exception and its frames.
        if Progress._newest is not None:
            Progress._newest.close()
        Progress._newest = self
        if self._stream.isatty():
            self._bar = tqdm(
                total=self._total,
                initial=self._step,
                bar_format=_BAR,
                file=self._stream,
                # tqdm draws nothing on a terminal that does not know its size.
                ncols=_width(),
                nrows=24,
            )
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Draws the bar for the last time."""
        if self._is_over.is_set():
            return
        self._is_over.set()
        self._thread.join()
        if self._bar is not None:
            with suppress(OSError, ValueError):
                self._draw()
                self._bar.close()

    def advance(self, step: int) -> None:
        """Reports that a step is done."""
        self._step = step
        if self._learning_since is None and step >= self._first_learning:
            self._first_learning = step
            self._learning_since = self._clock()

    def evaluate(self, episode: int, episodes: int) -> None:
        """Reports which episode of an evaluation is played, from 1; 0 after the last."""
        self._evaluating = f"evaluating {episode}/{episodes}" if episode else ""

    def show(self, result: Evaluation) -> None:
        """Shows the result of an evaluation until the next one."""
        self._results = [f"return {result.return_mean:.1f}"]
        if result.success_rate is not None:
            self._results.append(f"success {result.success_rate:.2f}")

    def facts(self) -> list[str]:
        """What is shown besides the step: the phase, the time left, the speed and results."""
        facts = []
        step = self._step
        if self._learning_since is None:
            facts.append("random actions")
        else:
            learned, seconds = step - self._first_learning, self._clock() - self._learning_since
            if learned > 0 and seconds >= 1:  # earlier, the speed is that of a warm-up
                speed = learned / seconds
                if step < self._total:
                    facts.append(f"{tqdm.format_interval((self._total - step) / speed)} left")
                if not self._evaluating:
                    facts.append(f"{speed:.{0 if speed >= 10 else 1}f} steps/s")
        if self._evaluating:
            facts.append(self._evaluating)
        return facts + self._results

    def _draw_regularly(self) -> None:
        # A bar moves; a log file is not flooded.
        while not self._is_over.wait(30 if self._bar is None else 0.5):
            with suppress(OSError, ValueError):  # a closed terminal does not end the run
                self._draw()

    def _draw(self) -> None:
        if self._bar is not None:
            self._bar.n, self._bar.ncols = self._step, _width()
            self._bar.set_postfix_str(", ".join(self.facts()))  # also draws
            return
        passed = tqdm.format_interval(self._clock() - self._began)
        place = f"step {self._step} of {self._total}"
        print(", ".join([place, f"{passed} passed", *self.facts()]), file=self._stream, flush=True)


def _width() -> int:
    return shutil.get_terminal_size().columns - 1
