"""Which tokens a draft looks at, what is known of that, and when a saved order of tokens is not used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import ssd_infer
from ssd_infer.checkpoint.always_ids import always_ids, ending_ids, tokenizer_digest
from ssd_infer.checkpoint.content import loaded_from
from ssd_infer.checkpoint.provenance import weights_sha256
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError
from ssd_infer.offload.files import fingerprint
from ssd_infer.strategies.draft_head import best_by_coverage
from ssd_infer.strategies.head_params import HeadParams
from ssd_infer.strategies.head_report import CAPTION, head_facts, head_tables
from ssd_infer.tuning import head_ground, saved_head
from ssd_infer.tuning.calibration_text import Scores
from ssd_infer.tuning.draft_heads import FULL, HeadOption, head_options, make_head, usual_size
from ssd_infer.tuning.head_study import HeadScores, along_text, head_seconds
from ssd_infer.tuning.text_states import choices, states_of
from tests.conftest import build_model

PROMPTS = [[2, 3, 4, 5], [9, 8, 7], [30, 31, 32, 33, 34], [50]]


@pytest.fixture(scope="module")
def model() -> Any:
    return build_model(vocab_size=97, eos_token_id=5)


@pytest.fixture(scope="module")
def large() -> Any:
    """A model whose vocabulary is large enough for parts of it to compete."""
    return build_model(vocab_size=2100, layers=4, tie_word_embeddings=False)


@torch.inference_mode()
def test_tokens_are_ordered_by_expected_mass_of_the_targets_own_text(model: Any) -> None:
    target = Target.of(model)
    found = head_ground.make_ground(target, head_ground.own_text(target, PROMPTS))
    assert sorted(found.order.tolist()) == list(range(97))
    assert int(found.order[0]) == 5  # the end of text is always there
    mass = torch.zeros(97, dtype=torch.float64)
    for prompt, text in found.texts:
        logits = model(input_ids=torch.tensor([prompt + text])).logits[0, len(prompt) : -1]
        mass += logits.softmax(-1).sum(0)
    by_mass = [token for token in mass.argsort(descending=True).tolist() if token != 5]
    assert found.order[1:20].tolist() == by_mass[:19]
    assert found.positions == sum(len(text) - 1 for _, text in found.texts)
    ascending = found.first(20).tolist()
    assert ascending == sorted(ascending)


def test_small_vocabularies_have_the_full_head_alone(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target.of(model)
    monkeypatch.setattr(head_ground, "own_text", lambda *_: pytest.fail("nothing is decoded for it"))
    assert head_options(target, "auto", "auto") == []
    assert head_options(target, "auto", 12) == []
    assert head_options(target, "full", "auto") == []
    assert best_by_coverage(target, HeadParams(), PROMPTS, False, lambda *_: 1.0) == (FULL, {})


def test_sizes_are_at_most_half_of_the_vocabulary(large: Any) -> None:
    target = Target.of(large)
    found = head_options(target, "auto", "auto")
    assert set(found) == {
        HeadOption("static", 1024),
        HeadOption("context", 1024),
        *(HeadOption("lowrank", size) for size in (256, 1024)),
    }
    assert head_options(target, "static", 300) == [HeadOption("static", 300)]
    assert usual_size(2100) == 525


@torch.inference_mode()
@pytest.mark.parametrize("do_sample", [False, True])
def test_acceptance_is_below_coverage_and_what_decoding_finds(large: Any, do_sample: bool) -> None:
    """α = Σ_S min(p, q) ≤ p(S), and for the model's own states, where q is p within S, it is nearly that."""
    target = Target.of(large)
    sampler = Sampler(SamplingParams(do_sample=do_sample), target.device, seed=0)
    prompt, text = head_ground.own_text(target, PROMPTS)[0]
    (final,) = states_of(target, (prompt, text))
    logits = target.logits(final)
    reference = choices(sampler, logits).unsqueeze(0)
    tokens = prompt + text[:-1]
    for option in (HeadOption("static", 300), HeadOption("context", 300), HeadOption("lowrank", 200)):
        head = make_head(target, option, PROMPTS, target.num_layers)
        found = along_text(head, sampler, final.unsqueeze(0), reference, [tokens], [len(prompt)])
        scores = found.scores
        assert scores.mean == pytest.approx(found.coverage, abs=1e-5)
        for at in range(
            len(text) - 1
        ):  # position by position, from a head that knows no more than it would then
            if option.kind == "lowrank":
                break
            seen = set(make_head(target, HeadOption("static", 300), PROMPTS, 0).ids.tolist())  # type: ignore[attr-defined]
            seen |= set(tokens[: len(prompt) + at + 1]) if option.kind == "context" else set()
            index = torch.tensor(sorted(seen))
            if do_sample:
                p, q = logits[at].softmax(-1)[index], logits[at][index].softmax(-1)
                wanted = float(torch.minimum(p, q).sum())
            else:
                wanted = float(int(logits[at].argmax()) in seen)
            assert float(scores.acceptance[0, at]) == pytest.approx(wanted, abs=1e-5)


