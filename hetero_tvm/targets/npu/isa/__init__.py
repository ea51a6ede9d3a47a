"""The instruction set of the NPU: encoding, semantics, costs, streams, assembler."""
