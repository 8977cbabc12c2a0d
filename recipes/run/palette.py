"""Okabe and Ito's palette, which color-blind readers can tell apart, for all pictures."""

from __future__ import annotations

__all__ = ["BLUE", "GRAY", "GREEN", "ORANGE", "PINK", "SKY", "VERMILION"]

ORANGE = "#e69f00"
SKY = "#56b4e9"
GREEN = "#009e73"
BLUE = "#0072b2"
VERMILION = "#d55e00"
PINK = "#cc79a7"
GRAY = "#4d4d4d"  # in place of their black, which hides what lies below
