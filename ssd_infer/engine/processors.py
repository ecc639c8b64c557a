"""transformers' logits processors for the rules of a request, in the order in which its `generate` applies them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ssd_infer.engine.rule_values import named_tokens
from ssd_infer.engine.rules import Processor, RowRules, Rules, Warpers
from ssd_infer.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class RuleValues:
    """The rules of a request by name, every value as `rule_values.read_value` returns it."""

    values: Mapping[str, Any]
    keys: Mapping[str, str]
    """Under which key each was given, for messages."""

    def bind(
        self, prompts: list[list[int]], new: int, ends: frozenset[int], vocabulary: int, device: torch.device
    ) -> Rules | None:
        """Return the rules of a decoding; every row is processed as if it were decoded alone."""
        self._check_vocabulary(vocabulary)
        rows = [
            RowRules(
                _processors_of_row(self.values, prompt, len(prompt) + new, sorted(ends), device),
                prompt,
                device,
            )
            for prompt in prompts
        ]
        return Rules(rows, ends) if any(row.processors for row in rows) else None

    def warpers(self, device: torch.device) -> Warpers | None:
        """Return the rules of sampling that are among the values."""
        return _made_warpers(self.values, device)

    def _check_vocabulary(self, size: int) -> None:
        rule = f"must name tokens of the model's vocabulary of {size}"
        found = {name: named_tokens(name, value) for name, value in self.values.items()}
        wrong = {name: max(tokens) for name, tokens in found.items() if tokens and max(tokens) >= size}
        if wrong:
            remedy = "use the checkpoint's tokenizer"
            raise ConfigError(
                [Problem(self.keys[name], rule, token, remedy) for name, token in wrong.items()]
            )


def _processors_of_row(
    values: Mapping[str, Any], prompt: list[int], longest: int, ends: list[int], device: torch.device
) -> list[Processor]:
    """Return the processors of one row, in transformers' order; those about ends need tokens that end a row."""
    known = _classes()
    ids = torch.tensor([prompt], dtype=torch.long, device=device)
    start, on = len(prompt), {"device": str(device)}
    begin = start + int(start == 1 and "forced_bos_token_id" in values)
    eos = torch.tensor(ends, dtype=torch.long, device=device) if ends else None
    made = {
        "sequence_bias": (known.SequenceBiasLogitsProcessor, (), {}),
        "encoder_repetition_penalty": (known.EncoderRepetitionPenaltyLogitsProcessor, (ids,), {}),
        "repetition_penalty": (known.RepetitionPenaltyLogitsProcessor, (), {}),
        "no_repeat_ngram_size": (known.NoRepeatNGramLogitsProcessor, (), {}),
        "encoder_no_repeat_ngram_size": (known.EncoderNoRepeatNGramLogitsProcessor, (ids,), {}),
        "bad_words_ids": (known.NoBadWordsLogitsProcessor, (eos,), {}),
        "min_length": (known.MinLengthLogitsProcessor, (eos,), on),
        "min_new_tokens": (partial(known.MinNewTokensLengthLogitsProcessor, start), (eos,), on),
        "forced_bos_token_id": (known.ForcedBOSTokenLogitsProcessor, (), {}),
        "forced_eos_token_id": (partial(known.ForcedEOSTokenLogitsProcessor, longest), (), on),
        "remove_invalid_values": (lambda _: known.InfNanRemoveLogitsProcessor(), (), {}),
        "exponential_decay_length_penalty": (known.ExponentialDecayLengthPenalty, (eos, start), {}),
        "suppress_tokens": (known.SuppressTokensLogitsProcessor, (), on),
        "begin_suppress_tokens": (known.SuppressTokensAtBeginLogitsProcessor, (begin,), on),
    }
    idle = () if ends else ("min_length", "min_new_tokens", "exponential_decay_length_penalty")
    chosen = {name: how for name, how in made.items() if name in values and name not in idle}
    return [make(values[name], *more, **named) for name, (make, more, named) in chosen.items()]


def _made_warpers(values: Mapping[str, Any], device: torch.device) -> Warpers | None:
    """Return the warpers of `values` in transformers' order, around top-k and top-p."""
    known = _classes()
    made = {
        "min_p": known.MinPLogitsWarper,
        "typical_p": known.TypicalLogitsWarper,
        "epsilon_cutoff": known.EpsilonLogitsWarper,
        "eta_cutoff": partial(known.EtaLogitsWarper, device=str(device)),
    }
    before = [known.TopHLogitsWarper(values["top_h"])] if "top_h" in values else []
    after = [make(values[name]) for name, make in made.items() if name in values]
    return Warpers(tuple(before), tuple(after)) if before or after else None


def _classes() -> Any:
    """Return the module of transformers' processors, imported where a rule is in force."""
    from transformers.generation import logits_process

    return logits_process
