"""Write the decode core as one Python file, for checkpoints that speculate without this toolkit installed.

The file is this package's own source, module after module with the imports between them dropped; nothing is
maintained twice.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import Any

_MODULES = (
    "ssd_infer.errors",
    "ssd_infer.engine.values",
    "ssd_infer.engine.uniforms",
    "ssd_infer.engine.window",
    "ssd_infer.engine.tree",
    "ssd_infer.engine.tree_window",
    "ssd_infer.engine.tree_shape",
    "ssd_infer.engine.cache",
    "ssd_infer.engine.devices",
    "ssd_infer.engine.kernels.products",
    "ssd_infer.engine.model_view",
    "ssd_infer.engine.positions",
    "ssd_infer.engine.recurrent_states",
    "ssd_infer.engine.recurrent",
    "ssd_infer.engine.rotary",
    "ssd_infer.entries",
    "ssd_infer.checkpoint.families",
    "ssd_infer.engine.families.base",
    "ssd_infer.engine.families.parts",
    "ssd_infer.engine.families.stand_ins",
    "ssd_infer.engine.families.names",
    "ssd_infer.engine.families.scales",
    "ssd_infer.engine.families.added_positions",
    "ssd_infer.engine.families.alibi",
    "ssd_infer.engine.families.shared_keys",
    "ssd_infer.engine.families.text_part",
    "ssd_infer.engine.families.hybrid",
    "ssd_infer.engine.families.refused",
    "ssd_infer.engine.examine_states",
    "ssd_infer.engine.examine",
    "ssd_infer.engine.target",
    "ssd_infer.engine.laws",
    "ssd_infer.engine.rules",
    "ssd_infer.engine.sampling",
    "ssd_infer.engine.acceptance",
    "ssd_infer.engine.accept_tree",
    "ssd_infer.engine.session",
    "ssd_infer.engine.kernels.listener",
    "ssd_infer.engine.kernels.flex",
    "ssd_infer.engine.kernels.grouped",
    "ssd_infer.engine.kernels.layers",
    "ssd_infer.engine.kernels.plain",
    "ssd_infer.engine.stats",
    "ssd_infer.engine.clock",
    "ssd_infer.engine.stopping",
    "ssd_infer.engine.streaming",
    "ssd_infer.engine.rule_values",
    "ssd_infer.engine.processors",
    "ssd_infer.config.checks",
    "ssd_infer.engine.generation_rules",
    "ssd_infer.engine.given_processors",
    "ssd_infer.engine.request",
    "ssd_infer.engine.heads.head",
    "ssd_infer.engine.heads.rows",
    "ssd_infer.engine.verdict",
    "ssd_infer.engine.drafter",
    "ssd_infer.engine.proposals",
    "ssd_infer.engine.loop",
    "ssd_infer.strategies.info",
    "ssd_infer.strategies.reported",
    "ssd_infer.strategies.base",
    "ssd_infer.engine.room",
    "ssd_infer.strategies.run",
    "ssd_infer.engine.tree_support",
    "ssd_infer.strategies.head_params",
    "ssd_infer.strategies.early_exit.whole_head",
    "ssd_infer.strategies.grown_trees",
    "ssd_infer.strategies.stepwise",
    "ssd_infer.strategies.early_exit",
    "ssd_infer.tuning.costs",
    "ssd_infer.tuning.rounds",
    "ssd_infer.checkpoint.machine",
    "ssd_infer.tuning.memo",
    "ssd_infer.tuning.text_states",
    "ssd_infer.tuning.tree_costs",
    "ssd_infer.tuning.tree_shapes",
    "ssd_infer.tuning.tree_rounds",
    "ssd_infer.strategies.tree_params",
    "ssd_infer.strategies.early_exit.exit_params",
    "ssd_infer.strategies.early_exit.exit_calibration",
    "ssd_infer.strategies.early_exit.exit_choice",
    "ssd_infer.strategies.early_exit.exit_trees",
    "ssd_infer.strategies.early_exit.early_exit",
    "ssd_infer.bridge",
)

_TAIL = '''
DRAFT_PARAMS = {params!r}


def _decode(model, input_ids, logits_processor=None, stopping_criteria=None, generation_config=None,
            draft_params=None, seed=None, token_streamer=None, **model_kwargs):
    """Serve as the callable that transformers' generate hands its prepared arguments to."""
    settings = draft_params
    if draft_params is None or isinstance(draft_params, dict):
        settings = {{**DRAFT_PARAMS, **(draft_params or {{}})}}
    with following(token_streamer) as stream:
        call = Prepared(input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs)
        return self_speculate(model, call, EarlyExit, settings, seed, stream)


def generate(model, **arguments):
    """Decode with the model's own early exit as draft; takes what `generate` takes, and `draft_params`, `seed`."""
    given = {{name: value for name, value in arguments.items() if value is not None}}
    return model.generate(custom_generate=_decode, **given)
'''


def bundle(draft_params: dict[str, Any]) -> str:
    """Return the source of a `custom_generate/generate.py` whose defaults are `draft_params`."""
    imports: set[str] = set()
    bodies: list[str] = []
    seen: dict[str, str] = {}
    for name in _MODULES:
        source = inspect.getsource(importlib.import_module(name))
        found, body = _split(source)
        imports |= found
        _no_clash(name, body, seen)
        bodies.append(f"# --- {name}\n{body}")
    head = '"""Self-speculative decoding for this checkpoint; written by ssd_infer (Apache-2.0), do not edit."""\n'
    lines = ["from __future__ import annotations", *sorted(imports - {"from __future__ import annotations"})]
    return head + "\n" + "\n".join(lines) + "\n\n" + "\n\n".join(bodies) + _TAIL.format(params=draft_params)


def _split(source: str) -> tuple[set[str], str]:
    """Return the module's outside imports, and its code without docstring, imports and typing-only blocks."""
    tree = ast.parse(source)
    imports: set[str] = set()
    kept: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if not _ours(node):
                imports.add(ast.unparse(node))
        elif not _typing_only(node) and not _docstring(node):
            kept.append(node)
    return imports, "\n\n".join(ast.unparse(node) for node in kept)


def _ours(node: ast.Import | ast.ImportFrom) -> bool:
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    return any(name.split(".")[0] == "ssd_infer" for name in names)


def _typing_only(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _no_clash(module: str, body: str, seen: dict[str, str]) -> None:
    """Fail when two modules define the same top-level name with different code."""
    for node in ast.parse(body).body:
        names = (
            [node.name]
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
            else [target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)]
        )
        for name in names:
            code = ast.unparse(node)
            if seen.setdefault(name, code) != code:
                raise RuntimeError(
                    f"{module} redefines {name}, which an earlier module of the bundle defines differently"
                )
