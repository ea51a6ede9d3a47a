"""Types of what the package gives on first use (see ``__init__.py``)."""

from hetero_tvm import torch as torch
from hetero_tvm.api import BuiltModel as BuiltModel
from hetero_tvm.api import OptimizedModel as OptimizedModel
from hetero_tvm.api import TunedModel as TunedModel
from hetero_tvm.api import build_embedding_model as build_embedding_model
from hetero_tvm.api import build_language_model as build_language_model
from hetero_tvm.api import build_model as build_model
from hetero_tvm.api import import_model as import_model
from hetero_tvm.api import optimize_model as optimize_model
from hetero_tvm.api import tune_model as tune_model
from hetero_tvm.api import tune_op as tune_op
from hetero_tvm.errors import HeteroTVMError as HeteroTVMError
from hetero_tvm.frontend.signature import Span as Span
from hetero_tvm.generation.embedding import load_embedding_model as load_embedding_model
from hetero_tvm.generation.model import load_language_model as load_language_model
from hetero_tvm.runtime.library import Library as Library
from hetero_tvm.runtime.opening import load as load
from hetero_tvm.schedules.sampled import design_space as design_space

__version__: str
