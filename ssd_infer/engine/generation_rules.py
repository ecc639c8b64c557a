"""The one place that reads the rules of a model's `generation_config`: penalties, bans, minimum lengths and the like.

They change what transformers' `generate` emits. Rules about the score of a next token are followed, with a draft or
without one (`rule_values.FOLLOWED`); a call under any other is refused by the rule's name instead of being answered by
other rules without a word. What the arguments of a call say of sampling, lengths and ends is no rule and is not read
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ssd_infer.config.checks import suggest
from ssd_infer.engine.processors import RuleValues
from ssd_infer.engine.rule_values import FOLLOWED, NEEDS_END, read_value
from ssd_infer.engine.values import shown
from ssd_infer.errors import Problem

SWITCHES = ("model", "off")
"""What `generation_rules` may be: as the model says, or off for this call."""
_ARGUMENTS = (
    *(
        "draft",
        "draft_params",
        "max_new_tokens",
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "eos_token_id",
    ),
    *("stop_sequences", "seed", "streamer", "sampler", "generation_rules"),
)
"""The other arguments of `generate`, for those who misspell one."""

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
    on = _switched_on({name: getattr(config, name, None) for name in _rules(do_sample)}, do_sample)
    if getattr(config, "cache_implementation", None) == "quantized":
        on["cache_implementation"] = "quantized"
    return on


def _rules(do_sample: bool) -> dict[str, Any]:
    return _ALWAYS | (_DRAWN if do_sample else _GREEDY)


def _switched_on(values: Mapping[str, Any], do_sample: bool) -> dict[str, Any]:
    """Return those of `values` that are rules of this way to choose tokens and not switched off."""
    rules = _rules(do_sample)
    return {
        name: value for name, value in values.items() if name in rules and _is_on(name, value, rules[name])
    }


def _is_on(name: str, value: Any, off: Any) -> bool:
    if value is None or (isinstance(value, list | tuple | dict) and not value):
        return False
    same: bool = value == off
    return not same and value not in _EQUAL.get(name, ())


def off_value(name: str) -> Any:
    """Return the value that switches rule `name` off."""
    return (_ALWAYS | _DRAWN | _GREEDY | _MODES).get(name)


def read_rules(
    model: Any,
    switch: Any,
    given: Mapping[str, Any],
    do_sample: bool,
    ends: bool,
    problems: list[Problem],
) -> RuleValues | None:
    """Return the rules in force: those of `model` unless the caller switched them off, and those `given` by the call.

    `ends` tells whether any token ends a row. A problem is added for every rule that cannot be followed.
    """
    if switch not in SWITCHES:
        rule = "must be 'model' (its generation config's rules hold) or 'off' (they do not)"
        problems.append(Problem("generation_rules", rule, shown(switch), "try 'off'"))
    found = in_force(getattr(model, "generation_config", None), do_sample) if switch == "model" else {}
    own = {name: value for name, value in found.items() if name not in given}
    _refuse({name: value for name, value in own.items() if name not in FOLLOWED}, problems)
    _refuse_given(given, problems)
    keys = {name: f"generation_config.{name}" for name in own} | {name: name for name in given}
    values = {
        name: read_value(name, keys[name], value, problems)
        for name, value in (own | _switched_on(given, do_sample)).items()
        if name in FOLLOWED
    }
    for name in NEEDS_END if not ends else ():
        if values.get(name) is not None:
            rule, remedy = "needs a token that ends a row", "name one with eos_token_id"
            problems.append(Problem(keys[name], rule, shown(values[name]), remedy))
    return RuleValues(values, keys) if values else None


def refuse_rules(
    model: Any, switch: Any, given: Mapping[str, Any], do_sample: bool, problems: list[Problem]
) -> None:
    """Add a problem for every rule in force, for models whose decoding follows none."""
    known: list[Problem] = []
    read_rules(model, switch, {}, do_sample, ends=True, problems=known)
    problems += [problem for problem in known if problem.key == "generation_rules"]
    if switch == "model":
        _refuse(in_force(getattr(model, "generation_config", None), do_sample), problems)
    for name, value in given.items():
        rule = "is a rule that decoding a model of this kind cannot follow"
        problems.append(Problem(name, rule, shown(value), "leave it out"))


def _refuse(rules: Mapping[str, Any], problems: list[Problem]) -> None:
    """Add a problem for each of a model's own `rules`."""
    for name, value in rules.items():
        rule = "is a rule of this model that decoding here cannot follow"
        remedy = (
            f"set model.generation_config.{name} = {off_value(name)!r}, or pass generation_rules='off' to "
            "ssd_infer.generate, to decode without it; transformers' generate follows it"
        )
        problems.append(Problem(f"generation_config.{name}", rule, shown(value), remedy))


def _refuse_given(given: Mapping[str, Any], problems: list[Problem]) -> None:
    """Add a problem for every name a call gives that is no rule followed here."""
    known = _ALWAYS | _DRAWN | _GREEDY | _MODES
    for name in sorted(given.keys() - FOLLOWED):
        if name in known and not _is_on(name, given[name], known[name]):
            continue
        if name in known:
            rule = "is a rule that decoding here cannot follow"
            remedy = "leave it out; transformers' generate follows it"
        else:
            rule, remedy = "is no argument of generate", suggest(name, [*FOLLOWED, *_ARGUMENTS])
        problems.append(Problem(name, rule, shown(given[name]), remedy))


def read_prepared_rules(config: Any, problems: list[Problem]) -> None:
    """Add a problem for every rule that cannot be followed in the config transformers' `generate` prepared for a call.

    Those that can come as processors, which `generate` made of them.
    """
    rules = in_force(config, bool(config.do_sample))
    if config.do_sample:
        rules.pop("num_return_sequences", None)  # its rows came expanded
    for name, value in rules.items():
        if name in FOLLOWED:
            continue
        rule = "is a rule that self-speculation cannot follow"
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
