"""Front end for kernel descriptions: fused operators as JSON, as AKG and MindSpore have them."""
