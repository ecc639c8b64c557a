"""From hidden states to what STEP and DRAFT read: chosen tokens and scores, in one device call for all states."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.families.diffusion.denoiser import Denoiser
from ssd_infer.families.diffusion.noise import Key, gumbel
from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.families.diffusion.step import Reading

Ask = tuple[Sequence[int], Sequence[int], Sequence[Key]]
"""One reading: offsets, where in the hidden states each is predicted, and the noise key of each."""


class Reader:
    """Apply the head at the positions asked for, perturb where sampling, and choose."""

    def __init__(self, denoiser: Denoiser, settings: SamplerSettings, sampling: SamplingParams) -> None:
        """Raise ConfigError where noise in float64 is asked of a device without it."""
        self._denoiser, self._sampling = denoiser, sampling
        self._order = settings.order
        self._scored = settings.needs_scores
        self._dtype = torch.float64 if settings.noise_dtype == "float64" else torch.float32
        self.sampled = sampling.do_sample
        if self.sampled and self._dtype == torch.float64 and denoiser.device.type == "mps":
            rule = "must not be mps when sampling: its noise needs float64, which mps has not"
            raise ConfigError([Problem("device", rule, "mps", "use device=cpu, or do_sample=False")])

    def logits(self, hidden: Tensor, indices: Sequence[int]) -> Tensor:
        """Return logits `(M, V)` predicted at `indices` of the flat hidden states `(S, d)`."""
        places = torch.tensor(indices, device=hidden.device)
        return self._denoiser.logits(hidden.index_select(0, places))

    def read(self, hidden: Tensor, asks: Sequence[Ask], width: int, seconds: bool = False) -> list[Reading]:
        """Return one reading for each ask; `seconds` adds second choices and margins."""
        flat = [place for _, places, _ in asks for place in places]
        keys = [key for _, _, found in asks for key in found]
        return self._fill(
            [offsets for offsets, _, _ in asks], self.logits(hidden, flat), keys, width, seconds
        )

    def read_ahead(
        self, hidden: Tensor, asks: Sequence[Ask], width: int, depth: int, seconds: bool = False
    ) -> list[list[Reading]]:
        """Return for each ask its readings with the noise of 0 … `depth` − 1 more tokens revealed.

        The noise of a later step is known already, so a draft may use it: that is why drafts survive sampling.
        """
        flat = [place for _, places, _ in asks for place in places]
        logits = self.logits(hidden, flat).repeat(depth, 1)
        keys = [(s, n + k, p) for k in range(depth) for _, _, found in asks for s, n, p in found]
        offsets = [ask[0] for ask in asks] * depth
        table = self._fill(offsets, logits, keys, width, seconds)
        return [table[index :: len(asks)] for index in range(len(asks))]

    def _fill(
        self, offsets: Sequence[Sequence[int]], logits: Tensor, keys: Sequence[Key], width: int, seconds: bool
    ) -> list[Reading]:
        """Choose at every row of `logits` `(M, V)` and hand the results out by ask and offset."""
        tokens, scores, others, margins = self._choose(logits, keys, seconds)
        found = []
        place = 0
        for where in offsets:
            reading = Reading([0] * width, [0.0] * width, [0] * width if seconds else [], [0.0] * width)
            for offset in where:
                reading.tokens[offset] = tokens[place]
                if scores:
                    reading.scores[offset] = scores[place]
                if seconds:
                    reading.seconds[offset] = others[place]
                    reading.margins[offset] = margins[place]
                place += 1
            found.append(reading)
        return found

    def _choose(
        self, logits: Tensor, keys: Sequence[Key], seconds: bool
    ) -> tuple[list[int], list[float], list[int], list[float]]:
        """Return tokens, scores (empty where unused), second choices and margins (empty unless asked for)."""
        perturbed = self._perturbed(logits, keys) if self.sampled else logits
        others: list[int] = []
        margins: list[float] = []
        if seconds:
            best = perturbed.topk(2, dim=-1)
            chosen = best.indices[:, 0]
            others = best.indices[:, 1].tolist()
            margins = (best.values[:, 0] - best.values[:, 1]).tolist()
        else:
            chosen = perturbed.argmax(dim=-1)
        scores = self._scores(logits, chosen).tolist() if self._scored else []
        return chosen.tolist(), scores, others, margins

    def _scores(self, logits: Tensor, chosen: Tensor) -> Tensor:
        """Return what the order compares, `(M,)`, the larger the earlier."""
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        if self._order == "entropy":
            logs = logits.log_softmax(-1)
            return (logs.exp() * logs).sum(-1)
        if self._order == "margin":
            top = logits.softmax(-1).topk(2, dim=-1).values
            return top[:, 0] - top[:, 1]
        return log_odds(logits, chosen)

    def _perturbed(self, logits: Tensor, keys: Sequence[Key]) -> Tensor:
        """Return processed logits over temperature plus keyed Gumbel noise, `(M, V)`."""
        scores = logits.to(self._dtype) / self._sampling.temperature
        top_k, top_p = self._sampling.top_k, self._sampling.top_p
        if 0 < top_k < scores.shape[-1]:
            floor = scores.topk(top_k, dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < floor, -torch.inf)
        if top_p < 1.0:
            ordered, order = scores.softmax(-1).sort(dim=-1, descending=True)
            outside = ordered.cumsum(-1) - ordered >= top_p
            scores = scores.masked_fill(outside.gather(-1, order.argsort(-1)), -torch.inf)
        return scores + gumbel(keys, scores.shape[-1], scores.device, self._dtype)


def log_odds(logits: Tensor, chosen: Tensor) -> Tensor:
    """Return log p/(1−p) `(M,)` of tokens `(M,)` under logits `(M, V)`.

    Monotone in the confidence p, but p near 1 rounds to ties whose order would depend on the shape of the call.
    """
    picked = logits.gather(-1, chosen[:, None])
    others = logits.scatter(-1, chosen[:, None], -torch.inf)
    return (picked - others.logsumexp(-1, keepdim=True))[:, 0]