def test_heads_are_timed_once_beside_the_full_one(large: Any) -> None:
    target, option = Target.of(large), HeadOption("static", 512)
    first = head_seconds(target, [option], PROMPTS, False)
    assert set(first) == {FULL, option}
    assert head_seconds(target, [option], PROMPTS, False) == first


@pytest.mark.parametrize("name", ["early_exit", "early_exit+ngram", "skip_set"])
def test_an_automatic_head_is_measured_and_exact(large: Any, name: str) -> None:
    given = {"skip_attention": [1], "skip_mlp": [1, 2], "guard": 0.0} if name == "skip_set" else {}
    plain = ssd_infer.generate(large, PROMPTS, max_new_tokens=12)
    for head in ("auto", "static", "context", "lowrank"):
        found = ssd_infer.generate(
            large, PROMPTS, draft=name, draft_params=given | {"head": head}, max_new_tokens=12
        )
        assert found.sequences == plain.sequences
        assert "auto" not in found.draft_params.values()
        if found.draft and head != "auto":
            assert found.draft_params["head"] == head
            assert isinstance(found.draft_params["head_size"], int)


def test_everything_but_the_head_by_hand_measures_nothing(
    large: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_ground, "own_text", lambda *_: pytest.fail("nothing is decoded for it"))
    found = ssd_infer.generate(
        large, PROMPTS, draft="early_exit", draft_params={"exit_layer": 1, "gamma": 2}, max_new_tokens=4
    )
    assert "head" not in found.draft_params


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"head_size": 98}, ["draft_params.head_size", "<= 97", "try 24"]),
        ({"head": "static", "head_size": 0}, ["draft_params.head_size", ">= 1"]),
        ({"head": "tiny"}, ["draft_params.head", "'static'"]),
    ],
)
def test_what_is_wrong_is_said(model: Any, params: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        ssd_infer.generate(
            model,
            PROMPTS,
            draft="early_exit",
            draft_params={"exit_layer": 1, "gamma": 2, **params},
            max_new_tokens=3,
        )
    assert all(word in str(caught.value) for word in words)


def test_a_head_that_is_no_plain_matrix_is_only_used_whole() -> None:
    model = build_model(tie_word_embeddings=False)
    model.get_output_embeddings().register_forward_hook(lambda *_: None)
    given = {"exit_layer": 1, "gamma": 2}
    with pytest.raises(ConfigError, match="must be full with this model: other code runs with its head"):
        ssd_infer.generate(
            model, PROMPTS, draft="early_exit", draft_params=given | {"head": "static"}, max_new_tokens=3
        )
    ssd_infer.generate(model, PROMPTS, draft="early_exit", draft_params=given, max_new_tokens=3)


TOKENIZER = {
    "added_tokens": [
        {"id": 90, "content": "<eos>", "special": True},
        {"id": 91, "content": "<turn>", "special": True},
        *({"id": 100 + at, "content": f"<unused{at}>", "special": True} for at in range(99)),
    ],
    "model": {
        "type": "BPE",
        "vocab": {"a": 1, "7": 2, "Ġ8": 3, "ĠĠĠ": 4, "<0x0A>": 5, "word": 6, "12": 7, "Ċ": 8},
    },
}


def test_ids_every_draft_needs_come_from_the_tokenizers_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER), "utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<eos>"}}', "utf-8")
    (tmp_path / "chat_template.jinja").write_text("{{ '<turn>' }}", "utf-8")
    assert always_ids(tmp_path) == [90, 91, 1, 2, 3, 4, 5, 8]
    assert always_ids(None) == []
    (tmp_path / "tokenizer.json").write_text("[1, 2", "utf-8")
    assert always_ids(tmp_path) == []
    one = type("Config", (), {"eos_token_id": [3, 4]})
    assert ending_ids(one, type("Other", (), {"eos_token_id": 3}), None) == [3, 4]


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Any]:
    """Return a checkpoint with a tokenizer and an order of its tokens, and the model loaded from it."""
    model = build_model(vocab_size=97)
    model.save_pretrained(tmp_path)
    loaded = ssd_infer.load(tmp_path, dtype="float32", device="cpu").model
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER), "utf-8")
    order = torch.randperm(97, generator=torch.Generator().manual_seed(1))
    assert saved_head.save(tmp_path, Target.of(loaded), saved_head.SavedOrder(order, 2048)) == ""
    return tmp_path, loaded


