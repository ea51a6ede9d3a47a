"""Models whose lengths are known at run time: one library for all of them."""
