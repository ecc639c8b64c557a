"""The logits processors that transformers' `generate` prepared for a call, its caller's own among them, row by row.

They were made for a batch whose rows are padded and end together. Here each row is asked for alone, after drafts and at
several positions a round, so only what answers by a row's ids and scores and nothing else can be followed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ssd_infer.engine.generation_rules import read_prepared_rules
from ssd_infer.engine.rules import Processor, RowRules, Rules, Warpers
from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.errors import Problem

_RULES = (
    "SequenceBiasLogitsProcessor",
    "EncoderRepetitionPenaltyLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    "EncoderNoRepeatNGramLogitsProcessor",
    "NoBadWordsLogitsProcessor",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "InfNanRemoveLogitsProcessor",
    "ExponentialDecayLengthPenalty",
    "SuppressTokensLogitsProcessor",
    "SuppressTokensAtBeginLogitsProcessor",
)
"""transformers' own processors that answer by a row's ids and scores alone, in any order."""
_BY_BATCH = (
    "RepetitionPenaltyLogitsProcessor",
    "EncoderRepetitionPenaltyLogitsProcessor",
    "EncoderNoRepeatNGramLogitsProcessor",
)
"""Those that hold something of every row."""
_WARPERS = (
    "TemperatureLogitsWarper",
    "TopHLogitsWarper",
    "TopKLogitsWarper",
    "TopPLogitsWarper",
    "MinPLogitsWarper",
    "TypicalLogitsWarper",
    "EpsilonLogitsWarper",
    "EtaLogitsWarper",
)
"""Its warpers, which come after all rules, each at most once and in this order."""
_NUMBERS = {
    "TemperatureLogitsWarper": "temperature",
    "TopKLogitsWarper": "top_k",
    "TopPLogitsWarper": "top_p",
}
"""Warpers whose number this engine's own sampler takes."""
_LAST = "LogitNormalization"
"""Changes no token where it comes last."""


@dataclass(slots=True)
class GivenProcessors:
    """The processors of a call; its rows of ids `(B, T)` are what they are to see, padding and all."""

    input_ids: Tensor
    rules: list[Processor] = field(default_factory=list)
    drawn: dict[str, Any] = field(default_factory=dict)
    """Warpers by the name of their class."""

    def bind(
        self, prompts: list[list[int]], new: int, ends: frozenset[int], vocabulary: int, device: torch.device
    ) -> Rules | None:
        """Return the rules of a decoding: what each row would have seen in `generate`'s own loop."""
        del prompts, new, vocabulary
        if not self.rules:
            return None
        rows = self.input_ids.tolist()
        return Rules(
            [
                RowRules([_for_row(rule, row, len(rows)) for rule in self.rules], ids, device)
                for row, ids in enumerate(rows)
            ],
            ends,
        )

    def warpers(self, device: torch.device) -> Warpers | None:
        """Return the warpers that are not this engine's own."""
        del device
        before = tuple(self.drawn[name] for name in _WARPERS[1:2] if name in self.drawn)
        after = tuple(self.drawn[name] for name in _WARPERS[4:] if name in self.drawn)
        return Warpers(before, after) if before or after else None

    def sampling(self, do_sample: bool, problems: list[Problem]) -> SamplingParams:
        """Return temperature, top-k and top-p; what is wrong with them is added to `problems`."""
        numbers = {name: getattr(self.drawn.get(kind), name, None) for kind, name in _NUMBERS.items()}
        return SamplingParams.read(
            do_sample, numbers["temperature"], numbers["top_k"], numbers["top_p"], problems
        )


def read_processors(
    given: Iterable[Any], input_ids: Tensor, config: Any, problems: list[Problem]
) -> GivenProcessors:
    """Sort the processors of a call on `input_ids` `(B, T)`; a problem is added for each that cannot be followed."""
    found = GivenProcessors(input_ids)
    for processor in given:
        name, why = _name(processor), None
        if name == _LAST or name in _RULES or (name is None and _stateless(processor)):
            if not found.drawn:
                found.rules.append(processor)
            elif name != _LAST:
                why = "must come before temperature, top-k, top-p and other warpers"
        elif name in _WARPERS:
            later = _WARPERS[_WARPERS.index(name) :]
            if found.drawn.keys() & set(later) or not _plain_filter(name, processor):
                why = "must be one temperature, one top-k and one top-p, in this order"
            else:
                found.drawn[name] = processor
        elif name is not None:
            why = None if of_a_rule(processor, config) else "is no processor that answers for one row alone"
        else:
            why = "may keep something from one call to the next, and is asked about several drafts a round"
        if why is not None:
            problems.append(Problem("logits_processor", why, type(processor).__name__, _remedy(name)))
    while found.rules and _name(found.rules[-1]) == _LAST:
        found.rules.pop()
    return found


def of_a_rule(item: Any, config: Any) -> bool:
    """Tell whether transformers made `item` from a rule of its config, which is refused by the rule's name."""
    found: list[Problem] = []
    read_prepared_rules(config, found)
    return bool(found) and type(item).__module__.startswith("transformers.")


def _name(processor: Any) -> str | None:
    """Return the class of one of transformers' own processors; None for a caller's own."""
    from transformers.generation import logits_process as known

    name = type(processor).__name__
    return name if type(processor) is getattr(known, name, None) else None


def _stateless(processor: Any) -> bool:
    """Tell whether a caller's processor says that it answers by the ids and scores it is handed and nothing else."""
    return getattr(processor, "stateless", False) is True


def _remedy(name: str | None) -> str:
    if name is not None:
        return "drop it, or leave out custom_generate"
    return (
        "set `stateless = True` on its class if what it returns depends on the ids and scores of a row and on nothing "
        "else, or leave out custom_generate"
    )


def _plain_filter(name: str, processor: Any) -> bool:
    """Tell whether a warper does what its number says and no more, where only its number is taken."""
    keeps, fills = getattr(processor, "min_tokens_to_keep", 1), getattr(processor, "filter_value", -torch.inf)
    return name not in _NUMBERS or bool(keeps == 1 and fills == -torch.inf)


def _for_row(processor: Any, row: int, rows: int) -> Processor:
    """Return `processor` as it answers for one row of the batch of `rows` it was made for."""
    name, alone = _name(processor), processor
    if name in _BY_BATCH:
        alone = copy.copy(processor)
    if name == "RepetitionPenaltyLogitsProcessor":
        ignored = getattr(processor, "prompt_ignore_length", None)
        if isinstance(ignored, Tensor):
            alone.prompt_ignore_length = int(ignored[row])
    elif name == "EncoderRepetitionPenaltyLogitsProcessor":
        ids = processor.encoder_input_ids
        alone.encoder_input_ids = ids[row * len(ids) // rows][None]
    elif name == "EncoderNoRepeatNGramLogitsProcessor":
        alone.generated_ngrams = [processor.generated_ngrams[row * processor.batch_size // rows]]
        alone.batch_size = 1
    elif name == "PrefixConstrainedLogitsProcessor":
        allowed, prompt = processor._prefix_allowed_tokens_fn, row // processor._num_beams
        alone = type(processor)(lambda _, ids: allowed(prompt, ids), 1)
    found: Processor = alone
    return found
