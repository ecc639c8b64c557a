"""Random draft modules beside tiny models, and decodings that can be looked into round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ssd_infer.checkpoint.draft_spec import DraftSpec
from ssd_infer.engine.loop import Decoding
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import Proposal, open_session
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target
from ssd_infer.models.draft_modules.build import build
from ssd_infer.models.draft_modules.files import draft_beside, put_beside
from ssd_infer.models.draft_modules.module import DraftModule
from ssd_infer.strategies import registry
from ssd_infer.strategies.draft_module.module_draft import ModuleDraft
from tests.conftest import build_model

DRAFTS = {"exit": "exit_module", "mtp": "mtp", "heads": "heads"}
FORMS: dict[str, dict[str, int]] = {"exit": {"exit_layer": 2}, "mtp": {"rollout": 3}, "heads": {"heads": 4}}
BODIES: dict[str, dict[str, int]] = {
    "rank": {"rank": 4},
    "attention": {},
    "attention_mlp": {"mlp_width": 24},
    "layer": {},
}
LENGTHS = (5, 1, 17, 9, 30, 2, 12, 7)


def prompts(lengths: tuple[int, ...] = LENGTHS, vocabulary: int = 97) -> list[list[int]]:
    """Return random prompts of these lengths."""
    draw = torch.Generator().manual_seed(3)
    return [torch.randint(3, vocabulary, (length,), generator=draw).tolist() for length in lengths]


def make(
    model: Any, form: str, body: str = "layer", rows: int = 0, noise: float = 0.05, **more: Any
) -> DraftModule:
    """Return a module of random weights, put beside `model`; without noise as it begins."""
    body = "rank" if form == "heads" else body
    spec = DraftSpec(form=form, module=body, rows=rows, **FORMS[form] | BODIES[body] | more)
    vocabulary = int(model.config.vocab_size)
    ids = torch.arange(vocabulary)[:: max(1, vocabulary // rows)][:rows] if rows else None
    module = build(spec, model, ids)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() > 1:
                weight.add_(noise * torch.randn_like(weight))
    put_beside(model, module)
    found = draft_beside(model, form)
    assert found is not None
    return found


def tiny(family: str = "llama", layers: int = 4, **changes: Any) -> Any:
    """Return a tiny model."""
    return build_model(family, layers=layers, **changes)


Seen = Callable[[ModuleDraft, Proposal], None]


def follow(
    model: Any, draft: str, params: dict[str, Any], rows: list[list[int]], seen: Seen, new: int = 16
) -> list[list[int]]:
    """Decode `rows` greedily and show every proposal to `seen`, before it is verified; return the new tokens."""
    target, kind = Target.of(model), registry.get(draft)
    parsed = kind.parse(params | {"confidence": params.get("confidence", 0.0)}, target)
    sampler = Sampler(SamplingParams(), target.device, 0)
    session = open_session(target, rows, new, kind.max_draft(parsed), sampler)
    plan = kind.plan(session, parsed)
    session.layers = plan.layers
    drafter: Any = plan.drafter
    propose = drafter.propose

    def watched(limit: int) -> Proposal:
        proposal: Proposal = propose(limit)
        seen(drafter, proposal)
        return proposal

    drafter.propose = watched
    decoding = Decoding(session, drafter, StopRule(), Stats.empty(len(rows)))
    with torch.inference_mode():
        return decoding.run()


class Recorder:
    """A cache that keeps what a layer computes, and hands it back."""

    is_compileable = False

    def __init__(self) -> None:
        """Begin with nothing."""
        self.keys: Tensor | None = None

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Keep `keys` `(B, H, T, D)`."""
        self.keys = keys
        return keys, values

    def get_seq_length(self, *_: Any) -> int:
        """Nothing was there before."""
        return 0


def paths(proposal: Proposal, row: int) -> Iterator[tuple[list[int], int]]:
    """Yield each drafted token of a row with the drafts before it: those drafts, and the token's number."""
    if proposal.tree is None:
        for at in range(len(proposal.drafts()[row])):
            yield list(range(at)), at
        return
    parents = proposal.tree.parents()
    own = parents[row if len(parents) > 1 else 0]
    for node, parent in enumerate(own, start=1):
        way: list[int] = []
        while parent > 0:
            way.insert(0, parent - 1)
            parent = own[parent - 1]
        yield way, node - 1
