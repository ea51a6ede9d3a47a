"""Programs of open sizes, before and while their shapes are refined to fixed ones."""
