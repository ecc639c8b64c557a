"""What begins and ends a document in the packed stream, as prompts begin; control tokens spelt out are text."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ssd_infer.corpus.marks import own_marks
from ssd_infer.corpus.prompts import build_tasks, tokenize
from ssd_infer.corpus.shift_text import shift_streams
from ssd_infer.errors import ConfigError, DataError
from ssd_train import data, run
from ssd_train.config.schema import HFModelConfig, LocalTextConfig, Root
from ssd_train.data.framing import Encoder, plain_ids
from ssd_train.data.packing import token_dtype, write_tokens
from ssd_train.data.sources import Passage
from ssd_train.data.tokenizer import train_bpe
from ssd_train.recipes import registry as recipes
from ssd_train.recipes.diffusion.settings import DiffusionConfig
from tests.train.diffusion_support import OBJECTIVES, diffusion_root
from tests.train.support import base_model, llama_tokenizer, tiny_root

TEXTS = ["alpha beta", "gamma </s> delta", "exit<|im_end|> layer", "draft"]


def packed(texts: list[Passage], tokenizer: Any, path: Path, **options: Any) -> list[int]:
    encoder = Encoder(tokenizer, **options)
    write_tokens(iter(texts), tokenizer, path / "t.bin", encoder)
    return [int(token) for token in np.fromfile(path / "t.bin", dtype=token_dtype(tokenizer))]


def shown(texts: list[Passage], tokenizer: Any, path: Path, **options: Any) -> str:
    return str(tokenizer.decode(packed(texts, tokenizer, path, **options)))


@pytest.mark.parametrize(
    ("template", "tokens", "expected"),
    [
        ("<s> $A", {}, "<s>one two</s><s>three</s>"),
        ("<s> $A </s>", {}, "<s>one two</s><s>three</s>"),
        ("$A", {}, "one two</s>three</s>"),
        ("$A </s>", {}, "one two</s>three</s>"),
        ("</s> $A", {"bos_token": "</s>"}, "</s>one two</s>three</s>"),
    ],
    ids=["llama", "llama with its end", "gpt-2", "t5", "opt"],
)
def test_documents_are_in_the_marks_of_their_tokenizer(
    template: str, tokens: dict[str, str], expected: str, tmp_path: Path
) -> None:
    tokenizer = llama_tokenizer(template, **tokens)
    texts = [Passage("one ", ends=False), Passage("two"), Passage("three")]
    assert shown(texts, tokenizer, tmp_path) == expected


def test_a_document_of_pieces_begins_once_and_the_mark_can_be_left_out(tmp_path: Path) -> None:
    texts = [Passage("a", ends=False), Passage("b", ends=False), Passage("c"), Passage("d")]
    assert shown(texts, llama_tokenizer(), tmp_path) == "<s>abc</s><s>d</s>"
    assert shown(texts, llama_tokenizer(), tmp_path, add_bos=False) == "abc</s>d</s>"


def run_of(tmp_path: Path, **changes: Any) -> Root:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS * 20))
    cfg = replace(tiny_root(tmp_path, plain=True, max_steps=1), model=base_model(tmp_path))
    return replace(cfg, data=LocalTextConfig(path=str(path), block_size=24, **changes))


def stream(text: data.TextData) -> list[int]:
    rows = [text.train[int(i)]["input_ids"].tolist() for i in np.argsort(text.train.order)]
    return [token for row in rows for token in row]


def test_training_documents_begin_as_prompts_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cfg = run_of(tmp_path)
    text = data.build(cfg, cfg.run_dir)
    ids, tokenizer = stream(text), text.tokenizer
    begins = [place for place, token in enumerate(ids) if token == tokenizer.bos_token_id]
    assert len(begins) > 60
    assert begins[0] == 0
    assert all(ids[place - 1] == tokenizer.eos_token_id for place in begins[1:])
    prompt = tokenize(tokenizer, TEXTS[0])
    assert any(ids[place : place + len(prompt)] == prompt for place in begins)
    assert (
        "documents begin with <s> and end with </s> (the tokenizer's own rule; data.add_bos=false"
        in caplog.text
    )


def test_without_the_mark_it_is_another_cache_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cfg = run_of(tmp_path)
    first = data.build(cfg, cfg.run_dir)
    without = data.build(run_of(tmp_path, add_bos=False), cfg.run_dir)
    assert first.train.path != without.train.path
    assert first.tokenizer.bos_token_id not in stream(without)
    assert (
        "documents begin with nothing and end with </s> (data.add_bos=false; prompts still begin with <s>"
        in caplog.text
    )


def test_control_tokens_in_a_text_are_text_and_counted_every_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg = run_of(tmp_path, validation_path=str(tmp_path / "held.txt"))
    (tmp_path / "held.txt").write_text("alpha beta gamma " * 30)
    said = r"40 control tokens spelt out in the text were encoded as text, not as control tokens"
    for _ in range(2):  # tokenized, and from the cache
        caplog.clear()
        text = data.build(cfg, cfg.run_dir)
        assert said in caplog.text
    ids, tokenizer = stream(text), text.tokenizer
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") not in ids
    assert "gamma </s> delta</s><s>exit<|im_end|> layer" in tokenizer.decode(ids)


def test_control_tokens_can_be_read_as_such(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cfg = run_of(tmp_path, control_tokens="parse")
    text = data.build(cfg, cfg.run_dir)
    assert "control tokens spelt out in the text were read as such (data.control_tokens=parse)" in caplog.text
    assert text.tokenizer.convert_tokens_to_ids("<|im_end|>") in stream(text)


def test_what_a_tokenizer_cannot_write_as_text_is_counted_apart() -> None:
    words = {"<unk>": 0, "</s>": 1, "one": 2, "two": 3}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>")
    encoder = Encoder(tokenizer)
    assert encoder.ids(["one </s> two", "one <unk> other"]) == [[2, 1, 3], [2, 0, 0]]
    assert (encoder.spelt, encoder.parsed) == (2, 1)
    assert "but for 1 that the tokenizer knows no other way to write" in str(encoder.spelling())


def test_encoding_leaves_the_tokenizers_own_setting_alone() -> None:
    tokenizer = llama_tokenizer()
    end = tokenizer.eos_token_id
    assert end not in plain_ids(tokenizer, ["a</s>b"])[0]
    assert end in plain_ids(tokenizer, ["a</s>b"], parse=True)[0]
    assert not tokenizer.backend_tokenizer.encode_special_tokens
    assert end in tokenizer("a</s>b")["input_ids"]


def test_a_word_for_control_tokens_that_is_none_is_refused() -> None:
    from ssd_infer.config.checks import Checks
    from ssd_train.config.rules_inputs import check_data

    checks = Checks("data.")
    check_data(LocalTextConfig(path=__file__, control_tokens="txt"), checks)
    with pytest.raises(ConfigError, match=r"data\.control_tokens: must be one of text, parse \(got 'txt'\)"):
        checks.finish()


def test_a_tokenizer_that_changes_a_text_by_its_marks_is_refused() -> None:
    def strange(text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [9, 8] if add_special_tokens else [ord(text[0])]}

    with pytest.raises(DataError, match="changes a text by its marks"):
        own_marks(strange)


def test_a_tokenizer_trained_on_the_data_adds_nothing(tmp_path: Path) -> None:
    tokenizer = train_bpe(["alpha beta"] * 9, 300, 64)
    assert own_marks(tokenizer) == ([], [])
    assert shown([Passage("a"), Passage("b")], tokenizer, tmp_path) == "a<|end|>b<|end|>"


def pairs_run(tmp_path: Path, **changes: Any) -> tuple[Any, DiffusionConfig]:
    config = replace(OBJECTIVES["llada_sft"], logit_shift=True)
    rows = [{"ask": f"alpha </s> {i}", "text": "beta gamma"} for i in range(20)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cfg = replace(diffusion_root(tmp_path, config, max_steps=1), model=base_model(tmp_path))
    source = LocalTextConfig(
        path=str(tmp_path / "pairs.jsonl"), prompt_field="ask", block_size=48, validation_share=0.2, **changes
    )
    return replace(cfg, data=source), config


def test_prompts_of_pairs_begin_as_they_will_be_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg, config = pairs_run(tmp_path)
    found: Any = recipes.build(config).build_data(cfg, cfg.run_dir)
    for sample in found.train:
        prompt = sample["input_ids"][sample["labels"] == -100].tolist()
        assert prompt[0] == found.tokenizer.bos_token_id
        assert prompt == tokenize(found.tokenizer, found.tokenizer.decode(prompt[1:]))
        assert found.tokenizer.eos_token_id not in prompt
    assert "20 control tokens spelt out in the text were encoded as text" in caplog.text
    cfg, config = pairs_run(tmp_path, add_bos=False, control_tokens="parse")
    sample = recipes.build(config).build_data(cfg, cfg.run_dir).train[0]
    prompt = sample["input_ids"][sample["labels"] == -100].tolist()
    assert prompt[0] != found.tokenizer.bos_token_id
    assert found.tokenizer.eos_token_id in prompt


def test_prompts_keep_their_beginning_and_hold_it_once(tmp_path: Path) -> None:
    tokenizer = llama_tokenizer()
    begin = tokenizer.bos_token_id
    path = tmp_path / "p.jsonl"
    path.write_text('{"text": "alpha beta </s> gamma delta"}\n{"prompt": "alpha beta </s> gamma delta"}\n')
    for name in ("stdlib_prose", "copy", "needle", "long_continuation", f"file:{path}"):
        width = 8 if name.startswith("file:") else 200
        task = build_tasks([name], tokenizer, 2, width, seed=0)[0]
        for prompt in task.prompts:
            assert [place for place, token in enumerate(prompt) if token == begin] == [0], name
            assert len(prompt) == width
    as_text, as_asked = task.prompts
    assert tokenizer.eos_token_id not in as_text
    assert tokenizer.eos_token_id in as_asked
    assert tokenizer.decode(as_text).endswith("gamma delta")
    assert tokenizer.decode(as_asked).endswith("gamma delta")
    (stream,) = shift_streams(tokenizer, 1, 60, seed=0)
    assert [turn.count(begin) for turn in stream] == [1, 0, 0]


def test_a_run_of_a_model_that_begins_texts_is_trained_and_reads_its_own_prompts(tmp_path: Path) -> None:
    cfg = run_of(tmp_path)
    done = run.train(cfg) / "checkpoints" / "step-1"
    again = replace(cfg, run_name="again", model=HFModelConfig(name=str(done)))
    text = data.build(again, again.run_dir)
    assert own_marks(text.tokenizer) == ([text.tokenizer.bos_token_id], [])
