"""hetero_tvm: take a trained model, make it run fast on a CPU, a GPU or an NPU, ship one ``.so``.

>>> import hetero_tvm
>>> model = hetero_tvm.import_model("bert.onnx")
>>> optimized = hetero_tvm.optimize_model(model, target="cpu")
>>> tuned = hetero_tvm.tune_model(optimized, trials=64, logs="runs/")
>>> hetero_tvm.build_model(tuned).export("out/bert.so")
>>> net = hetero_tvm.load("out/bert.so")
"""

from __future__ import annotations

from hetero_tvm.import_path import put_working_folder_last, refuse_stand_ins

put_working_folder_last()  # before anything is imported that a file there might have the name of

import importlib.util  # noqa: E402
from typing import Any  # noqa: E402

from hetero_tvm.errors import HeteroTVMError, UsageError  # noqa: E402
from hetero_tvm.version import VERSION  # noqa: E402

__version__ = VERSION

__all__ = [
    "HeteroTVMError",
    "Span",
    "build_embedding_model",
    "build_language_model",
    "build_model",
    "design_space",
    "import_model",
    "load",
    "load_embedding_model",
    "load_language_model",
    "optimize_model",
    "tune_model",
    "tune_op",
]

_COMPILER = (
    "build_embedding_model",
    "build_language_model",
    "build_model",
    "import_model",
    "optimize_model",
    "tune_model",
    "tune_op",
    "BuiltModel",
    "OptimizedModel",
    "TunedModel",
)
_CLASSES = ("BuiltModel", "Library", "OptimizedModel", "TunedModel")
"""Classes of what the verbs give, for annotations and ``isinstance``."""


def __dir__() -> list[str]:
    dunders = {name for name in globals() if name.startswith("__")}
    return sorted(dunders | {*__all__, *_CLASSES, "errors", "version"})


def __getattr__(name: str) -> Any:
    """The verbs on first use: loading a library must not import the compiler."""
    try:
        return _find(name)
    except ImportError as error:
        if importlib.util.find_spec("hetero_tvm.api") is not None:
            raise
        raise UsageError(
            f"{name} is no part of hetero-tvm-runtime, which only loads and runs libraries",
            hint="do this where hetero-tvm is installed, and bring the .so here",
        ) from error


def _find(name: str) -> Any:
    if name in _COMPILER:
        refuse_stand_ins()
        from hetero_tvm import api

        return getattr(api, name)
    if name == "Span":
        from hetero_tvm.frontend.signature import Span

        return Span
    if name == "design_space":
        from hetero_tvm.schedules.sampled import design_space

        return design_space
    if name == "load":
        from hetero_tvm.runtime.opening import load

        return load
    if name == "load_embedding_model":
        from hetero_tvm.generation.embedding import load_embedding_model

        return load_embedding_model
    if name == "load_language_model":
        from hetero_tvm.generation.model import load_language_model

        return load_language_model
    if name == "torch":  # a package of ours, which imports PyTorch
        return importlib.import_module("hetero_tvm.torch")
    if name == "Library":
        from hetero_tvm.runtime.library import Library

        return Library
    near = sorted(verb for verb in __all__ if verb.startswith(f"{name}_") or verb.endswith(f"_{name}"))
    meant = f"; did you mean {' or '.join(f'hetero_tvm.{verb}' for verb in near)}?" if near else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{meant}")
