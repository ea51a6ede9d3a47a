"""Numbers and speed of every design space on an NVIDIA GPU, beside PyTorch: what ``benchmarks/gpu.py`` runs.

One process directs and never touches the GPU.  Candidates are compiled and timed by the search's own
processes; winners are checked against PyTorch in float64 and timed beside their peers by a second
process (:mod:`.worker`), which is replaced when a kernel breaks its context.
"""
