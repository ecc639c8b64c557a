"""The one place that reads the rules of a model's `generation_config`: penalties, bans, minimum lengths and the like.

They change what transformers' `generate` emits. This engine does not follow them yet, so a call under a rule in force
is refused by the rule's name, with a draft or without one, instead of being answered by other rules without a word.
What the arguments of a call say (sampling, lengths, ends) is no rule and is not read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ssd_infer.engine.values import shown
from ssd_infer.errors import Problem

SWITCHES = ("model", "off")
"""What `generation_rules` may be: as the model says, or off for this call."""

_ALWAYS: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "bad_words_ids": None,
    "sequence_bias": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "remove_invalid_values": False,
    "guidance_scale": None,
    "watermarking_config": None,
    "num_beams": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "constraints": None,
    "force_words_ids": None,
    "dola_layers": None,
    "token_healing": False,
    "max_time": None,
    "stop_strings": None,
    "assistant_ensemble_weight": None,
    "num_return_sequences": 1,
}
"""Rule → the value that switches it off; whether tokens are drawn makes no difference to these."""
_DRAWN: dict[str, Any] = {
    "min_p": None,
    "typical_p": 1.0,
    "top_h": None,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}
"""Rules of sampling."""
_GREEDY: dict[str, Any] = {"penalty_alpha": None}
"""Rules of decoding without sampling."""
_EQUAL: dict[str, tuple[Any, ...]] = {
    "guidance_scale": (1, 1.0),
    "penalty_alpha": (0, 0.0),
    "min_p": (0, 0.0),
    "min_new_tokens": (0,),
    "assistant_ensemble_weight": (0, 0.0, 1, 1.0),
}
"""Values that switch a rule off beside the one above."""
_MODES: dict[str, Any] = {
    "use_mtp": None,
    "prompt_lookup_num_tokens": None,
    "assistant_early_exit": None,
    "return_dict_in_generate": False,
}
"""Other ways to the same tokens: nothing to refuse, but a baseline of plain decoding has them off."""


def in_force(config: Any, do_sample: bool) -> dict[str, Any]:
    """Return the rules of a generation config that change what is emitted, with their values."""
    rules = _ALWAYS | (_DRAWN if do_sample else _GREEDY)
    found = {name: getattr(config, name, None) for name in rules}
    on = {name: value for name, value in found.items() if _is_on(name, value, rules[name])}
    if getattr(config, "cache_implementation", None) == "quantized":
        on["cache_implementation"] = "quantized"
    return on


def _is_on(name: str, value: Any, off: Any) -> bool:
    if value is None or (isinstance(value, list | tuple | dict) and not value):
        return False
    same: bool = value == off
    return not same and value not in _EQUAL.get(name, ())


def off_value(name: str) -> Any:
    """Return the value that switches rule `name` off."""
    return (_ALWAYS | _DRAWN | _GREEDY | _MODES).get(name)


def read_rules(model: Any, switch: Any, do_sample: bool, problems: list[Problem]) -> None:
    """Add a problem for every rule of `model` in force, unless the caller switched rules off for this call."""
    if switch not in SWITCHES:
        rule = "must be 'model' (its generation config's rules hold) or 'off' (they do not)"
        problems.append(Problem("generation_rules", rule, shown(switch), "try 'off'"))
    if switch != "model":
        return
    for name, value in in_force(getattr(model, "generation_config", None), do_sample).items():
        rule = "is a rule of this model that decoding here cannot follow yet"
        remedy = (
            f"set model.generation_config.{name} = {off_value(name)!r}, or pass generation_rules='off' to "
            "ssd_infer.generate, to decode without it; transformers' generate follows it"
        )
        problems.append(Problem(f"generation_config.{name}", rule, shown(value), remedy))


def read_prepared_rules(config: Any, problems: list[Problem]) -> None:
    """Add a problem for every rule in force in the config that transformers' `generate` prepared for one call."""
    rules = in_force(config, bool(config.do_sample))
    if config.do_sample:
        rules.pop("num_return_sequences", None)  # its rows came expanded
    if "min_new_tokens" in rules:
        rules.pop("min_length", None)  # generate derives it
    for name, value in rules.items():
        rule = "is a rule that self-speculation cannot follow yet"
        remedy = (
            f"pass {name}={off_value(name)!r} to decode without it, or leave out custom_generate to follow it"
        )
        problems.append(Problem(name, rule, shown(value), remedy))


def switched_off(model: Any) -> dict[str, Any]:
    """Return the arguments that make transformers' `generate` decode `model` without its rules, plainly.

    Only what the model's own config sets is named, so that nothing depends on what a version of transformers knows.
    """
    config = getattr(model, "generation_config", None)
    off = _ALWAYS | _DRAWN | _GREEDY | _MODES
    set_here = {name: getattr(config, name, None) for name in off}
    arguments = {name: off[name] for name, value in set_here.items() if value is not None}
    if getattr(config, "cache_implementation", None) is not None:
        arguments["cache_implementation"] = None
    return arguments


def notes_of(model: Any, drawn: Iterable[bool]) -> list[str]:
    """Return a sentence for every rule that a comparison leaves out for all its rows; `drawn`: with sampling or not."""
    config = getattr(model, "generation_config", None)
    rules = {name: value for name in _MODES if (value := getattr(config, name, None))}
    for do_sample in drawn:
        rules |= in_force(config, do_sample)
    return [
        f"generation_config.{name}={shown(value)} was switched off for every row"
        for name, value in rules.items()
    ]
