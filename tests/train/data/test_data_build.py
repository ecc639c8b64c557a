"""From text to blocks: tokenizer, packing, cache, and the errors of text that does not fit."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from ssd_infer.errors import DataError
from ssd_train import data
from ssd_train.config.schema import (
    DataConfig,
    HFModelConfig,
    LocalTextConfig,
    ModelConfig,
    Root,
    ScratchModelConfig,
    StdlibTextConfig,
)
from ssd_train.data.framing import Encoder
from ssd_train.data.packing import token_dtype, write_tokens
from ssd_train.data.sources import Passage, stdlib_source
from ssd_train.data.tokenizer import train_bpe, vocabulary_hash
from ssd_train.recipes.plain.settings import PlainConfig

ROOT = Path(__file__).resolve().parents[3]
WORDS = [
    f"document {i}: the quick brown fox number {i * 7} jumps over {i % 5} lazy dogs.\n" for i in range(200)
]


def root(tmp_path: Path, source: DataConfig, model: ModelConfig | None = None, **values: object) -> Root:
    model = model or ScratchModelConfig(vocab_size=300, max_length=64)
    return Root(
        recipe_name="t",
        output_root=str(tmp_path / "out"),
        model=model,
        data=source,
        recipe=PlainConfig(),
        **values,  # type: ignore[arg-type]
    )


def local(tmp_path: Path, texts: list[str], **values: object) -> LocalTextConfig:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    cfg = LocalTextConfig(path=str(path), block_size=16, tokenizer_vocab=300, validation_share=0.1)
    return dataclasses.replace(cfg, **values)  # type: ignore[arg-type]


def build(cfg: Root) -> data.TextData:
    return data.build(cfg, cfg.run_dir)


def stream(blocks: data.PackedBlocks) -> list[int]:
    """Return all tokens in file order, whatever order the blocks are in."""
    rows = [blocks[int(i)]["input_ids"].tolist() for i in np.argsort(blocks.order)]
    return [token for row in rows for token in row]


def test_blocks_are_documents_joined_by_the_end_token(tmp_path: Path) -> None:
    text = build(root(tmp_path, local(tmp_path, WORDS)))
    tokens = stream(text.train)
    assert all(text.train[i]["input_ids"].shape == (16,) for i in range(len(text.train)))
    assert text.train[0]["input_ids"].dtype == torch.int64
    pieces = text.tokenizer.decode(tokens).split(text.tokenizer.eos_token)
    assert len(pieces) > 150
    assert set(pieces[:-1]) <= set(WORDS)


def test_held_out_documents_are_not_trained_on(tmp_path: Path) -> None:
    text = build(root(tmp_path, local(tmp_path, WORDS)))
    end = text.tokenizer.eos_token
    train, held = (
        set(text.tokenizer.decode(stream(part)).split(end)[:-1]) for part in (text.train, text.validation)
    )
    assert len(held) > 5
    assert not train & held


def test_a_single_document_is_split_at_its_tail(tmp_path: Path) -> None:
    text = build(root(tmp_path, local(tmp_path, ["".join(WORDS)], validation_share=0.1)))
    train, held = set(text.train.order), set(text.validation.order)
    assert text.train.path == text.validation.path
    assert held == set(range(min(held), max(held) + 1))
    assert max(train) < min(held)
    assert len(held) == round(0.1 * (len(train) + len(held)))


def test_order_depends_on_the_seed_and_on_nothing_else(tmp_path: Path) -> None:
    cfg = root(tmp_path, local(tmp_path, WORDS))
    first, again = build(cfg), build(cfg)
    other = build(dataclasses.replace(cfg, seed=1))
    assert first.train.order.tolist() == again.train.order.tolist() != other.train.order.tolist()
    assert stream(first.train) == stream(other.train)


def test_the_second_build_reads_what_the_first_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = root(tmp_path, local(tmp_path, WORDS))
    first = build(cfg)

    def refuse(*args: object) -> None:
        raise AssertionError("tokenized again")

    monkeypatch.setattr(data, "write_tokens", refuse)
    monkeypatch.setattr("ssd_train.data.tokenizer.train_bpe", refuse)
    assert stream(build(cfg).train) == stream(first.train)
    with pytest.raises(AssertionError, match="tokenized again"):
        build(dataclasses.replace(cfg, data=local(tmp_path, [*WORDS, "more"]), run_name="other"))


def test_another_run_of_the_same_text_shares_the_cache(tmp_path: Path) -> None:
    cfg = root(tmp_path, local(tmp_path, WORDS))
    first, twin = build(cfg), build(dataclasses.replace(cfg, run_name="twin"))
    assert first.train.path == twin.train.path
    assert (cfg.run_dir / "tokenizer" / "tokenizer.json").exists()


def with_checkpoint(cfg: Root) -> Root:
    """Make the run of `cfg` one whose weights depend on its tokenizer."""
    (cfg.run_dir / "checkpoints" / "step-2").mkdir(parents=True)
    return cfg


def test_a_run_refuses_a_tokenizer_made_from_other_text_or_of_another_size(tmp_path: Path) -> None:
    cfg = with_checkpoint(root(tmp_path, local(tmp_path, WORDS)))
    build(cfg)
    with pytest.raises(DataError, match=r"data\.tokenizer_vocab: .*got 280, stored 300.*resume=never"):
        build(dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, tokenizer_vocab=280)))
    local(tmp_path, [*WORDS, "another document"])
    with pytest.raises(DataError, match=r"data\.path: .*other text .*resume=never"):
        build(cfg)


def test_a_run_that_never_trained_takes_the_corrected_text(tmp_path: Path) -> None:
    cfg = root(tmp_path, local(tmp_path, []))
    with pytest.raises(DataError, match="holds no text"):
        build(cfg)
    local(tmp_path, WORDS)
    assert len(build(cfg).tokenizer) == 300
    assert len(build(with_checkpoint(cfg)).tokenizer) == 300


def test_a_damaged_tokenizer_of_the_run_is_noticed(tmp_path: Path) -> None:
    cfg = with_checkpoint(root(tmp_path, local(tmp_path, WORDS)))
    text = build(cfg)
    other = train_bpe(["entirely different words"] * 50, 300, 64)
    other.save_pretrained(cfg.run_dir / "tokenizer")
    assert vocabulary_hash(other) != vocabulary_hash(text.tokenizer)
    with pytest.raises(DataError, match=r"the tokenizer was changed .*resume=never"):
        build(cfg)


def test_blocks_survive_pickling_for_loader_processes(tmp_path: Path) -> None:
    text = build(root(tmp_path, local(tmp_path, WORDS)))
    copied = pickle.loads(pickle.dumps(text.train))
    assert len(pickle.dumps(text.train)) < 20_000
    assert torch.equal(copied[3]["input_ids"], text.train[3]["input_ids"])


def test_validation_is_limited_and_spread(tmp_path: Path) -> None:
    text = build(root(tmp_path, local(tmp_path, WORDS, validation_share=0.5, validation_blocks=4)))
    assert len(text.validation) == 4
    assert text.validation.order[0] == 0
    assert np.diff(text.validation.order).min() > 10


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], r"data\.path: holds no text \(got '.*texts\.jsonl'\)"),
        (["", ""], r"data\.path: holds no text"),
        (["a1b2c3d4e5f6g7h8i9"], r"data\.block_size: .*\(got 16 with 19 tokens.*try data\.block_size=2$"),
        (["abc"], r"data\.block_size: .*\(got 16 with 2 tokens in .*\); give more text$"),
    ],
)
def test_too_little_text_is_refused(texts: list[str], said: str, tmp_path: Path) -> None:
    cfg = root(tmp_path, local(tmp_path, texts))
    for _ in range(2):  # the same words again when the cache answers
        with pytest.raises(DataError, match=said):
            build(cfg)


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    cfg = root(tmp_path, local(tmp_path, WORDS))
    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "ids", full)
        with pytest.raises(DataError, match=r"data\.cache_dir: .*No space left on device"):
            build(cfg)
    assert not list((tmp_path / "out").rglob("*.part"))
    assert not list((tmp_path / "out").rglob("*.bin"))
    assert len(build(cfg).train) > 10


def test_a_pretrained_tokenizer_is_used_and_must_fit_the_model(tmp_path: Path) -> None:
    train_bpe(WORDS, 400, 64).save_pretrained(tmp_path / "tok")
    source = local(tmp_path, WORDS)
    fits = ScratchModelConfig(vocab_size=400, tokenizer=str(tmp_path / "tok"))
    assert len(build(root(tmp_path, source, fits)).tokenizer) == 400
    small = dataclasses.replace(fits, vocab_size=300)
    with pytest.raises(
        DataError, match=r"model\.vocab_size: .*400 entries \(got 300\); try model\.vocab_size=400"
    ):
        build(root(tmp_path, source, small))


def test_a_model_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    cfg = root(tmp_path, local(tmp_path, WORDS), HFModelConfig(name=str(tmp_path / "empty")))
    with pytest.raises(DataError, match=r"model\.name: no tokenizer"):
        build(cfg)


def test_the_tokenizer_round_trips_any_text() -> None:
    tokenizer = train_bpe(WORDS, 320, 64)
    for text in (
        "naïve café — 日本語 🎈\n\t  x",
        "def f(x):\n        return x  # ok",
        " leading",
        "\x00\x7f",
    ):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert {tokenizer.eos_token_id, tokenizer.pad_token_id} == {0, 1}


def test_the_tokenizer_is_the_same_in_another_process() -> None:
    code = (
        "from tests.train.data.test_data_build import WORDS\n"
        "from ssd_train.data.tokenizer import train_bpe, vocabulary_hash\n"
        "print(vocabulary_hash(train_bpe(WORDS, 320, 64)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == vocabulary_hash(train_bpe(WORDS, 320, 64))


def test_a_vocabulary_smaller_than_the_bytes_is_refused() -> None:
    with pytest.raises(DataError, match=r"data\.tokenizer_vocab: .*\(got 100\)"):
        train_bpe(WORDS, 100, 64)


def test_pieces_of_one_document_get_one_end_token(tmp_path: Path) -> None:
    tokenizer = train_bpe(WORDS, 300, 64)
    pieces = [Passage("one ", ends=False), Passage("document"), Passage("two")]
    count = write_tokens(iter(pieces), tokenizer, tmp_path / "t.bin")
    ids = np.fromfile(tmp_path / "t.bin", dtype=token_dtype(tokenizer))
    assert len(ids) == count
    assert tokenizer.decode(ids.tolist()) == "one document<|end|>two<|end|>"


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_the_embedded_corpus_keeps_the_share_of_code(share: float) -> None:
    cfg = StdlibTextConfig(code_share=share, max_mb=0.4)
    texts = [item.text for item in stdlib_source(cfg).train()]
    total = sum(map(len, texts))
    assert 0.39e6 < total <= 0.4e6
    from ssd_infer.corpus.stdlib import documents

    code = [item.text for item in documents("train", "code")]
    measured = sum(len(text) for text in texts if any(item.startswith(text[:2000]) for item in code))
    assert measured / total == pytest.approx(share, abs=0.02)


def test_the_embedded_corpus_trains_on_no_held_out_document() -> None:
    from ssd_infer.corpus.stdlib import documents

    held = {item.text for kind in ("prose", "code") for item in documents("test", kind)}
    held |= {item.text for kind in ("prose", "code") for item in documents("validation", kind)}
    assert not held & {item.text for item in stdlib_source(StdlibTextConfig()).train()}


def test_the_embedded_corpus_builds_without_a_network(tmp_path: Path) -> None:
    cfg = root(
        tmp_path, StdlibTextConfig(max_mb=1.0, tokenizer_vocab=1024, block_size=128), ScratchModelConfig()
    )
    text = build(cfg)
    assert len(text.tokenizer) == 1024
    assert len(text.train) > 1000
    assert len(text.validation) > 50


def test_a_truncating_tokenizer_file_cuts_nothing(tmp_path: Path) -> None:
    tokenizer = train_bpe(WORDS, 300, 64)
    before = vocabulary_hash(tokenizer)
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=50)
    assert vocabulary_hash(tokenizer) == before
    write_tokens(iter([Passage(WORDS[0])]), tokenizer, tmp_path / "t.bin")
    ids = np.fromfile(tmp_path / "t.bin", dtype=token_dtype(tokenizer))
    assert tokenizer.decode(ids.tolist()) == WORDS[0] + "<|end|>"


def test_a_damaged_cache_is_written_again(tmp_path: Path) -> None:
    cfg = root(tmp_path, local(tmp_path, WORDS))
    first = build(cfg)
    expected = stream(first.train)
    first.train.path.write_bytes(b"cut short")
    (first.train.path.parent / "train.1234.part").write_bytes(b"left over")
    assert stream(build(cfg).train) == expected
    assert not list(first.train.path.parent.glob("*.part"))


def test_callers_at_the_same_time_get_the_same_data(tmp_path: Path) -> None:
    cfg = root(tmp_path, local(tmp_path, WORDS))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: build(cfg), range(4)))
    assert len({str(item.train.path) for item in built}) == 1
    assert all(stream(item.train) == stream(built[0].train) for item in built)


def test_a_tokenizer_that_cannot_be_saved_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", full)
    with pytest.raises(DataError, match=r"output_root: .*No space left"):
        build(root(tmp_path, local(tmp_path, WORDS)))
