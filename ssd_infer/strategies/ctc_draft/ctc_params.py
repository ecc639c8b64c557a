"""The parameters of CTC drafting, checked; each variant is a set of defaults for the same fields. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ssd_infer.config.checks import Checks, suggest

AUTO = "auto"
SEQUENCE = "sequence"
"""−ln P(transcript) over all its alignments: where a token begins is no doubt about what is said."""
AGGREGATES = ("max", "p95", "mean", SEQUENCE)
FRAMES = ("valid", "nonblank")
RELATIVE_THETA_CTC = 0.25
"""θ_CTC ÷ ln V where a checkpoint has no calibration: 0.86 nats for 31 symbols. Absolute thresholds do not transfer."""
PLAIN_THETA_LM = 0.05


@dataclass(frozen=True, slots=True)
class CTCDraftParams:
    """How a CTC transcript is accepted; thresholds as in arXiv 2603.11243 (there τ_CTC and τ_SLM)."""

    theta_ctc: float | None = None
    """Gate 1 passes a non-empty draft whose doubt is at most this, in nats; None or < 0: gate off."""
    theta_lm: float = PLAIN_THETA_LM
    """Gate 2 passes a draft each of whose tokens has at least this probability; > 1: gate off, no verify pass."""
    entropy_agg: str = SEQUENCE
    """What doubt is: `sequence`, −ln P of the transcript over all its alignments, or the `max` (arXiv 2603.11243),
    `p95` or `mean` of the frames' entropies. Frames between two tokens are undecided in a perfect draft too: a `max`
    of ln 2 says nothing, while every alignment that reads the same counts for the transcript."""
    entropy_frames: str = "valid"
    """Frames whose entropies count: all `valid` ones, or the `nonblank` ones."""
    eos_check: bool = True
    """Gate 2 also asks the decoder whether the transcript ends here."""
    fallback: str = "prefix"
    """Where greedy decoding resumes after a rejection: after the verified `prefix`, or from the start (`restart`)."""
    reuse_kv: bool = True
    """The fallback keeps the verify pass's keys and values of the prefix."""
    draft_max_tokens: int | None = None
    accept: str = "relaxed"
    """`relaxed`: the two gates. `greedy`: the output is that of plain decoding, token for token."""
    resync: str = "match"
    """What follows a rejected token is verified again: realigned at once (`shift`), or once two tokens in a row agree
    where it aligns best with the decoder's own (`match`); `none` drops it, as arXiv 2603.11243 does. It changes no
    token."""
    max_verify_rounds: int = 6
    """Rejected drafts before plain decoding takes over."""
    temperature_ctc: float = 1.0
    """Divides the CTC logits before entropies are taken."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


VARIANTS: dict[str, dict[str, Any]] = {
    "ctc_draft": {},
    "ctc_draft:lossless": {"accept": "greedy"},
    "ctc_draft:verify_only": {"theta_ctc": None},
    "ctc_draft:gate_only": {"theta_lm": 2.0},
    "ctc_draft:ctc_only": {},
}
"""Row name → what distinguishes it; the rest is calibrated or given."""
REFERENCES = ("sasd", "rescoring")
"""Other ways to use both heads; they draft nothing."""
NAMES = (*VARIANTS, *REFERENCES)


def canonical(name: str) -> str:
    """Return the row name of a draft as typed: `ctc_draft+lossless` is `ctc_draft:lossless`, `ctc_only` a variant."""
    name = name.replace("+", ":")
    return "ctc_draft:ctc_only" if name == "ctc_only" else name


def check_name(name: Any, checks: Checks) -> bool:
    """Note unless `name` is a way to decode speech."""
    typed = canonical(name) if isinstance(name, str) else ""
    return checks.require(typed in NAMES, "draft", "is no draft for speech", name, suggest(typed, NAMES))


def parse(
    name: str, given: Mapping[str, Any], vocab_size: int, calibrated: Mapping[str, float | None] | None = None
) -> CTCDraftParams:
    """Return the parameters of variant `name`; `auto` or missing thresholds are calibrated ones, or plain defaults.

    Raises ConfigError with every wrong entry of `given`.
    """
    checks = Checks("draft_params.")
    known = {field.name for field in fields(CTCDraftParams)}
    for key in set(given) - known:
        checks.fail(key, "is not a parameter of ctc_draft", given[key], suggest(key, known))
    plain = {"theta_ctc": RELATIVE_THETA_CTC * math.log(vocab_size), "theta_lm": PLAIN_THETA_LM}
    chosen = {key: value for key, value in given.items() if key in known and value != AUTO}
    values = plain | dict(calibrated or {}) | VARIANTS.get(name, {}) | chosen
    if name == "ctc_draft:lossless" and values["accept"] != "greedy":
        remedy = "leave it out, or decode with draft=ctc_draft"
        checks.fail(
            "accept", f"must be greedy in {name}, whose output is plain decoding's", values["accept"], remedy
        )
    _check(values, checks)
    checks.finish()
    return replace(CTCDraftParams(), **values)


def _check(values: Mapping[str, Any], checks: Checks) -> None:
    if values.get("theta_ctc") is not None:
        _number(
            "theta_ctc", values["theta_ctc"], checks, "must be a number of nats, or null to switch gate 1 off"
        )
    low = _number(
        "theta_lm", values["theta_lm"], checks, "must be a probability; above 1 switches gate 2 off"
    )
    if low:
        checks.require(values["theta_lm"] >= 0, "theta_lm", "must be at least 0", values["theta_lm"])
    choices = {
        "entropy_agg": AGGREGATES,
        "entropy_frames": FRAMES,
        "fallback": ("prefix", "restart"),
        "accept": ("relaxed", "greedy"),
        "resync": ("match", "shift", "none"),
    }
    for key, options in choices.items():
        if key in values:
            checks.choice(key, str(values[key]), options)
    for key in ("eos_check", "reuse_kv"):
        checks.require(isinstance(values.get(key, True), bool), key, "must be true or false", values.get(key))
    for key, low_end in (("draft_max_tokens", 1), ("max_verify_rounds", 1)):
        if values.get(key) is not None:
            whole = (
                isinstance(values[key], int) and not isinstance(values[key], bool) and values[key] >= low_end
            )
            checks.require(whole, key, f"must be an integer of at least {low_end}", values[key])
    heat = values.get("temperature_ctc", 1.0)
    if _number("temperature_ctc", heat, checks, "must be a number above 0"):
        checks.above_zero("temperature_ctc", heat)


def _number(key: str, value: Any, checks: Checks, rule: str) -> bool:
    good = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    return checks.require(good, key, rule, value)
