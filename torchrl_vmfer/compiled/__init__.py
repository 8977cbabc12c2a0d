"""Whole updates of plain networks in one compiled call each.

The extension modules are built when the package is installed, one per instruction set.
:class:`CompiledUpdates` uses them for the losses of this package, :class:`StackedUpdates` for
several agents in one call, and :mod:`~torchrl_vmfer.compiled.rows` for the storage of the recipes.
No other subpackage depends on this one, with one exception: if the extension module was built,
samplers by rank use it through :func:`functions`.
"""

from torchrl_vmfer.compiled.extension import functions
from torchrl_vmfer.compiled.stacked import NotServedError, StackedUpdates
from torchrl_vmfer.compiled.updates import CompiledUpdates

__all__ = ["CompiledUpdates", "NotServedError", "StackedUpdates", "functions"]
