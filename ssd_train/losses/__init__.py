"""Losses as pure tensor functions: tensors in, sums out, the denominator left to the caller."""

from ssd_train.losses.chunked import ExitTerm, LossSums, chunked_exit_loss
from ssd_train.losses.measure import ExitMeasure, measure_exits

__all__ = ["ExitMeasure", "ExitTerm", "LossSums", "chunked_exit_loss", "measure_exits"]
