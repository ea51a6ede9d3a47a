"""A check that tokens see no later ones."""

import numpy as np
import onnxruntime


def assert_causal(model) -> None:
    """Outputs before a changed token stay as they were, those from it on do not."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    ids, mask = np.arange(12)[None], np.ones((1, 12), np.int64)
    changed = ids.copy()
    changed[0, 6:] = 50
    before, after = (session.run(None, {"input_ids": i, "attention_mask": mask})[0] for i in (ids, changed))
    assert np.array_equal(before[:, :6], after[:, :6])
    assert not np.allclose(before[:, 6:], after[:, 6:])
