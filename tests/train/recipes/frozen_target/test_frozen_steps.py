"""One step of the recipe: what is compared with what, what gets a gradient, and what stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ssd_infer.errors import CheckpointError, ConfigError
from ssd_train.recipes.base import StepContext
from ssd_train.recipes.frozen_target import keeping, rows
from ssd_train.recipes.frozen_target.forms import chain
from ssd_train.recipes.frozen_target.frozen import Frozen
from ssd_train.recipes.frozen_target.measures import judged, relative_cost
from ssd_train.recipes.frozen_target.recipe import FrozenTargetRecipe
from ssd_train.recipes.frozen_target.rows import chosen_ids
from ssd_train.recipes.frozen_target.settings import FrozenTargetConfig
from ssd_train.recipes.frozen_target.trainee import Trainee, specs_of
from tests.train.support import Samples, base_model, tokens

IDS = torch.arange(0, 300, 3)
CONTEXT = StepContext(0, 10, detailed=True)


def made(directory: Path, *, ids: Tensor | None = IDS, **settings: Any) -> tuple[FrozenTargetRecipe, Trainee]:
    """Return a recipe and untrained modules beside a tiny model of random weights."""
    directory.mkdir(exist_ok=True)
    config = FrozenTargetConfig(**{"target_dtype": "float32", "chunk_tokens": 7, **settings})
    frozen = Frozen.load(base_model(directory), "float32")
    torch.manual_seed(3)
    trainee = Trainee(frozen, specs_of(config, frozen, 0 if ids is None else len(ids)), ids)
    recipe = FrozenTargetRecipe(config)
    recipe.prepare(trainee)
    return recipe, trainee


def stirred(trainee: Trainee) -> Trainee:
    """Return modules whose weights are no longer those they began with."""
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in trainee.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=random)
    return trainee


def batch() -> dict[str, Tensor]:
    ids = tokens(2, 14) % 97
    labels = ids.clone()
    labels[0, :5] = -100
    labels[1, 9:] = -100
    return {"input_ids": ids, "labels": labels}


def hybrid(p: Tensor, q: Tensor) -> Tensor:
    """Return λ·KL(p_S ‖ q)·p(S) + (1 − λ)(1 − α) of one token, p on S not renormalised."""
    alpha, mass = torch.minimum(p, q).sum(), p.sum()
    kl = mass * ((p / mass) * (p / mass / q).log()).sum()
    share = torch.exp(-3 * alpha)
    return share * kl + (1 - share) * (1 - alpha)


@pytest.mark.parametrize("form", ["exit", "mtp", "heads"])
def test_a_step_compares_every_draft_with_the_target_at_its_own_token(tmp_path: Path, form: str) -> None:
    module = "rank" if form == "heads" else "layer"
    exits = [1, 3] if form == "exit" else None
    recipe, trainee = made(tmp_path, form=form, exits=exits, module=module, rollout=3, heads=3)
    stirred(trainee)
    inputs = batch()
    out = recipe.step(trainee, inputs, CONTEXT)
    model, heard = trainee.target.model, recipe._hear(inputs)
    p = torch.softmax(model(inputs["input_ids"]).logits.double(), -1)
    drafts = recipe._drafts(heard, 3)
    assert [draft.shift for draft in drafts] == ([0, 0] if form == "exit" else [1, 2, 3])
    expected, count, matches = torch.zeros((), dtype=torch.float64), 0, 0
    for row, token in (inputs["labels"][:, 1:] != -100).nonzero().tolist():
        count += 1
        for place, draft in enumerate(drafts):
            at = token - draft.shift
            if at < 0:
                continue
            q = torch.softmax(trainee.draft(draft.module).logits(draft.states[row, at]).double(), -1)
            weight = 1.0 if form == "exit" else 0.8**place
            expected += weight * hybrid(p[row, token, IDS], q)
            matches += int(IDS[q.argmax()] == p[row, token].argmax())
    torch.testing.assert_close(out.loss_sum.double(), expected, rtol=1e-4, atol=1e-4)
    assert int(out.denom) == count
    assert sum(int(num) for name, (num, _) in out.metrics.items() if name.endswith("agreement")) == matches


def test_an_untrained_exit_is_the_early_exit_bit_for_bit(tmp_path: Path) -> None:
    recipe, trainee = made(tmp_path, exits=[2])
    inputs = batch()
    (draft,) = recipe._drafts(recipe._hear(inputs), 1)
    target = trainee.target.target
    states = trainee.target.model(inputs["input_ids"], output_hidden_states=True).hidden_states[2]
    assert torch.equal(draft.states, target.normed(states))
    drafted = trainee.draft("exit_2").logits(draft.states)
    assert torch.equal(drafted, target.normed(states) @ target.head.weight[IDS].T)


@pytest.mark.parametrize(
    ("form", "module"),
    [("heads", "rank")]
    + [
        (form, module)
        for form in ("exit", "mtp")
        for module in ("rank", "attention", "attention_mlp", "layer")
    ],
)
@pytest.mark.parametrize("own_rows", [False, True])
def test_the_target_gets_no_gradient_and_every_module_all_of_its_own(
    tmp_path: Path, form: str, module: str, own_rows: bool
) -> None:
    recipe, trainee = made(tmp_path, form=form, module=module, own_rows=own_rows, exits=None, mlp_width=24)
    stirred(trainee)
    before = {name: value.clone() for name, value in trainee.target.model.state_dict().items()}
    recipe.step(trainee, batch(), CONTEXT).loss_sum.backward()
    assert all(
        weight.grad is None and not weight.requires_grad for weight in trainee.target.model.parameters()
    )
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in trainee.parameters())
    torch.optim.AdamW(trainee.parameters(), lr=0.1).step()
    assert all(torch.equal(value, before[name]) for name, value in trainee.target.model.state_dict().items())
    owned = {id(weight) for weight in trainee.parameters()}
    assert not owned & {id(weight) for weight in trainee.target.model.parameters()}
    assert any(name.endswith("row_weight") for name, _ in trainee.named_parameters()) == own_rows


def test_exits_learn_apart_from_each_other(tmp_path: Path) -> None:
    both, one = made(tmp_path / "both", exits=[1, 3]), made(tmp_path / "one", exits=[3])
    for recipe, trainee in (both, one):
        recipe.step(trainee, batch(), CONTEXT).loss_sum.backward()
    alone = dict(one[1].draft("exit_3").named_parameters())
    for name, weight in both[1].draft("exit_3").named_parameters():
        torch.testing.assert_close(weight.grad, alone[name].grad)


def test_a_bfloat16_target_teaches_a_float32_module_with_exact_positions(tmp_path: Path) -> None:
    source = base_model(tmp_path)
    narrow, wide = Frozen.load(source, "bfloat16"), Frozen.load(source, "float32")
    inputs = batch()
    given = {}
    for frozen in (narrow, wide):
        heard = frozen.hear(inputs, [2])
        given[frozen] = frozen.positional(heard.arguments[2], 2, 14)["position_embeddings"]
    for ours, exact in zip(given[narrow], given[wide], strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, exact)


def test_a_target_in_training_mode_is_evaluated_all_the_same(tmp_path: Path) -> None:
    recipe, trainee = made(tmp_path, exits=[2])
    trainee.train()
    trainee.target.model.train()
    recipe.step(trainee, batch(), CONTEXT)
    assert not trainee.target.model.training


@pytest.mark.parametrize("chained", [False, True])
def test_the_simulated_accept_length_is_that_of_counting_round_by_round(chained: bool) -> None:
    random = torch.Generator().manual_seed(2)
    where = [(0, t) for t in range(9)] + [(0, t) for t in range(12, 16)] + [(1, t) for t in range(3, 12)]
    row, token = (torch.tensor(side) for side in zip(*where, strict=True))
    matches = torch.rand(3 if chained else 1, len(where), generator=random) < 0.6
    said = {place: index for index, place in enumerate(where)}
    total, rounds = 0.0, 0
    for r, t in where:
        places = [(r, t + step) for step in range(3)]
        if any(place not in said for place in places) or (chained and t == 0):
            continue
        rounds, length = rounds + 1, 1
        for step, place in enumerate(places):
            if not matches[step if chained else 0, said[place]]:
                break
            length += 1
        total += length
    found, count = chain(matches, row, token, 3, chained=chained)
    assert (float(found), int(count)) == (total, rounds)
    assert 1 < total / rounds < 4


def test_the_exit_that_is_kept_pays_most_for_what_it_costs(tmp_path: Path) -> None:
    recipe, trainee = made(tmp_path, exits=[1, 3])
    cheap, dear = (relative_cost(trainee, name) for name in trainee.names)
    assert 0 < cheap < dear < 1.3
    taus = {f"eval_exit_1_tau_{g}": 1 + 0.9 * g for g in (1, 2, 4)} | {
        f"eval_exit_3_tau_{g}": 1 + 0.92 * g for g in (1, 2, 4)
    }
    found = recipe.validated(taus, "eval_")
    assert recipe.kept == "exit_1"  # a little shorter, much cheaper
    assert found["eval_tau_sim"] == pytest.approx(4.6)
    assert found["eval_exit_1_speedup"] == pytest.approx(
        max((1 + 0.9 * g) / (g * cheap + 1 + 0.03 * g) for g in (1, 2, 4))
    )
    recipe.validated(
        {f"eval_exit_1_tau_{g}": 1.0 for g in (1, 2, 4)} | {k: v for k, v in taus.items() if "_3_" in k},
        "eval_",
    )
    assert recipe.kept == "exit_3"
    assert judged({}, recipe.costs) == {}


class Data:
    """Training data of which a few samples are looked at."""

    def __init__(self) -> None:
        self.train = Samples([{"input_ids": tokens(1, 40, seed)[0]} for seed in range(20)])


def test_rows_hold_what_every_draft_needs_and_are_chosen_once(tmp_path: Path) -> None:
    frozen = Frozen.load(base_model(tmp_path), "float32")
    found = chosen_ids(frozen, Data(), 280, tmp_path / "run")  # type: ignore[arg-type]
    assert found is not None
    assert len(found) == 280
    assert torch.equal(found, found.unique())
    assert {0, 1, 2} <= set(found.tolist())  # <s>, </s>, <|im_end|>
    with torch.no_grad():
        frozen.model.lm_head.weight.neg_()
    again = chosen_ids(frozen, Data(), 280, tmp_path / "run")  # type: ignore[arg-type]
    assert again is not None
    assert torch.equal(again, found)
    assert chosen_ids(frozen, Data(), 0, tmp_path / "other") is None  # type: ignore[arg-type]
    assert chosen_ids(frozen, Data(), 300, tmp_path / "other") is None  # type: ignore[arg-type]


@pytest.mark.parametrize("harm", ["cut", "fewer", "falling"])
def test_damaged_rows_of_a_run_are_refused(tmp_path: Path, harm: str) -> None:
    frozen = Frozen.load(base_model(tmp_path), "float32")
    found = chosen_ids(frozen, Data(), 280, tmp_path / "run")  # type: ignore[arg-type]
    assert found is not None
    file = tmp_path / "run" / "draft_rows.safetensors"
    if harm == "cut":
        file.write_bytes(file.read_bytes()[:-9])
    else:
        save_file({"ids": found[:200] if harm == "fewer" else found.flip(0).contiguous()}, file)
    with pytest.raises(
        CheckpointError, match=r"draft_rows\.safetensors: (is damaged|holds no 280 ascending)"
    ):
        chosen_ids(frozen, Data(), 280, tmp_path / "run")  # type: ignore[arg-type]


def test_rows_of_another_run_are_refused_on_resume(tmp_path: Path) -> None:
    _, trainee = made(tmp_path)
    keeping.write(trainee, trainee.state_dict(), trainee.names[0], tmp_path)
    others = torch.arange(300 - len(IDS), 300)
    _, other = made(tmp_path, ids=others)
    with pytest.raises(CheckpointError, match="look at other tokens"):
        keeping.read(other, tmp_path)


def test_rows_are_those_the_target_expects_along_its_own_text(tmp_path: Path) -> None:
    frozen = Frozen.load(base_model(tmp_path), "float32")
    mass = rows.expected_mass(frozen, Data())  # type: ignore[arg-type]
    reference = torch.zeros(300, dtype=torch.float64)
    for inputs in rows._own_batches(frozen, Data()):  # type: ignore[arg-type]
        p = torch.softmax(frozen.model(inputs["input_ids"]).logits.double(), -1)
        for row, token in (inputs["labels"][:, 1:] != -100).nonzero().tolist():
            reference += p[row, token]
    torch.testing.assert_close(mass, reference, rtol=1e-4, atol=1e-6)
    assert reference.sum() > 100


def test_too_few_rows_are_refused_with_the_number_that_is_needed(tmp_path: Path) -> None:
    frozen = Frozen.load(base_model(tmp_path), "float32")
    with pytest.raises(ConfigError, match=r"recipe.rows: must be at least \d+: ends of text.*recipe.rows="):
        chosen_ids(frozen, Data(), 20, tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run" / "draft_rows.safetensors").exists()
