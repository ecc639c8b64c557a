"""The file that travels with a checkpoint defines every name it uses, also those that no decoding of a test needs."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator

from ssd_infer.strategies.early_exit.bundle import bundle


class _Bare(ast.NodeTransformer):
    """Drop annotations, which name what only a type checker imports."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Drop the annotation of an argument."""
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Drop the annotation of what is returned."""
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Keep the value that is assigned."""
        node.annotation = ast.Constant(value=None)
        return self.generic_visit(node)


def used(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the global names that a piece of code, or one inside it, refers to."""
    yield from (
        symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()
    )
    for child in table.get_children():
        yield from used(child)


REPORTS = {"Study", "study_forced", "study_grid", "forced_tables", "grid_plots", "head_tables"}
"""What early exit adds to a report, which no decoding asks for."""


def test_every_name_is_defined() -> None:
    source = ast.unparse(ast.fix_missing_locations(_Bare().visit(ast.parse(bundle({})))))
    module = symtable.symtable(source, "generate.py", "exec")
    defined = {
        symbol.get_name()
        for symbol in module.get_symbols()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    }
    missing = {name for name in used(module) if name not in defined and not hasattr(builtins, name)}
    assert missing - {"__name__"} == REPORTS
