"""Names of the losses of a draft module, for rules that are checked before torch is loaded."""

from __future__ import annotations

LOSSES = ("lk_hybrid", "kl", "tv", "nla", "ce")
"""What `ssd_train.losses.restricted` computes, the default first."""
