"""The version of a space rises when its decisions change: records of the old one would mean something else.

After a change that is meant, raise ``version`` in the space and write the table again::

    python -m tests.schedules.test_space_versions
"""

import hashlib
import json
from pathlib import Path

from tests.schedules import representatives

TABLE = Path(__file__).parent / "space_versions.json"


def digests():
    """Space -> version and a digest of its knobs with their sorted choices for representative operators."""
    seen = {}
    for space, op, machine in [*representatives.cpu(), *representatives.others()]:
        knobs = [
            [knob.name, sorted(map(json.dumps, knob.choices)), knob.absent]
            for knob in space.knobs(op, machine)
        ]
        version, texts = seen.setdefault(space.name, (space.version, []))
        assert version == space.version, f"{space.name} has two versions"
        texts.append([machine.mcpu, op.to_json(), knobs])
    found = {}
    for name, (version, texts) in sorted(seen.items()):
        digest = hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:12]
        found[name] = {"version": version, "knobs": digest}
    return found


def complaints(table, found):
    for name, entry in found.items():
        known = table.get(name)
        if known is None:
            yield f"{name} is new: write the table"
        elif entry["version"] < known["version"]:
            yield f"{name}: the version fell from {known['version']} to {entry['version']}"
        elif entry["knobs"] != known["knobs"] and entry["version"] == known["version"]:
            yield (
                f"{name}: its knobs changed, but its version is {entry['version']} as before: raise it "
                "(unless the new knob's `absent` is what the kernel did before), then write the table"
            )
        elif entry != known:
            yield f"{name}: version {entry['version']}: write the table"
    yield from (f"{name} is gone: write the table" for name in table.keys() - found.keys())


def test_versions_rise_with_the_knobs():
    assert list(complaints(json.loads(TABLE.read_text()), digests())) == []


def test_a_changed_knob_is_noticed():
    table = {"cpu.a": {"version": 1, "knobs": "x"}, "cpu.b": {"version": 2, "knobs": "y"}}
    changed = {"cpu.a": {"version": 1, "knobs": "z"}, "cpu.b": {"version": 1, "knobs": "y"}}
    first, second = complaints(table, changed)
    assert "cpu.a: its knobs changed" in first and "raise it" in first and "fell from 2 to 1" in second
    raised = {"cpu.a": {"version": 2, "knobs": "z"}}
    assert [text.partition(":")[0] for text in complaints(table, raised)] == ["cpu.a", "cpu.b is gone"]


if __name__ == "__main__":
    TABLE.write_text(json.dumps(digests(), indent=1) + "\n")
