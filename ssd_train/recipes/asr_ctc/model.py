"""Build the speech model a run trains, and the processor that belongs to it."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from ssd_infer.errors import CheckpointError
from ssd_infer.models.asr_lm_decoder import CausalLMDecoder
from ssd_infer.models.asr_processor import ASRFeatureExtractor, CTCASRProcessor, character_tokenizer
from ssd_infer.models.ctc_asr import CTCASRConfig, CTCASRModel
from ssd_train.config.schema import HFModelConfig
from ssd_train.config.schema_speech import SpeechModelConfig
from ssd_train.models import build as models


def build_processor(cfg: SpeechModelConfig, sampling_rate: int) -> CTCASRProcessor:
    """Return features for `sampling_rate` and the vocabulary: characters, or the tokenizer of a pretrained LM."""
    extractor = ASRFeatureExtractor(cfg.mel_bins, sampling_rate)
    if cfg.decoder != "hf":
        return CTCASRProcessor(extractor, character_tokenizer())
    tokenizer = AutoTokenizer.from_pretrained(str(cfg.decoder_name))
    if tokenizer.eos_token_id is None:
        raise CheckpointError(
            f"model.decoder_name: the tokenizer has no end-of-sequence token (got {cfg.decoder_name!r}); "
            "choose another language model"
        )
    return CTCASRProcessor(extractor, tokenizer)


def speech_config(cfg: SpeechModelConfig, processor: CTCASRProcessor) -> CTCASRConfig:
    """Return the configuration of the model `cfg` describes."""
    dropouts = dict.fromkeys(("dropout", "activation_dropout", "attention_dropout"), cfg.dropout)
    return CTCASRConfig(
        encoder={
            "hidden_size": cfg.encoder_size,
            "num_hidden_layers": cfg.encoder_layers,
            "num_attention_heads": cfg.encoder_heads,
            "intermediate_size": cfg.encoder_ffn,
            "num_mel_bins": cfg.mel_bins,
            "subsampling_factor": cfg.subsampling,
            "subsampling_conv_channels": cfg.conv_channels,
            "conv_kernel_size": cfg.conv_kernel,
            "initializer_range": cfg.init_std,
            **dropouts,
        },
        inter_ctc_layers=cfg.inter_ctc,
        self_condition=cfg.self_condition,
        decoder_layers=cfg.decoder_layers,
        decoder_heads=cfg.decoder_heads,
        decoder_hidden_size=cfg.decoder_size,
        decoder_ffn_size=cfg.decoder_ffn,
        decoder_dropout=cfg.dropout,
        condition_decoder=cfg.condition_decoder,
        initializer_range=cfg.init_std,
        projector_stride=cfg.projector_stride,
        projector_hidden_size=cfg.projector_size,
        **_vocabulary(cfg, processor.tokenizer),
    )


def _vocabulary(cfg: SpeechModelConfig, tokenizer: Any) -> dict[str, Any]:
    """Return vocabulary, special tokens and, for an LM decoder, the LM's configuration.

    A pretrained LM's ids are the CTC head's ids, and the blank is one id beyond them: a draft never needs re-encoding.
    """
    if cfg.decoder != "hf":
        special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
        blank = tokenizer.pad_token_id
        common = {"vocab_size": len(tokenizer), "blank_token_id": blank, "pad_token_id": blank, **special}
        if cfg.decoder == "cross_attention":
            return common
        return {**common, "decoder_type": "causal_lm", "language_model": _small_llama(cfg, common)}
    config = AutoConfig.from_pretrained(str(cfg.decoder_name))
    rows, eos = int(config.vocab_size), tokenizer.eos_token_id
    bos = tokenizer.bos_token_id
    lora = {"r": cfg.lora_rank, "lora_alpha": cfg.lora_alpha, "target_modules": "all-linear"}
    return {
        "vocab_size": rows + 1,
        "blank_token_id": rows,
        "bos_token_id": eos if bos is None else bos,
        "eos_token_id": eos,
        "pad_token_id": rows,
        "decoder_type": "causal_lm",
        "language_model": config.to_dict(),
        "lora": lora if cfg.lora_rank > 0 else None,
    }


def _small_llama(cfg: SpeechModelConfig, common: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": common["vocab_size"],
        "hidden_size": cfg.decoder_size,
        "intermediate_size": cfg.decoder_ffn,
        "num_hidden_layers": cfg.decoder_layers,
        "num_attention_heads": cfg.decoder_heads,
        "num_key_value_heads": cfg.decoder_heads,
        "attention_dropout": cfg.dropout,
        "initializer_range": cfg.init_std,
        **{key: common[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    }


def build_speech_model(
    cfg: SpeechModelConfig, processor: CTCASRProcessor, *, seed: int, max_seconds: float = 20.0
) -> CTCASRModel:
    """Return the model with random weights from `seed`; a pretrained LM brings its own and stays frozen.

    `max_seconds` is the longest utterance of the training data, which decoding takes for the longest it may trust.
    """
    config = speech_config(cfg, processor)
    config.max_audio_seconds = max_seconds
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CTCASRModel(config)
    if cfg.decoder == "hf":
        _load_language_model(model, cfg)
    return model


def _load_language_model(model: CTCASRModel, cfg: SpeechModelConfig) -> None:
    """Copy the pretrained weights into the decoder and freeze all but the adapters."""
    assert isinstance(model.decoder, CausalLMDecoder)
    pretrained = models.pretrained(HFModelConfig(name=str(cfg.decoder_name)))
    weights = pretrained.state_dict()
    own = model.decoder.lm.state_dict()
    renamed = {name: name.replace(".base_layer.", ".") for name in own if "lora_" not in name}
    missing = [name for name in renamed.values() if name not in weights]
    if missing:
        raise CheckpointError(
            f"model.decoder_name: weights are missing ({', '.join(missing[:3])}); use another model"
        )
    model.decoder.lm.load_state_dict({name: weights[plain] for name, plain in renamed.items()}, strict=False)
    for name, parameter in model.decoder.lm.named_parameters():
        parameter.requires_grad_("lora_" in name)
