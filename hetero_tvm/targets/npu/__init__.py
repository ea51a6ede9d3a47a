"""The reference NPU: its specification, instruction set, command streams, driver and simulator.

``README.md`` beside this file is the machine's manual.
"""
