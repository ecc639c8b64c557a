"""What all drafts with a module beside the model have in common."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor

from ssd_infer.engine.heads.head import DraftHead
from ssd_infer.engine.loop import Plan
from ssd_infer.engine.session import Feedback, Session
from ssd_infer.engine.target import Target
from ssd_infer.errors import DraftError, SSDError
from ssd_infer.models.draft_modules.files import draft_beside
from ssd_infer.models.draft_modules.module import DraftModule
from ssd_infer.strategies.base import DraftParams, Resolved
from ssd_infer.strategies.draft_head import prompts_of
from ssd_infer.strategies.draft_module.heard_layers import heard_layers, prompt_states
from ssd_infer.strategies.draft_module.module_choice import resolve_module
from ssd_infer.strategies.draft_module.module_heads import OWN, head_of, option_of
from ssd_infer.strategies.draft_module.module_keys import ModuleKeys, Pass
from ssd_infer.strategies.draft_module.module_params import ModuleParams
from ssd_infer.strategies.head_report import head_tables
from ssd_infer.strategies.stepwise import Stepwise
from ssd_infer.tuning.draft_heads import head_bytes
from ssd_infer.tuning.tree_costs import most_nodes
from ssd_infer.tuning.tree_shapes import shape_of

if TYPE_CHECKING:
    from ssd_infer.report.table import Table


class ModuleDraft(Stepwise):
    """Draft with the module beside the model, at most γ tokens a round."""

    Params = ModuleParams
    form: ClassVar[str]
    """Form of the modules it drafts with."""

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Bind to `session`; `params` must have no `auto` left."""
        self.module = self.module_of(session.target)
        super().__init__(session, params)
        resolved = cast(ModuleParams, params)
        self.gamma = min(int(resolved.gamma), self.farthest(session.target))
        self.confidence = 0.0 if resolved.confidence == "auto" else resolved.confidence
        self.shape = shape_of(session.target, resolved.tree, resolved.shares, self.gamma)
        self.keys = ModuleKeys(session, self.module)

    @classmethod
    def module_of(cls, target: Target) -> DraftModule:
        """Return the module beside the model; DraftError where it is gone since it was looked for."""
        module = draft_beside(target.model, cls.form)
        if module is None or module.spec.form != cls.form:
            raise DraftError(f"the draft module of form {cls.form} beside this model is gone")
        return module

    @classmethod
    def resumes(cls, target: Target) -> int:
        """Return after how many layers verification goes on from what drafting has run."""
        del target
        return 0

    @classmethod
    def farthest(cls, target: Target) -> int:
        """Return the most tokens a round that its module can draft; longer γ are cut to it."""
        del target
        return sys.maxsize

    @property
    def depth(self) -> int:
        """Layers of the target after which the module reads its states."""
        raise NotImplementedError

    def open_head(self, session: Session, params: DraftParams) -> DraftHead:
        """Return the head that `params` name, behind the norm of the module."""
        option = option_of(self.module, cast(ModuleParams, params), session.target)
        return head_of(session.target, self.module, option, prompts_of(session))

    @classmethod
    def plan(cls, session: Session, params: DraftParams) -> Plan:
        """Let the layer be heard whose states the module reads."""
        draft = cls(session, params)
        return Plan(draft, heard_layers(session, draft.depth, draft.keys.hear))

    def stand(self) -> None:
        """Stand behind a first drafted token, to measure the next; what was drafted does not matter."""
        self.keys.lengths = list(self.session.lengths)

    def no_states(self) -> Tensor:
        """Return zeros `(B, 1, d)` in place of the target's states, to measure with."""
        target = self.session.target
        shape = len(self.session.rows), 1, int(target.config.hidden_size)
        return torch.zeros(shape, dtype=target.dtype, device=target.device)

    def prefilled(self) -> None:
        """Run the committed tokens again, as far as the states that the module reads."""
        states = prompt_states(self.session, self.depth)
        self.keys.passes = [Pass([0] * len(self.session.rows), states)]

    def observe(self, feedback: Feedback) -> None:
        """Let the states of the verified tokens wait for the next round, those of a tree along its accepted path."""
        states = self.verified(feedback)
        if states is not None:
            self.keys.passes.append(Pass(list(self.session.lengths), states))
        if feedback.path is not None:
            self.keys.passes[-1].order = [[0, *path] for path in feedback.path]

    def verified(self, feedback: Feedback) -> Tensor | None:
        """Return states `(B, γ+1, d)` of the verified tokens; None where they were heard in the verify pass."""
        del feedback
        return None

    def keep_rows(self, kept: list[int]) -> None:
        """Forget rows that ended."""
        self.keys.keep_rows(kept)

    @classmethod
    def applicable(cls, target: Target) -> str | None:
        """Need a module of this form beside the model."""
        try:
            module = draft_beside(target.model, cls.form)
        except SSDError as error:
            return f"its draft module cannot be used: {' '.join(str(error).split())}"
        if module is None:
            return (
                f"there is no draft module beside it; train one with recipe.form={cls.form} "
                "(python -m ssd_train +recipe=frozen_target) and load the folder it was written to"
            )
        if module.spec.form != cls.form:
            return f"its draft module is of form {module.spec.form}, and this draft needs form {cls.form}"
        return None

    @classmethod
    def extra_bytes(cls, target: Target, params: DraftParams) -> int:
        """Return the bytes of the module and of a head of its own; those of its keys hang on the text."""
        module = cls.module_of(target)
        own = sum(weight.numel() * weight.element_size() for weight in module.state_dict().values())
        option = option_of(module, cast(ModuleParams, params), target)
        return int(own) + (0 if option == OWN else head_bytes(target, option))

    @classmethod
    def resolve(
        cls, target: Target, params: DraftParams, prompts: list[list[int]], do_sample: bool
    ) -> Resolved:
        """Choose γ, stop, head and tree by predicted speedup; plain decoding when none exceeds 1."""
        return resolve_module(cls, target, cast(ModuleParams, params), prompts, do_sample)

    @classmethod
    def max_draft(cls, params: DraftParams) -> int:
        """Return γ, or the nodes of a tree."""
        found = cast(ModuleParams, params)
        return max(int(found.gamma), most_nodes(found.tree))

    @classmethod
    def tables(cls, row: Mapping[str, Any]) -> list[Table]:
        """Show its head."""
        return head_tables(row)
