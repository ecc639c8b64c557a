"""Drafts `exit_module+ngram`, `mtp+ngram`, `heads+ngram`: a module, and copies of earlier text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from ssd_infer.engine.drafter import UNSAID
from ssd_infer.strategies.base import Auto, DraftParams
from ssd_infer.strategies.draft_module import EXIT_MODULE_NGRAM, HEADS_NGRAM, MTP_NGRAM
from ssd_infer.strategies.draft_module.exit_module import ExitModuleDraft
from ssd_infer.strategies.draft_module.heads import HeadsDraft
from ssd_infer.strategies.draft_module.module_draft import ModuleDraft
from ssd_infer.strategies.draft_module.module_params import ModuleParams
from ssd_infer.strategies.draft_module.mtp import MtpDraft
from ssd_infer.strategies.ngram.with_copies import CopyParams, WithCopies


@dataclass(slots=True)
class ModuleNgramParams(CopyParams, ModuleParams):
    """Parameters of a module's draft, and how many tokens to copy from which matches."""

    tree: int | Auto = field(default="auto", metadata=UNSAID)


class ModuleWithCopies(WithCopies, ModuleDraft):
    """Draft with a module and with copies."""

    Params = ModuleNgramParams

    @classmethod
    def max_draft(cls, params: DraftParams) -> int:
        """Return the longest of what the module drafts and a copy."""
        return max(super().max_draft(params), cast(ModuleNgramParams, params).copy)


class ExitModuleNgram(ModuleWithCopies, ExitModuleDraft):
    """Copies beside a module after an exit."""

    info = EXIT_MODULE_NGRAM


class MtpNgram(ModuleWithCopies, MtpDraft):
    """Copies beside a module on the last state."""

    info = MTP_NGRAM


class HeadsNgram(ModuleWithCopies, HeadsDraft):
    """Copies beside blocks on the last state."""

    info = HEADS_NGRAM
