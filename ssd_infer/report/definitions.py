"""The words of a report, defined once; every rendered report prints them."""

from __future__ import annotations

DEFINITIONS: tuple[tuple[str, str], ...] = (
    ("γ", "tokens drafted before one verification"),
    ("α", "accepted ÷ drafted, pooled over all rounds and prompts"),
    ("τ", "tokens emitted per verification = accepted + 1, averaged over rounds"),
    ("acceptance by position", "share of rounds reaching draft position k in which position k was accepted"),
    ("histogram", "entry j counts the verifications that accepted exactly j tokens"),
    ("c", "time of one draft forward ÷ time of one plain decoding step"),
    ("v", "time of one verification ÷ time of one plain decoding step"),
    (
        "speedup",
        "tokens per second of the strategy ÷ tokens per second of the fastest plain decoding in the same run, "
        "ratio of totals; interval: bootstrap over prompts and over the blocks they were timed in, 95 %, never "
        "narrower than the noise. It is of the length asked for: where the time limit allowed fewer tokens, the rest "
        "counts at the steady rate between the first block and the last but one. A row that decodes plainly shares the "
        "samples of plain decoding: its speedup is 1",
    ),
    (
        "first token",
        "TTFT, time to first token: from the call until the first token has reached the host, prefill included; "
        "median over the timed calls",
    ),
    (
        "between tokens",
        "ITL, inter-token latency: time since the block before ÷ tokens of the block, for every token after the first "
        "block; median / 95th percentile over all tokens of the timed calls. Tokens that were drafted arrive together. "
        "transformers is listened to only on a CPU, where that costs nothing",
    ),
    (
        "noise",
        "how far a plain decoding measured twice, like two contenders, is from itself with 95 %; a strategy is called "
        "faster only if it drafted and its interval lies above 1 and outside the noise",
    ),
    (
        "too short to tell",
        "the interval is wider than ±10 % of the speedup: more prompts or minutes would tell",
    ),
    (
        "predicted speedup",
        "(1 + γα) ÷ (γc + v) from this row's measured α, c and v; no wall clock of the row enters",
    ),
    (
        "lossless",
        "greedy: the same tokens as plain greedy decoding of this checkpoint, equal length included; "
        "sampling (rows with T, the temperature): χ² tests of short continuations against the exactly enumerated "
        "distribution and of the timed tokens' places in the target's own distribution, failing below p = 0.0001",
    ),
    (
        "distinct-n",
        "different n-grams ÷ all n-grams inside one output, averaged over outputs; low values mean loops",
    ),
    ("agreement", "share of held-out positions where an exit's top token is the last layer's top token"),
)
"""Pairs of (name, definition), printed at the end of every report. Tokens past EOS or the limit count nowhere."""
