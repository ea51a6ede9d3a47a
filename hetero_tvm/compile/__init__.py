"""The road behind the five verbs: optimized model, kernels, build, check, fault finding."""
