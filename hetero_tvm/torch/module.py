"""A model as one library, without Dynamo: export it, compile it, call it."""

from __future__ import annotations
