"""Text that the target writes itself: what is asked, what is kept across a kill, and what is trained on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ssd_infer.config.checks import Checks
from ssd_infer.corpus.tokens import tokenize
from ssd_infer.errors import DataError
from ssd_train.cli.validate import validate
from ssd_train.config.schema import Root, ScratchModelConfig
from ssd_train.data.contents import contents
from ssd_train.data.own_text import build as own
from ssd_train.data.own_text import prompts
from ssd_train.data.own_text.blocks import Mixture, OwnBlocks
from ssd_train.data.own_text.prompts import Prompts, invitation
from ssd_train.data.own_text.writing import Pieces, Writer
from tests.train.frozen_support import frozen_root, own_text
from tests.train.support import Samples, llama_tokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def made(directory: Path, **changes: Any) -> Root:
    """Return a run on text that a tiny model writes about nine prompts of a file."""
    return own_text(frozen_root(directory), directory, **changes)


def pieces(cfg: Root) -> list[Path]:
    return sorted((Path(cfg.output_root) / ".cache").glob("self_generated-*/piece-*.jsonl"))


def test_own_text_is_what_the_model_would_have_written_and_is_labelled_alone(tmp_path: Path) -> None:
    cfg = made(tmp_path, own_share=1.0)
    data = own.build_own_text(cfg, cfg.run_dir)
    rows = [json.loads(line) for line in pieces(cfg)[1].read_text().splitlines()]  # the greedy one
    model = own._model(cfg)
    for row in rows:
        ids = torch.tensor([row["prompt"]])
        out = model.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :].tolist()
        assert row["text"] == out
    assert sum(len(json.loads(line)["text"]) for path in pieces(cfg) for line in path.open()) >= 600
    for index in range(len(data.own)):
        sample = data.own[index]
        documents = data.own.blocks[index]
        assert sum(len(p) + len(t) for p, t in documents) <= 24
        labelled = sample["labels"] != -100
        assert torch.equal(sample["labels"][labelled], sample["input_ids"][labelled])
        assert sample["input_ids"][labelled].tolist() == [token for _, text in documents for token in text]


def prompts_of(cfg: Root) -> tuple[Prompts, str]:
    """Return the prompts of a run, and what the first kind of them is called."""
    return Prompts(cfg.data, llama_tokenizer(), 0), cfg.data.prompts[0]  # type: ignore[arg-type,attr-defined]


def test_sampled_and_greedy_batches_take_turns_and_a_file_is_asked_greedily_once(tmp_path: Path) -> None:
    cfg = made(tmp_path)
    asking, name = prompts_of(cfg)
    found = [asking.order(name, turn) for turn in range(8)]
    assert [order.greedy for order in found] == [False, True, False, True, False, True, False, False]
    asked = [tuple(map(tuple, order.prompts)) for order in found]
    assert asked[0] == asked[1]
    assert asked[0] != asked[2]
    assert all(len(prompt) <= 8 for order in found for prompt in order.prompts)


def test_the_model_invents_a_question_within_its_own_template(tmp_path: Path) -> None:
    tokenizer = llama_tokenizer()
    assert invitation(tokenizer) == ([tokenizer.bos_token_id], [])
    tokenizer.chat_template = TEMPLATE
    begin, behind = invitation(tokenizer)
    assert tokenizer.decode(begin).endswith("user\n")
    assert tokenizer.decode(behind).replace(" ", "") == "<|im_end|>\n<|im_start|>assistant\n"
    cfg = made(tmp_path, prompts=["invented"], prompt_tokens=60, block_size=90)
    writer = Writer(cfg.data, tokenizer, 0, lambda: own._model(cfg))  # type: ignore[arg-type]
    for prompt, text in writer.piece(0):
        assert prompt[: len(begin)] == begin
        assert prompt[-len(behind) :] == behind
        assert len(prompt) > len(begin) + len(behind)
        assert text
    tokenizer.chat_template = "{{ 'nothing' }}"
    with pytest.raises(DataError, match=r"data\.prompts: the chat template does not hold"):
        invitation(tokenizer)


def test_no_prompt_is_asked_greedily_twice(tmp_path: Path) -> None:
    cfg = made(tmp_path)
    file = tmp_path / "prompts.txt"
    file.write_text(file.read_text() + "\n\nalpha beta gamma 0")
    asking, name = prompts_of(cfg)
    found = [asking.order(name, turn) for turn in range(12)]
    greedy = [tuple(prompt) for order in found if order.greedy for prompt in order.prompts]
    assert len(greedy) == len(set(greedy)) == 9
    assert {tuple(prompt) for prompt in found[6].prompts} <= set(greedy), "all used up, and asked again"


def test_a_file_is_tokenised_once_for_all_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def counting(tokenizer: Any, text: str, **more: Any) -> list[int]:
        seen.append(text)
        return tokenize(tokenizer, text, **more)

    monkeypatch.setattr(prompts, "tokenize", counting)
    cfg = made(tmp_path)
    own.build_own_text(cfg, cfg.run_dir)
    assert len(pieces(cfg)) > 2
    assert len(seen) == 9


@pytest.mark.parametrize("first", ["invented", "stdlib"])
def test_a_template_longer_than_a_prompt_is_refused_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    tokenizer = llama_tokenizer()
    tokenizer.chat_template = TEMPLATE
    taken = sum(map(len, invitation(tokenizer)))
    cfg = made(tmp_path, prompts=[first, "invented"], prompt_tokens=taken, block_size=90)
    tokenizer.save_pretrained(cfg.model.name)  # type: ignore[attr-defined]
    monkeypatch.setattr(own, "_model", lambda _: pytest.fail("a model was loaded"))
    with pytest.raises(DataError, match=rf"^data\.prompt_tokens: .* \(got {taken}\); try a larger number"):
        own.build_own_text(cfg, cfg.run_dir)


@pytest.mark.parametrize("room", [1, 5])
def test_an_invented_question_fits_with_all_of_the_template(tmp_path: Path, room: int) -> None:
    tokenizer = llama_tokenizer()
    tokenizer.chat_template = TEMPLATE
    begin, behind = invitation(tokenizer)
    most = len(begin) + len(behind) + room
    cfg = made(tmp_path, prompts=["invented"], prompt_tokens=most, block_size=90)
    writer = Writer(cfg.data, tokenizer, 0, lambda: own._model(cfg))  # type: ignore[arg-type]
    for prompt, _ in writer.piece(0):
        assert prompt[: len(begin)] == begin
        assert prompt[-len(behind) :] == behind
        assert len(prompt) <= most


def test_prompts_that_are_all_held_out_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = made(tmp_path, own_batch=1)
    (tmp_path / "prompts.txt").write_text("alpha beta gamma")
    monkeypatch.setattr(own, "content_share", lambda _: 0.0)
    with pytest.raises(DataError, match=r"^data\.prompts: .* \(got \['file:.*'\]\); give more prompts"):
        own.build_own_text(cfg, cfg.run_dir)
    few = made(tmp_path, own_batch=1, own_tokens=1)
    (tmp_path / "prompts.txt").write_text("alpha beta gamma")
    with pytest.raises(DataError, match=r"^data\.own_tokens: too little own text"):
        own.build_own_text(replace(few, seed=1), few.run_dir)


def test_text_that_was_cut_off_is_gone_on_with_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    whole = own.build_own_text(made(tmp_path / "one"), tmp_path / "one" / "run")
    cfg = made(tmp_path)
    piece, calls = Writer.piece, []

    def dies_in_the_third(self: Writer, number: int) -> Any:
        calls.append(number)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return piece(self, number)

    monkeypatch.setattr(Writer, "piece", dies_in_the_third)
    with pytest.raises(KeyboardInterrupt):
        own.build_own_text(cfg, cfg.run_dir)
    assert len(pieces(cfg)) == 2
    found = own.build_own_text(cfg, cfg.run_dir)
    assert calls[2:4] == [2, 2]
    assert 0 not in calls[1:]
    assert found.own.blocks == whole.own.blocks
    monkeypatch.setattr(own, "_model", lambda _: pytest.fail("all text is there, and a model was loaded"))
    again = own.build_own_text(cfg, cfg.run_dir)
    assert again.own.blocks == found.own.blocks


def test_what_text_follows_from_names_its_folder(tmp_path: Path) -> None:
    cfg = made(tmp_path)
    tokenizer = llama_tokenizer()
    name = own._name(cfg, tokenizer)
    assert own._name(replace(cfg, run_name="other"), tokenizer) == name
    assert own._name(replace(cfg, data=replace(cfg.data, own_tokens=99)), tokenizer) == name  # type: ignore[call-arg]
    assert own._name(replace(cfg, data=replace(cfg.data, own_length=9)), tokenizer) != name  # type: ignore[call-arg]
    assert own._name(replace(cfg, seed=1), tokenizer) != name
    file = tmp_path / "prompts.txt"
    file.write_text(file.read_text() + "\n\nanother")
    assert own._name(cfg, tokenizer) != name
    file.write_text(file.read_text().removesuffix("\n\nanother"))
    assert own._name(cfg, tokenizer) == name
    weights = Path(cfg.model.name) / "model.safetensors"  # type: ignore[attr-defined]
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert own._name(cfg, tokenizer) != name


def test_a_resumed_run_compares_prompts_and_corpus(tmp_path: Path) -> None:
    cfg = made(tmp_path)
    before = contents(cfg)
    assert {"data.prompts", "data.corpus", "model.name"} <= set(before)
    (tmp_path / "text.txt").write_text("other text " * 900)
    after = contents(cfg)
    assert [key for key in before if before[key] != after[key]] == ["data.corpus"]


def blocks(count: int, mark: int) -> Samples:
    return Samples([{"input_ids": torch.full((4,), mark + index)} for index in range(count)])


@pytest.mark.parametrize(("own_count", "corpus_count", "share"), [(3, 40, 0.5), (30, 5, 0.25), (7, 9, 1.0)])
def test_the_share_of_own_blocks_is_kept_and_no_block_is_left_out(
    own_count: int, corpus_count: int, share: float
) -> None:
    mine = OwnBlocks([([1], [index + 2]) for index in range(own_count)], 2, 0)
    mixed = Mixture(mine, blocks(corpus_count, 1000), share)
    found = [mixed[index] for index in range(len(mixed))]
    from_own = [sample for sample in found if (sample["labels"] == -100).any()]
    assert abs(len(from_own) - share * len(found)) <= 1
    assert {int(sample["input_ids"][1]) for sample in from_own} == set(range(2, own_count + 2))
    if share < 1:
        rest = {int(sample["input_ids"][0]) for sample in found} - {1}
        assert rest == set(range(1000, 1000 + corpus_count))


def test_documents_are_packed_whole_and_closely() -> None:
    documents = [([9] * (1 + n % 3), [n + 10] * (3 + n % 7)) for n in range(60)]
    packed = OwnBlocks(documents, 16, 0)
    assert sorted(one for block in packed.blocks for one in block) == sorted(documents)
    filled = sum(len(p) + len(t) for p, t in documents)
    assert len(packed) <= 1.2 * filled / 16


def problems(cfg: Root) -> dict[str, str]:
    checks = Checks()
    validate(cfg, checks)
    return {problem.key: str(problem) for problem in checks.problems}


def test_rules_name_the_key_and_the_remedy(tmp_path: Path) -> None:
    cfg = made(tmp_path)
    assert problems(cfg) == {}
    wrong = replace(
        cfg.data,
        prompts=["stdlb", "file:/nowhere.txt"],  # type: ignore[call-arg]
        own_share=0.0,
        own_tokens=0,
        prompt_tokens=20,
        corpus="/nowhere",
    )
    found = problems(replace(cfg, data=wrong))
    assert set(found) == {
        "data.prompts.0",
        "data.prompts.1",
        "data.own_share",
        "data.own_tokens",
        "data.prompt_tokens",
        "data.corpus",
    }
    assert "did you mean 'stdlib'?" in found["data.prompts.0"]
    assert "try 8" in found["data.prompt_tokens"]
    scratch = problems(replace(cfg, model=ScratchModelConfig()))
    assert "use model=hf" in scratch["data.kind"]


def test_a_damaged_piece_is_made_again(tmp_path: Path) -> None:
    found = Pieces(tmp_path)
    found.write(0, [([1, 2], [3])])
    assert found.read(0) == [([1, 2], [3])]
    assert found.read(1) is None
    (tmp_path / "piece-00000.jsonl").write_text('{"prompt": [1')
    assert found.read(0) is None


def test_a_corpus_that_cannot_be_read_is_called_what_the_user_called_it(tmp_path: Path) -> None:
    cfg = made(tmp_path, corpus=f"{tmp_path}/*.nothing")
    assert problems(cfg) == {}
    with pytest.raises(DataError, match=r"^data\.corpus: no such file"):
        contents(cfg)


def test_a_place_that_cannot_be_written_is_named_by_its_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"^data\.cache_dir: own text cannot be kept"):
        Pieces(tmp_path / "file").write(0, [([1], [2])])
