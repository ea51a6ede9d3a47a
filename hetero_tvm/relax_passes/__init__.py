"""Graph passes: rules that rewrite Relax, the pipelines that order them, and the storage of tensors."""
