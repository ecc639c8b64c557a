"""A speech model that drafts with its CTC head and verifies with its decoder; loads through transformers' Auto classes.

`encode` returns hidden states, lengths and CTC logits; `decoder.start` turns them into audio keys and values and an
empty token cache; `decoder.step` appends tokens to it, each row at its own position, and scores what follows them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoModel,
    AutoModelForSpeechSeq2Seq,
    AutoProcessor,
    PreTrainedModel,
)
from transformers.utils.generic import ModelOutput

from ssd_infer.models.asr_decoder import CrossAttentionDecoder
from ssd_infer.models.asr_encoder import ASREncoder, CTCTap, EncoderOutput
from ssd_infer.models.asr_lm_decoder import CausalLMDecoder
from ssd_infer.models.asr_processor import ASRFeatureExtractor, CTCASRProcessor
from ssd_infer.models.ctc_asr_config import CTCASRConfig, encoder_lengths

__all__ = ["CTCASRConfig", "CTCASRModel", "CTCASROutput", "EncoderOutput", "encoder_lengths"]


@dataclass
class CTCASROutput(ModelOutput):
    """Logits of both heads for one batch."""

    logits: Tensor | None = None
    """`(B, U, V)`: the decoder's, of what follows each input token; None without tokens."""
    ctc_logits: Tensor | None = None
    """`(B, T, V)`."""
    inter_ctc_logits: tuple[Tensor, ...] | None = None
    """`(B, T, V)` for each intermediate layer, ascending."""
    encoder_lengths: Tensor | None = None
    """int64 `(B,)`."""


class CTCASRModel(PreTrainedModel):
    """Fast-Conformer encoder, CTC head with self-conditioned intermediate CTC (arXiv 2104.02724), and a decoder."""

    config: CTCASRConfig
    config_class = CTCASRConfig
    base_model_prefix = "model"
    main_input_name = "input_features"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["TappedBlock", "DecoderLayer"]  # noqa: RUF012 - transformers declares it a plain list

    def __init__(self, config: CTCASRConfig) -> None:
        """Build the model with random weights."""
        super().__init__(config)
        self.encoder = ASREncoder(config.encoder_config())
        self.ctc_head = nn.Linear(config.encoder_width, config.vocab_size)
        conditioned = config.self_condition and config.inter_ctc_layers
        self.conditioning = (
            nn.Linear(config.vocab_size, config.encoder_width, bias=False) if conditioned else None
        )
        form = CrossAttentionDecoder if config.decoder_type == "cross_attention" else CausalLMDecoder
        self.decoder: CrossAttentionDecoder | CausalLMDecoder = form(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def encode(self, input_features: Tensor, lengths: Tensor | None = None) -> EncoderOutput:
        """Encode log-mel features `(B, F, mel)`, of which row b's first `lengths[b]` frames are audio.

        `lengths` None means all. Padding has no influence: a row alone and in a batch gives the same frames (to 1e-5 in
        float32).
        """
        batch, frames, _ = input_features.shape
        if lengths is None:
            lengths = torch.full((batch,), frames, dtype=torch.long, device=input_features.device)
        lengths = lengths.to(input_features.device)
        ragged = bool((lengths != frames).any())
        tap = CTCTap(self.ctc_head, self.config.inter_ctc_layers, self.conditioning)
        hidden = self.encoder(input_features.to(self.dtype), lengths if ragged else None, tap=tap)
        return EncoderOutput(
            hidden, encoder_lengths(self.encoder.config, lengths).long(), self.ctc_head(hidden), tap.logits
        )

    def forward(
        self,
        input_features: Tensor,
        feature_lengths: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        detach_encoder: bool = False,
        **_: Any,
    ) -> CTCASROutput:
        """Return the logits of both heads; `detach_encoder` keeps the decoder's gradient out of the encoder."""
        encoded = self.encode(input_features, feature_lengths)
        inter = tuple(encoded.inter_ctc_logits[layer] for layer in sorted(encoded.inter_ctc_logits))
        logits = None
        if decoder_input_ids is not None:
            seen = encoded
            if detach_encoder:
                seen = EncoderOutput(encoded.hidden.detach(), encoded.lengths, encoded.ctc_logits.detach())
            logits = self.decoder(decoder_input_ids, seen)
        return CTCASROutput(logits, encoded.ctc_logits, inter, encoded.lengths)

    def ctc_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of encoder and CTC head, which a two-stage run freezes in its second stage."""
        parts = [self.encoder, self.ctc_head, *([self.conditioning] if self.conditioning is not None else [])]
        return [parameter for part in parts for parameter in part.parameters()]

    def get_input_embeddings(self) -> nn.Module:
        """Return the decoder's token embedding."""
        if isinstance(self.decoder, CrossAttentionDecoder):
            return self.decoder.embed
        embedding: nn.Module = self.decoder.lm.get_input_embeddings()
        return embedding


AutoConfig.register("ssd_ctc_asr", CTCASRConfig, exist_ok=True)
AutoModel.register(CTCASRConfig, CTCASRModel, exist_ok=True)
AutoModelForSpeechSeq2Seq.register(CTCASRConfig, CTCASRModel, exist_ok=True)
AutoFeatureExtractor.register(CTCASRConfig, ASRFeatureExtractor, exist_ok=True)
AutoProcessor.register(CTCASRConfig, CTCASRProcessor, exist_ok=True)
