"""Configuration of the speech model: an encoder with a CTC head, and a decoder that verifies what the head drafts."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PretrainedConfig
from transformers.models.parakeet.configuration_parakeet import ParakeetEncoderConfig

DECODERS = ("cross_attention", "causal_lm")
"""Forms of the decoder: a small one that attends to the encoder, or a projector in front of a causal LM."""

_ENCODER_DEFAULTS: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "num_mel_bins": 80,
    "subsampling_factor": 4,
    "subsampling_conv_channels": 64,
    "layerdrop": 0.0,
    "scale_input": False,
    "initializer_range": 0.05,
}


class CTCASRConfig(PretrainedConfig):
    """Shape of a `CTCASRModel`.

    `encoder` holds fields of transformers' `ParakeetEncoderConfig`; `inter_ctc_layers` are layer counts: l means after
    the first l layers, and null means half the depth. `language_model` (with `decoder_type="causal_lm"`) is the
    configuration of a transformers causal LM, `lora` the rank, alpha and target modules of its adapters;
    `max_audio_seconds` is the longest utterance it was trained on.
    """

    model_type = "ssd_ctc_asr"

    def __init__(
        self,
        vocab_size: int = 31,
        blank_token_id: int = 0,
        bos_token_id: int | None = 1,
        eos_token_id: int | None = 2,
        pad_token_id: int | None = 0,
        encoder: dict[str, Any] | None = None,
        inter_ctc_layers: list[int] | None = None,
        self_condition: bool = True,
        decoder_type: str = "cross_attention",
        decoder_layers: int = 4,
        decoder_heads: int = 4,
        decoder_hidden_size: int = 128,
        decoder_ffn_size: int = 256,
        decoder_dropout: float = 0.1,
        condition_decoder: bool = True,
        initializer_range: float = 0.05,
        projector_stride: int = 2,
        projector_hidden_size: int = 256,
        language_model: dict[str, Any] | None = None,
        lora: dict[str, Any] | None = None,
        max_audio_seconds: float = 20.0,
        **kwargs: Any,
    ) -> None:
        """Raise ValueError for an unknown decoder, an id outside the vocabulary or a layer outside the encoder."""
        self.vocab_size = vocab_size
        self.blank_token_id = blank_token_id
        self.encoder = {**_ENCODER_DEFAULTS, **(encoder or {})}
        depth = int(self.encoder["num_hidden_layers"])
        self.inter_ctc_layers = [depth // 2] if inter_ctc_layers is None else list(inter_ctc_layers)
        self.self_condition = self_condition
        self.decoder_type = decoder_type
        self.decoder_layers = decoder_layers
        self.decoder_heads = decoder_heads
        self.decoder_hidden_size = decoder_hidden_size
        self.decoder_ffn_size = decoder_ffn_size
        self.decoder_dropout = decoder_dropout
        self.condition_decoder = condition_decoder
        self.initializer_range = initializer_range
        self.projector_stride = projector_stride
        self.projector_hidden_size = projector_hidden_size
        self.language_model = language_model
        self.lora = lora
        self.max_audio_seconds = max_audio_seconds
        self._check(bos_token_id, eos_token_id)
        kwargs.setdefault("tie_word_embeddings", False)
        special: dict[str, Any] = {
            "bos_token_id": bos_token_id,
            "eos_token_id": eos_token_id,
            "pad_token_id": pad_token_id,
        }
        super().__init__(**{**kwargs, **special})

    def _check(self, bos: int | None, eos: int | None) -> None:
        if self.decoder_type not in DECODERS:
            raise ValueError(
                f"decoder_type: must be one of {', '.join(DECODERS)} (got {self.decoder_type!r})"
            )
        for name, value in (("blank", self.blank_token_id), ("bos", bos), ("eos", eos)):
            if value is None or not 0 <= value < self.vocab_size:
                raise ValueError(
                    f"{name}_token_id: must be an id below vocab_size, {self.vocab_size} (got {value})"
                )
        depth = self.encoder["num_hidden_layers"]
        if any(not 1 <= layer < depth for layer in self.inter_ctc_layers):
            raise ValueError(
                f"inter_ctc_layers: must lie between 1 and {depth - 1} (got {self.inter_ctc_layers})"
            )
        if self.decoder_type == "causal_lm" and not self.language_model:
            raise ValueError("language_model: decoder_type=causal_lm needs the configuration of a causal LM")

    def encoder_config(self) -> ParakeetEncoderConfig:
        """Return the encoder's configuration as transformers' class, the attention kernel inherited."""
        config = ParakeetEncoderConfig(**self.encoder)
        config._attn_implementation = getattr(self, "_attn_implementation", None) or "sdpa"
        return config

    def language_model_config(self) -> PretrainedConfig:
        """Return the causal LM's configuration as transformers' class."""
        fields = dict(self.language_model or {})
        config: PretrainedConfig = AutoConfig.for_model(fields.pop("model_type"), **fields)
        return config

    @property
    def encoder_width(self) -> int:
        """Width of the encoder's output."""
        return int(self.encoder["hidden_size"])

    @property
    def hidden_size(self) -> int:
        """The same under the name that DeepSpeed's integration sizes its buffers by."""
        return self.encoder_width

    @property
    def subsampling_factor(self) -> int:
        """Feature frames per encoder frame."""
        return int(self.encoder["subsampling_factor"])


def encoder_lengths(config: ParakeetEncoderConfig, lengths: Any) -> Any:
    """Return encoder frames for `lengths` feature frames (int or integer tensor), by the subsampling's own formula."""
    kernel, stride = config.subsampling_conv_kernel_size, config.subsampling_conv_stride
    for _ in range(int(config.subsampling_factor).bit_length() - 1):
        lengths = (lengths + 2 * ((kernel - 1) // 2) - kernel) // stride + 1
    return lengths
