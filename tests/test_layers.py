"""The floor plan: every import goes down, no circle of files or folders, no crowded room.

The floors here are the table of ``docs/architecture.md``; a test compares the two.
"""

import ast
import re

import pytest

from tests.import_graph import PACKAGE, ROOT, circles, folders, imports, modules, nodes, references

FLOORS = (
    ("errors", "version", "import_path"),
    ("host",),
    ("memory", "zoo", "pages", "runtime", "generation"),
    ("codegen",),
    ("ops", "frontend", "reference"),
    ("machines",),
    ("schedules",),
    ("records", "search"),
    ("relax_passes",),
    ("targets",),
    ("compile",),
    ("language",),
    ("api",),
    ("torch",),
    ("benchmarking", "serving"),
    ("cli",),
)
"""Rooms from the bottom up; what is not named (the commands) stands on top.  Rooms of one floor that use each
other stand in the order in which they do."""
ROOMS = [room for floor in FLOORS for room in floor]

# A thing in another process, or a plug-in, is named by a string; nobody else may use that door.
BY_NAME = {
    "hetero_tvm.targets.registry",
    "hetero_tvm.runtime.registry",
    "hetero_tvm.targets.cpu.target",
    "hetero_tvm.targets.cpu.tuner",
    "hetero_tvm.targets.cuda.device",
}
MOST_LINES = 450
MOST_FILES = 20


@pytest.fixture(scope="module")
def files():
    return modules()


@pytest.fixture(scope="module")
def graph(files):
    return imports(files)


def height(name):
    """Index of the room that a module stands in, counted from the bottom; commands are on top."""
    parts = name.split(".")
    if len(parts) == 1:
        return ROOMS.index("api")  # the package re-exports the verbs
    return ROOMS.index(parts[1]) if parts[1] in ROOMS else len(ROOMS)


def climbs(graph):
    pairs = ((name, target) for name, targets in graph.items() for target in targets)
    return sorted(f"{name} -> {target}" for name, target in pairs if height(target) > height(name))


def test_imports_go_down_the_floors(graph):
    assert climbs(graph) == []


def test_there_is_no_circle_of_files(graph):
    assert circles(graph) == []


def test_there_is_no_circle_of_folders(graph, files):
    assert circles(folders(graph, files)) == []


def test_a_circle_and_a_climb_are_found(graph, files):
    """Both checks fail when somebody adds an import by hand."""
    wrong = {name: set(targets) for name, targets in graph.items()}
    wrong["hetero_tvm.ops.base"].add("hetero_tvm.ops.matmul")
    assert any("hetero_tvm.ops.matmul" in circle for circle in circles(wrong))
    wrong = {name: set(targets) for name, targets in graph.items()}
    wrong["hetero_tvm.schedules.base"].add("hetero_tvm.targets.cpu.target")
    assert climbs(wrong) == ["hetero_tvm.schedules.base -> hetero_tvm.targets.cpu.target"]
    rooms = {"hetero_tvm.schedules", "hetero_tvm.targets.cpu"}
    assert any(rooms <= set(circle) for circle in circles(folders(wrong, files)))


def test_targets_do_not_know_each_other_but_for_the_cpu_beside_them(graph):
    """A wing uses the shared rooms; only the CPU serves as a host for what another device leaves."""
    wings = ("cpu", "cuda", "npu")
    for room in ("schedules", "targets"):
        for name, targets in graph.items():
            parts = name.split(".")
            if len(parts) > 2 and parts[1] == room and parts[2] in wings:
                foreign = {t for t in targets if t.split(".")[1:2] == [room] and t.split(".")[2] in wings}
                foreign = {t for t in foreign if t.split(".")[2] != parts[2]}
                allowed = {"hetero_tvm.targets.cpu.target"} if room == "targets" else set()
                assert foreign <= allowed, f"{name} imports {foreign}"


def test_nobody_but_a_wing_names_a_target(graph):
    """What stands below or above the targets never imports a wing."""
    rooms, names = ("schedules", "targets"), ("cpu", "cuda", "npu")
    wings = tuple(f"{PACKAGE}.{room}.{name}" for room in rooms for name in names)
    for name, targets in graph.items():
        if name.split(".")[1:2] not in (["schedules"], ["targets"]):
            assert not [t for t in targets if t.startswith(wings)], name


def test_only_registries_and_wire_descriptions_name_modules_by_string(files):
    assert set(references(files.items())) <= BY_NAME


def test_the_compiler_comes_through_one_door(files):
    for name, path in files.items():
        if name == "hetero_tvm.host.tvm":
            continue
        for node in nodes(path):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            bad = [n for n in names if n.partition(".")[0] in ("tvm", "tvm_ffi")]
            assert not bad, f"{path}:{node.lineno}: take {bad[0]} from hetero_tvm.host.tvm"


def test_no_file_is_too_long(files):
    long = {name: n for name, path in files.items() if (n := len(path.read_text().splitlines())) > MOST_LINES}
    assert long == {}


def test_no_folder_is_crowded():
    crowded = {}
    for folder in [ROOT / PACKAGE, *(p for p in (ROOT / PACKAGE).rglob("*") if p.is_dir())]:
        count = len([p for p in folder.glob("*.py") if p.name != "__init__.py"])
        if count > MOST_FILES:
            crowded[str(folder.relative_to(ROOT))] = count
    assert crowded == {}


def test_tests_stand_where_their_modules_stand():
    """Each folder of tests has the name of a folder of the package, or is one of the few others."""
    others = {"end_to_end", "tutorials", "campaign", "benchmarks"}
    strangers = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        folder = path.parent.relative_to(ROOT / "tests")
        if folder.parts and folder.parts[0] not in others and not (ROOT / PACKAGE / folder).is_dir():
            strangers.append(str(path.relative_to(ROOT)))
    assert strangers == []


def test_the_table_of_floors_is_that_of_the_documentation():
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text[text.index("| floor |") : text.index("\n\n", text.index("| floor |"))]
    rows = [re.findall(r"`(\w+)(?:/|\.py)?`", line.split("|")[2]) for line in table.splitlines()[2:]]
    assert [tuple(row) for row in rows[: len(FLOORS)]] == list(FLOORS)
