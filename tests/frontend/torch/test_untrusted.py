"""Files that would run code while they are read: refused, and nothing of them has run."""

import io
import json
import os
import pickle
import zipfile

import pytest

torch = pytest.importorskip("torch")

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.torch.load import load_program
from hetero_tvm.frontend.torch.untrusted import is_size


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x) + x.shape[0]


@pytest.fixture
def saved(tmp_path):
    """A program with an open dimension, so that expressions stand in the file."""
    batch = torch.export.Dim("batch", min=2, max=8)
    program = torch.export.export(Net().eval(), (torch.ones(3, 4),), dynamic_shapes={"x": {0: batch}})
    path = tmp_path / "net.pt2"
    torch.export.save(program, str(path))
    return path


def changed(path, change):
    """The archive with every member run through ``change(name, data)``."""
    other = path.with_name("changed.pt2")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, "w", zipfile.ZIP_STORED) as target:
        for name in source.namelist():
            target.writestr(name, change(name, source.read(name)))
    return other


def test_an_honest_program_is_read(saved):
    x = torch.ones(5, 4)
    assert load_program(saved).module()(x).shape == (5, 3)
    assert torch.equal(load_program(saved).module()(x), load_program(saved, trust=True).module()(x))


def test_pickles_with_code_are_refused_and_do_not_run(saved, tmp_path):
    proof = tmp_path / "proof"
    buffer = io.BytesIO()
    torch.save(Evil(proof), buffer)
    names = []

    def change(name, data):
        if "sample_inputs" in name or name.endswith(".pt"):
            names.append(name)
            return buffer.getvalue()
        return data

    path = changed(saved, change)
    assert names
    with pytest.raises(ModelError) as caught:
        load_program(path)
    assert not proof.exists() and "--trust" in str(caught.value.hint)


def test_expressions_with_code_are_refused_and_do_not_run(saved, tmp_path):
    proof = tmp_path / "proof"
    code = f"__import__('os').mkdir('{proof}') or 1"
    hits = []

    def change(name, data):
        if not name.endswith(".json") or b"expr_str" not in data:
            return data

        def put(value):
            if isinstance(value, dict):
                hits.extend(key for key in value if key == "expr_str")
                return {key: code if key == "expr_str" else put(inner) for key, inner in value.items()}
            return [put(inner) for inner in value] if isinstance(value, list) else value

        return json.dumps(put(json.loads(data))).encode()

    path = changed(saved, change)
    assert hits
    with pytest.raises(ModelError, match="only read by running it"):
        load_program(path)
    assert not proof.exists()


def test_objects_that_are_no_tensors_are_refused(saved, tmp_path):
    proof = tmp_path / "proof"
    path = changed(saved, lambda name, data: data)
    with zipfile.ZipFile(path, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/data/constants/opaque_obj_0", pickle.dumps(Evil(proof)))
    with pytest.raises(ModelError, match="no tensor"):
        load_program(path)
    assert not proof.exists()


@pytest.mark.parametrize(
    "text",
    [
        "Symbol('s77', positive=True, integer=True)",
        "Add(Integer(1), Mul(Integer(-2), Symbol('s0', integer=True)))",
        "Max(1, FloorDiv(s0, 2))",
        "2*s0 + 1",
        "Eq(Mod(s1, 8), 0)",
        "Float('1.5', precision=53)",
        "Pow(Symbol('s0', integer=True), Integer(2))",
        "Mul(Pow(Add(Pow(s0, 2), Integer(1)), Rational(1, 2)), Pow(s1, Integer(-1)))",
        "Pow(Integer(2), Add(Symbol('s0'), Integer(-1)))",
        "FloatPow(ToFloat(s0), Float('0.5', precision=53))",
        "(s0**2 + 1e-5)//4",
    ],
)
def test_sizes_are_arithmetic(text):
    assert is_size(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "exec(chr(49))",
        "(lambda: 0)()",
        "[x for x in (1,)]",
        "s0.__class__",
        "Symbol('a b; import os')",
        "eval('1')",
        "open('x', 'w')",
        "1 if s0 else 2",
        "f'{s0}'",
        "_",
        "(" * 500,
        "",
        # numbers that would take all time and memory
        "9**9**9**9",
        "((((9**64)**64)**64)**64)**64",
        "Pow(Integer(9), Pow(Integer(9), Integer(99)))",
        "Pow(9, 999999999, evaluate=True)",
        "9**(s0 - s0 + 999999999)",
        "1 << 99999999999",
        "LShift(Integer(1), Integer(99999999999))",
        "Symbol('a' * 9999999999)",
        "Max((1, 2) * 9999999999)",
        "Max(Tuple(1) * 9999999999)",
        "floor(Float('1e9999999999'))",
        "floor(1e9999999999)",
        "Float('0.1', precision=9999999999)",
    ],
)
def test_everything_else_is_not(text):
    assert not is_size(text)


