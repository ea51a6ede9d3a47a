"""``python -m tests.campaign.onnx_support``: write ``docs/onnx-support.md``, a table of imported operators.

The table is made of the importer's own tables and of ONNX's schemas; a test fails when it is out of date.
What the numbers are, ``python -m tests.campaign.onnx_suite`` tells.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from onnx import defs, helper

from hetero_tvm.frontend.onnx.bodies import learning, retired
from hetero_tvm.frontend.onnx.bodies.empty import EMPTY
from hetero_tvm.frontend.onnx.contrib import DOMAIN, EXPANSIONS
from hetero_tvm.frontend.onnx.contrib_layers import BLOCKED
from hetero_tvm.frontend.onnx.converters import CONVERTERS
from hetero_tvm.frontend.onnx.counted.sources import SOURCES
from hetero_tvm.frontend.onnx.expand import SHAPED
from hetero_tvm.frontend.onnx.forms import FORMS
from hetero_tvm.frontend.onnx.graph.draws import draws
from hetero_tvm.frontend.onnx.promise import PROMISED
from hetero_tvm.frontend.onnx.relax import SHAPES_FROM_VALUES, supported_operators

DOCUMENT = Path(__file__).parents[2] / "docs" / "onnx-support.md"

_INTRODUCTION = """# Operators of ONNX that are imported

Made by `python -m tests.campaign.onnx_support`; do not edit.

An operator is *converted* to kernels, *written out* in other operators, or expanded by its *definition* in
ONNX.  *With shapes*: it is also taken where the shape of its result depends on values that come at run
time and the file declares that shape; the values are checked when the model runs.  *Counted*: it is taken
where nothing declares the shape.  The result, and what is computed from it, is padded to the largest size
that it could have, and cut to its true size in the arrays that a call gives; libraries for C and C++ give the
padded array, and the size as another output, `NAME_count`.  Operators on counted tensors that would need
the true size inside are refused, all of them listed.

A Loop of few rounds is written out.  One whose rounds are many, or known only when it has run since its body
decides, stays a loop (on CPUs): its states keep one shape through all rounds, and where it gives rows, how
many rounds there are must be known.

Branches of an `If` that a run decides hold what a graph may hold, but for loops that stay loops.

Random numbers are *drawn* once, when the model is imported, from the node's seed (or from the name of its
result): every call of the library has the same noise, which is not ONNX Runtime's, and a warning says so.
Where they decide (a comparison, `TopK`) they are refused.

A form of an operator that is not covered is refused by name.  *Opsets* are the versions of the operator;
files from opset 1 on are converted.

Types: floats are float16, bfloat16, float32 and float64 (those of 16 bits are computed in float32, or as
`--precision` says), integers are int8 to int64 and uint8 to uint64.  Weights of 4 bits and less are taken
where they become floats; other numbers of less than 8 bits, complex ones, strings (but see scikit-learn
below), sequences as inputs and optional inputs are refused.

"""
_LEARNING = """.

## Models of scikit-learn (ai.onnx.ml)

What skl2onnx writes for linear models, trees, forests, boosting, support vector regression, neighbours,
clusters, naive Bayes and perceptrons, with their scalers, imputers and encoders.  Labels that are text
become their index in the file's list of labels; `ZipMap` at the end gives its tensor of scores, [n, classes],
in the order of the labels.  Inputs of text whose categories OneHotEncoder, LabelEncoder or CategoryMapper
list become int64: the place of the text in that list, which the import warns of, and -1 for any other.
Trees that ask for an order are one kernel on the CPU, and elsewhere go down
together, one level at a time.  Written out in ONNX's own: """
_BLOCKED = f""".

Files that it saved with all its optimisations on keep images in channel blocks (com.microsoft.nchwc), of the
size that suits the machine that saved them: {", ".join(sorted(BLOCKED))} become plain again."""
_FLOATS = frozenset({"tensor(float)", "tensor(float16)", "tensor(double)", "tensor(bfloat16)"})
_INTEGERS = frozenset(f"tensor({sign}int{bits})" for sign in ("", "u") for bits in (8, 16, 32, 64))
_REFUSED_TYPES = ("string", "complex", "map(", "optional(")


def table() -> str:
    """The document's text."""
    schemas = defaultdict(list)
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "" and not schema.deprecated:
            schemas[schema.name].append(schema)
    supported, rows, refused = supported_operators(), [], []
    for name in sorted(schemas):
        versions = sorted(schemas[name], key=lambda schema: schema.since_version)
        how = _how(name, versions[-1], supported)
        if how is None:
            refused.append(name)
            continue
        opsets = ", ".join(str(schema.since_version) for schema in versions)
        rows.append(f"| {name} | {opsets} | {_types(versions[-1])} | {how} |")
    contrib = sorted({name for domain, name in EXPANSIONS if domain == DOMAIN})
    return "".join(
        [
            _INTRODUCTION,
            "| operator | opsets | types | how |\n|---|---|---|---|\n",
            "\n".join(rows),
            "\n\n## Operators of ONNX Runtime (com.microsoft)\n\nWritten out in ONNX's own: ",
            ", ".join(contrib),
            _BLOCKED,
            _LEARNING,
            ", ".join(sorted(learning.EXPANSIONS)),
            ".\n\n## Operators that ONNX had once\n\nWritten out in those that it has: ",
            ", ".join(name for name in sorted(retired.EXPANSIONS) if name not in schemas),
            ".\n\n## Refused\n\n",
            ", ".join(refused),
            ".\n",
        ]
    )


def _how(name: str, schema: defs.OpSchema, supported: frozenset[str]) -> str | None:
    """How an operator is imported; None when it is not."""
    ways: list[str] = []
    if name == "Bernoulli":  # whose definition decides by numbers that are drawn
        return None
    if name in SHAPES_FROM_VALUES and name not in PROMISED and name not in SOURCES:
        return None
    written = set(FORMS) - set(EMPTY)  # those write out what is of no elements alone
    if draws(helper.make_node(name, [], [])):
        ways.append("drawn")
    elif name in SHAPED or name in written or (name in PROMISED and not PROMISED[name][0]):
        ways.append("written out")
    elif name in CONVERTERS or name in supported:
        ways.append("converted")
    elif schema.has_function or schema.has_context_dependent_function:
        ways.append("definition")
    if not ways:
        return None
    if name in PROMISED and PROMISED[name][0]:
        ways.append("with shapes")
    if name in SOURCES:
        ways.append("counted")
    return ", ".join(ways)


def _types(schema: defs.OpSchema) -> str:
    """Kinds of numbers that the operator's first operand, or result, may have and that are imported."""
    ends = [*schema.inputs, *schema.outputs]
    if not ends:
        return "any"
    names = set(ends[0].types)
    kinds = []
    if names & _FLOATS:
        kinds.append("floats" if names >= _FLOATS else "some floats")
    if names & _INTEGERS:
        kinds.append("integers" if names >= _INTEGERS else "some integers")
    if "tensor(bool)" in names:
        kinds.append("bool")
    if any(name.startswith("seq(") and not any(r in name for r in _REFUSED_TYPES) for name in names):
        kinds.append("sequences within the model")
    return ", ".join(kinds) or "none"


def main() -> None:
    DOCUMENT.write_text(table())
    print(f"wrote {DOCUMENT}")


if __name__ == "__main__":
    main()
