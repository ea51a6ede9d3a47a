"""NPU design spaces that work row by row on the vector unit: normalization, softmax, embedding_norm."""