def rewritten(path, add):
    """The archive with other members appended by ``add(target, name of its program)``."""
    other = path.with_name("rewritten.pt2")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, "w", zipfile.ZIP_STORED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
        program = next(name for name in source.namelist() if name.endswith("model.json"))
        add(target, program)
    return other


def _bomb(target, program):
    target.writestr("x/bomb.json", b" " * (100 << 20), zipfile.ZIP_DEFLATED)


def _twice(target, program):
    with pytest.warns(UserWarning, match="Duplicate"):
        target.writestr(program, b"{}")


def _other_case(target, program):
    target.writestr(program.replace("model.json", "MODEL.JSON"), b"{}")


def _outside(target, program):
    target.writestr("net/../../outside", b"")


def _link(target, program):
    link = zipfile.ZipInfo("net/link")
    link.external_attr = 0o120777 << 16
    target.writestr(link, "/etc/passwd")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "add, said",
    [
        (_bomb, "unpack to"),
        (_twice, "2 members are called"),
        (_other_case, "2 members are called"),
        (_outside, "outside of the archive"),
        (_link, "is a link"),
    ],
)
def test_archives_that_are_traps_are_refused(saved, add, said):
    with pytest.raises(ModelError, match=said):
        load_program(rewritten(saved, add))
    with pytest.raises(ModelError, match=said):
        load_program(rewritten(saved, add), trust=True)


@pytest.mark.parametrize("encrypted", [False, True])
def test_members_that_cannot_be_looked_at_are_refused(saved, encrypted):
    """PyTorch's reader may be content with a checksum or a flag that Python's is not."""
    with zipfile.ZipFile(saved) as archive:
        member = next(m for m in archive.infolist() if m.filename.endswith("model_weights_config.json"))
    data = bytearray(saved.read_bytes())
    if encrypted:
        place = data.rindex(member.filename.encode()) - 46  # its entry in the directory at the end
        data[place + 8] |= 1
        data[member.header_offset + 6] |= 1
    else:
        place = data.index(member.filename.encode(), member.header_offset) + len(member.filename)
        data[data.index(b"{", place)] = ord("[")
    damaged = saved.with_name("damaged.pt2")
    damaged.write_bytes(data)
    with pytest.raises(ModelError, match="model_weights_config.json' cannot be read"):
        load_program(damaged)


@pytest.mark.parametrize("depth", [900, 5000, 100_000])
def test_deep_nests_hide_no_expression(saved, depth):
    """What is nested too deeply to be looked at may still be read by PyTorch."""
    code = json.dumps({"expr_str": "__import__('os').getpid()"})
    nest = "[" * depth + "]" * depth

    def change(name, data):
        if not name.endswith("model.json"):
            return data
        return b'{"nest": ' + nest.encode() + b', "code": ' + code.encode() + b", " + data.lstrip()[1:]

    with pytest.raises(ModelError, match="running it") as caught:
        load_program(changed(saved, change))
    assert "expression" in str(caught.value) or "nested too deeply" in str(caught.value)


def test_names_that_are_no_text_are_told(tmp_path):
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("models/\u00e9.json", "{}")
    content = path.read_bytes()
    assert content.count(b"\xc3\xa9") == 2  # before the member, and in the directory at the end
    path.write_bytes(content.replace(b"\xc3\xa9", b"\xc3\x28", 1))
    with pytest.raises(ModelError, match="is not a program saved by torch.export"):
        load_program(path)