def test_a_saved_order_is_used(saved: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, model = saved
    target = Target.of(model)
    monkeypatch.setattr(head_ground, "own_text", lambda *_: pytest.fail("nothing is decoded for it"))
    found = head_ground.cached_ground(target, PROMPTS)
    assert found.order.tolist() == torch.randperm(97, generator=torch.Generator().manual_seed(1)).tolist()
    assert found.positions == 2048
    assert loaded_from(target.config) == folder


@pytest.mark.parametrize(
    "how", ["weights", "tokenizer", "cut", "doubled", "outside", "type", "facts", "gone"]
)
def test_an_order_of_something_else_is_never_used(saved: tuple[Path, Any], how: str) -> None:
    folder, model = saved
    file, facts = folder / saved_head.WEIGHTS, folder / saved_head.FACTS
    order = torch.arange(97, dtype=torch.int32)
    words = "is damaged"
    if how == "weights":
        with torch.no_grad():
            next(model.parameters()).add_(1.0)
        words = "belongs to another checkpoint (other weights)"
    if how == "tokenizer":
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER | {"more": 1}), "utf-8")
        words = "belongs to another checkpoint (another tokenizer)"
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-9])
    changed = {"doubled": order.clamp(min=1), "outside": order + 1, "type": order.float()}.get(how)
    if changed is not None:  # also where the facts say that this is the file
        save_file({"order": changed}, file)
        known = json.loads(facts.read_text("utf-8"))
        facts.write_text(json.dumps(known | {"file": saved_head.file_digest(file)}), "utf-8")
    if how == "facts":
        facts.write_text("[]", "utf-8")
    if how == "gone":
        file.unlink()
        words = "cannot be read"
    found, note = saved_head.load(folder, Target.of(model))
    assert found is None
    assert words in note
    assert note.endswith("so the tokens were ranked anew")
    ranked = head_ground.cached_ground(Target.of(model), PROMPTS)
    assert ranked.note == note
    assert ranked.order.tolist() != list(range(97))


def test_what_is_put_beside_a_checkpoint_leaves_its_identity(saved: tuple[Path, Any]) -> None:
    folder, _ = saved
    with_order = weights_sha256(folder), fingerprint(folder)
    (folder / saved_head.WEIGHTS).unlink()
    assert with_order == (weights_sha256(folder), fingerprint(folder))


def test_an_order_is_saved_where_enough_text_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_model(vocab_size=97).save_pretrained(tmp_path)
    monkeypatch.setattr(head_ground, "POSITIONS", 64)
    few = ssd_infer.load(tmp_path, dtype="float32", device="cpu").model
    head_ground.cached_ground(Target.of(few), PROMPTS)
    assert not (tmp_path / saved_head.WEIGHTS).exists()  # four prompts say too little of a model
    many = ssd_infer.load(tmp_path, dtype="float32", device="cpu").model
    made = head_ground.cached_ground(Target.of(many), PROMPTS * 3)
    again = ssd_infer.load(tmp_path, dtype="float32", device="cpu").model
    found, note = saved_head.load(tmp_path, Target.of(again))
    assert note == ""
    assert found is not None
    assert torch.equal(found.order, made.order)
    elsewhere = tmp_path / "copy"
    shutil.copytree(tmp_path, elsewhere)
    assert tokenizer_digest(elsewhere) == tokenizer_digest(tmp_path) == ""


def test_why_a_saved_order_was_not_taken_is_said_below_the_table() -> None:
    option, scores = HeadOption("static", 4), Scores(torch.ones(1, 2), torch.ones(1, 2))
    seconds = {FULL: 2.0, option: 1.0}
    for note in ("", "the file belongs to another checkpoint, so the tokens were ranked anew"):
        facts = head_facts(option, HeadScores(scores, 0.5), 1.0, seconds, note)
        (table,) = head_tables({"status": "ok", "extra": {"search": facts}})
        assert table.caption.endswith(note)
        assert table.caption.startswith(CAPTION)
