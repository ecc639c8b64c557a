"""The speech model: padding changes nothing, caches change nothing, and a saved one loads elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoder

from ssd_infer.models import asr_positions
from ssd_infer.models.asr_conformer import Convolution, aligned
from ssd_infer.models.asr_positions import positions_of_tokens
from ssd_infer.models.asr_processor import ASRFeatureExtractor, CTCASRProcessor, character_tokenizer
from ssd_infer.models.ctc_asr import CTCASRConfig, CTCASRModel, encoder_lengths
from tests.models.support import FORMS, features, tiny_asr

LENGTHS = (61, 40, 7, 1)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_alone_and_in_a_padded_batch_is_the_same(form: str) -> None:
    model, (padded, lengths) = tiny_asr(form), features(*LENGTHS)
    tokens = torch.randint(3, 31, (len(LENGTHS), 5), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        together = model.encode(padded, lengths)
        logits = model.decoder(tokens, together)
        for row, length in enumerate(LENGTHS):
            alone = model.encode(padded[row : row + 1, :length])
            end = int(alone.lengths)
            assert int(together.lengths[row]) == end == alone.hidden.shape[1]
            torch.testing.assert_close(together.hidden[row, :end], alone.hidden[0], atol=1e-5, rtol=0)
            torch.testing.assert_close(together.ctc_logits[row, :end], alone.ctc_logits[0], atol=1e-5, rtol=0)
            single = model.decoder(tokens[row : row + 1], alone)
            torch.testing.assert_close(logits[row], single[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 29, 30, 31])
def test_what_stands_in_the_padding_is_never_read(count: int) -> None:
    """The last frame of an odd count is read together with what follows it."""
    model, (padded, lengths) = tiny_asr(), features(61, count)
    dirty = padded.clone()
    dirty[1, count:] = 100.0
    with torch.no_grad():
        clean, other = model.encode(padded, lengths), model.encode(dirty, lengths)
    end = int(clean.lengths[1])
    torch.testing.assert_close(clean.hidden[1, :end], other.hidden[1, :end], atol=1e-5, rtol=0)


@pytest.mark.parametrize("form", FORMS)
def test_a_model_that_decoded_in_this_process_can_still_be_trained(form: str) -> None:
    model, (padded, lengths) = tiny_asr(form).train(), features(61, 30)
    tokens = torch.randint(3, 31, (2, 5), generator=torch.Generator().manual_seed(0))
    asr_positions._table.cache_clear()
    asr_positions._relative_table.cache_clear()
    with torch.inference_mode():
        model.decoder(tokens, model.encode(padded, lengths))
    model.decoder(tokens, model.encode(padded, lengths)).sum().backward()


def test_no_norm_looks_at_batch_mates() -> None:
    model = tiny_asr()
    norms = [
        module for module in model.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
    ]
    assert not norms
    assert sum(isinstance(module, Convolution) for module in model.modules()) == 2
    padded, lengths = features(61, 30)
    with torch.no_grad():
        evaluated = model.encode(padded, lengths).hidden
        trained = model.train().encode(padded, lengths).hidden
    torch.testing.assert_close(trained, evaluated)


class _FrameNorm(torch.nn.LayerNorm):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden.transpose(1, 2)).transpose(1, 2)


def test_the_encoder_computes_what_transformers_own_classes_do() -> None:
    model, (padded, lengths) = tiny_asr(), features(61, 40, 7)
    config = model.config.encoder_config()
    oracle = ParakeetEncoder(config).eval()
    for block in oracle.layers:
        block.conv.norm = _FrameNorm(config.hidden_size)
    oracle.load_state_dict(model.encoder.state_dict())
    mask = torch.arange(padded.shape[1]) < lengths[:, None]
    with torch.no_grad():
        own, theirs = (
            model.encoder(padded, lengths),
            oracle(padded, attention_mask=mask).last_hidden_state,
        )
        whole, whole_theirs = model.encoder(padded[:1]), oracle(padded[:1]).last_hidden_state
    for row, end in enumerate(encoder_lengths(config, lengths).tolist()):
        torch.testing.assert_close(own[row, :end], theirs[row, :end], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(whole, whole_theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_relative_scores_are_aligned_to_keys(length: int) -> None:
    positions = torch.arange(length - 1, -length, -1)
    scores = positions.expand(2, length, -1).contiguous()
    steps = torch.arange(length)
    assert torch.equal(aligned(scores), (steps[:, None] - steps).expand(2, -1, -1))


@pytest.mark.parametrize("form", FORMS)
def test_steps_with_ragged_prefixes_score_like_whole_transcripts(form: str) -> None:
    model = tiny_asr(form)
    encoded = model.encode(*features(61, 40, 25))
    tokens = torch.randint(3, 31, (3, 7), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = model.decoder.bos
    with torch.no_grad():
        whole = model.decoder(tokens, encoded)
        whole[..., model.decoder.forbidden] = -torch.inf
        state = model.decoder.start(encoded)
        first = model.decoder.step(state, tokens[:, :3], [3, 1, 2])
        for row, count in enumerate((3, 1, 2)):
            torch.testing.assert_close(first[row, :count], whole[row, :count], atol=1e-5, rtol=1e-5)
        second = model.decoder.step(state, torch.stack([tokens[0, 3:5], tokens[1, 1:3], tokens[2, 2:4]]))
        for row, start in enumerate((3, 1, 2)):
            torch.testing.assert_close(second[row], whole[row, start : start + 2], atol=1e-5, rtol=1e-5)
        assert state.lengths == [5, 3, 4]
        state.crop([4, 2, 1])
        state.select([2, 0])
        third = model.decoder.step(state, torch.stack([tokens[2, 1:3], tokens[0, 4:6]]))
        torch.testing.assert_close(third[0], whole[2, 1:3], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(third[1], whole[0, 4:6], atol=1e-5, rtol=1e-5)
        assert state.lengths == [3, 6]


@pytest.mark.parametrize("form", FORMS)
def test_a_state_refuses_counts_and_lengths_it_cannot_have(form: str) -> None:
    model = tiny_asr(form)
    with torch.no_grad():
        state = model.decoder.start(model.encode(*features(30, 20)))
        model.decoder.step(state, torch.ones(2, 3, dtype=torch.long))
        with pytest.raises(ValueError, match="counts"):
            model.decoder.step(state, torch.ones(2, 1, dtype=torch.long), [1, 2])
        with pytest.raises(ValueError, match="lengths"):
            state.crop([4, 0])


def test_the_decoder_never_emits_blank_or_bos() -> None:
    model = tiny_asr()
    with torch.no_grad():
        state = model.decoder.start(model.encode(*features(30)))
        logits = model.decoder.step(state, torch.tensor([[1, 4]]))
    assert torch.isinf(logits[..., [0, 1]]).all()
    assert torch.isfinite(logits[..., 2:]).all()


def test_positions_follow_the_collapsed_path() -> None:
    path = torch.tensor([[0, 5, 5, 0, 5, 7, 0, 0]])
    logits = torch.nn.functional.one_hot(path, 8).float()
    assert positions_of_tokens(logits, 0).tolist() == [[0, 0, 0, 1, 1, 2, 3, 3]]


def test_lengths_are_those_of_the_subsampling_itself() -> None:
    model = tiny_asr()
    for frames in (*range(1, 20), 61):
        encoded = model.encode(features(frames)[0])
        assert encoder_lengths(model.encoder.config, frames) == encoded.hidden.shape[1]


def test_middle_layers_learn_from_their_own_head() -> None:
    model = tiny_asr()
    encoded = model.encode(*features(40))
    encoded.inter_ctc_logits[1].square().sum().backward()
    first, last = (model.encoder.layers[index].feed_forward2.linear1.weight.grad for index in (0, 1))
    assert first is not None
    assert first.abs().sum() > 0
    assert last is None


def test_detaching_keeps_the_decoder_out_of_the_encoder() -> None:
    model, (padded, lengths) = tiny_asr().train(), features(40)
    tokens = torch.tensor([[1, 4, 5]])
    out = model(padded, lengths, tokens, detach_encoder=True)
    out.logits.square().sum().backward()
    assert all(parameter.grad is None for parameter in model.ctc_parameters())
    model(padded, lengths, tokens).logits.square().sum().backward()
    assert any(parameter.grad is not None for parameter in model.ctc_parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_type": "rnn"}, "decoder_type"),
        ({"decoder_type": "causal_lm"}, "language_model"),
        ({"eos_token_id": 99}, "eos_token_id"),
        ({"inter_ctc_layers": [4]}, "inter_ctc_layers"),
    ],
)
def test_impossible_shapes_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CTCASRConfig(**changes)  # type: ignore[arg-type]


def test_adapters_are_saved_and_loaded(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    lora = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]}
    model = tiny_asr("causal_lm", lora=lora)
    adapters = [name for name, _ in model.named_parameters() if "lora_" in name]
    assert len(adapters) == 8
    model.save_pretrained(tmp_path)
    again = CTCASRModel.from_pretrained(tmp_path).eval()
    padded, lengths = features(40)
    tokens = torch.tensor([[1, 4, 5]])
    with torch.no_grad():
        torch.testing.assert_close(
            again(padded, lengths, tokens).logits, model(padded, lengths, tokens).logits
        )


LOAD = """
import sys, torch
import ssd_infer.models.ctc_asr
from transformers import AutoModel, AutoModelForSpeechSeq2Seq, AutoProcessor
folder = sys.argv[1]
saved = torch.load(folder + "/probe.pt")
processor = AutoProcessor.from_pretrained(folder)
for auto in (AutoModel, AutoModelForSpeechSeq2Seq):
    model = auto.from_pretrained(folder).eval()
    data = processor(audio=saved["wave"].numpy(), text="it's ten", sampling_rate=16000)
    with torch.no_grad():
        encoded = model.encode(data["input_features"], data["feature_lengths"])
        state = model.decoder.start(encoded)
        logits = model.decoder.step(state, torch.tensor([[1, 5, 6]]))
    assert torch.equal(encoded.hidden, saved["hidden"])
    assert torch.equal(logits, saved["logits"])
    assert processor.decode(data["labels"]) == "it's ten"
"""


@pytest.mark.integration
@pytest.mark.parametrize("form", FORMS)
def test_a_fresh_process_loads_model_and_processor(form: str, tmp_path: Path) -> None:
    model = tiny_asr(form)
    processor = CTCASRProcessor(ASRFeatureExtractor(40), character_tokenizer())
    wave = torch.randn(8000, generator=torch.Generator().manual_seed(0)) * 0.1
    data = processor(audio=wave.numpy(), sampling_rate=16000)
    with torch.no_grad():
        encoded = model.encode(data["input_features"], data["feature_lengths"])
        logits = model.decoder.step(model.decoder.start(encoded), torch.tensor([[1, 5, 6]]))
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    torch.save({"wave": wave, "hidden": encoded.hidden, "logits": logits}, tmp_path / "probe.pt")
    done = subprocess.run([sys.executable, "-c", LOAD, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
