"""What a run reports while it trains: its speed, and a progress bar."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

from tqdm import tqdm

from vmfer_recipes.config.names import run_title
from vmfer_recipes.config.training import TrainingConfig
from vmfer_recipes.run.tables import Evaluation
from vmfer_recipes.sweep.sweeps import sweep_position

_FACTS = "{remaining} left, {rate_noinv_fmt}{postfix}"
_BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}, " + _FACTS + "]"
_LINE = "step {n_fmt} of {total_fmt}, {elapsed} passed, " + _FACTS


class Clock:
    """Measures the speed of training from a step on, without evaluations."""

    def __init__(self, step: int) -> None:
        self._step, self._start = step, time.perf_counter()

    def speed(self, step: int) -> float:
        """The steps per second since the last call."""
        now = time.perf_counter()
        speed = (step - self._step) / (now - self._start)
        self._step, self._start = step, now
        return speed

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context whose duration is not counted."""
        pause = time.perf_counter()
        yield
        self._start += time.perf_counter() - pause


def start_message(cfg: TrainingConfig, start: int) -> str:
    """The first line of a run, which may resume: what it trains, and where its files are."""
    position = sweep_position()
    place = "" if position is None else f"Run {position[0]} of {position[1]}: "
    resumed = f" Resuming at step {start}." if start else ""
    return (
        f"{place}{run_title(cfg)}, device={cfg.device}, {cfg.total_frames:,} steps, in "
        f"{cfg.run_dir}.{resumed}"
    )


class Progress(tqdm):
    """Shows the progress of a run: a bar on a terminal, or a line every 30 seconds in a log file.

    The method ``update`` is tqdm's, which decides when to redraw. The first steps of a run,
    ``random_steps``, are shown as random.
    """

    monitor_interval = 0  # no monitor thread, which would also redraw between two updates
    _newest: ClassVar[Progress | None] = None

    def __init__(
        self,
        start: int,
        total: int,
        random_steps: int = 0,
        stream: Any = None,
        seconds: float = 30,
        *,
        is_hidden: bool = False,
    ) -> None:
        # A failed run of a sweep may leave its bar open: Hydra keeps the exception and its frames.
        if Progress._newest is not None and not is_hidden:
            Progress._newest.close()
        self._random_steps, self._result = random_steps, ""
        stream = sys.stderr if stream is None else stream
        self._is_bar = stream.isatty()
        how: dict[str, Any] = {"bar_format": _LINE, "mininterval": seconds, "delay": seconds}
        if self._is_bar:
            # tqdm draws nothing on a terminal that does not know its size.
            columns = shutil.get_terminal_size().columns - 1
            how = {"bar_format": _BAR, "mininterval": 0.5, "ncols": columns, "nrows": 24}
        how |= {"unit": " steps", "miniters": 1, "position": 0, "leave": self._is_bar}
        super().__init__(total=total, initial=start, file=stream, disable=is_hidden, **how)
        if not is_hidden:
            Progress._newest = self
            if not self._is_bar:
                self.sp = partial(print, file=self.fp, flush=True)
            self.note()

    def close(self) -> None:
        """Ends the bar."""
        if not self._is_bar:
            self.delay = math.inf  # tqdm then takes nothing back
        super().close()

    def note(self, episode: int = 0, episodes: int = 0) -> None:
        """Shows which episode of an evaluation is played, from 1; 0 for the last result."""
        text = f"evaluating {episode}/{episodes}" if episode else self._result
        if self.n < self._random_steps and not episode:
            text = "random actions"
        self.set_postfix_str(text, refresh=self._is_bar)

    def show(self, result: Evaluation) -> None:
        """Shows the result of an evaluation until the next one."""
        self._result = f"return {result.return_mean:.1f}"
        if result.success_rate is not None:
            self._result += f", success {result.success_rate:.2f}"
        self.note()
