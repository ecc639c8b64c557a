"""The decode core: one loop, one per-row cache, exact acceptance, for every autoregressive drafter."""
