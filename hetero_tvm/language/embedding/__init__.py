"""Models that embed texts: a folder of sentence-transformers, or of an encoder of transformers, becomes a
library that gives one vector per text (``hetero_tvm/generation/embedding.py`` runs it)."""
