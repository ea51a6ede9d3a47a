"""Cores that this process may use: the affinity mask, cut to the quotas of control groups."""

import os

import pytest

from hetero_tvm import host
from hetero_tvm.host import cores


def fake_machine(tmp_path, cgroup, mountinfo, limits):
    """A /proc and a / that hold the given files."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    (tmp_path / "proc/self/mountinfo").write_text(mountinfo)
    for name, text in limits.items():
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "proc", tmp_path / "root"


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
V1 = "33 25 0:28 {root} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"sys/fs/cgroup/a/b/cpu.max": "max 100000"}, None),
        ({"sys/fs/cgroup/a/b/cpu.max": "150000 100000"}, 1.5),
        ({"sys/fs/cgroup/a/b/cpu.max": "800000 100000", "sys/fs/cgroup/a/cpu.max": "200000 100000"}, 2.0),
        ({"sys/fs/cgroup/a/b/cpu.max": "garbage"}, None),
    ],
)
def test_quota_version_2_takes_the_tightest_level(tmp_path, limits, expected):
    assert host.cpu_quota(*fake_machine(tmp_path, "0::/a/b\n", V2, limits)) == expected


@pytest.mark.parametrize(
    ("root", "path", "folder"),
    [("/", "/job", "job"), ("/docker/abc", "/docker/abc/job", "job"), ("/docker/abc", "/docker/abc", "")],
)
def test_quota_version_1_also_where_the_mount_shows_a_subtree(tmp_path, root, path, folder):
    base = f"sys/fs/cgroup/cpu,cpuacct/{folder}".rstrip("/")
    limits = {f"{base}/cpu.cfs_quota_us": "300000\n", f"{base}/cpu.cfs_period_us": "100000\n"}
    machine = fake_machine(tmp_path, f"4:memory:/x\n3:cpu,cpuacct:{path}\n", V1.format(root=root), limits)
    assert host.cpu_quota(*machine) == 3.0


def test_quota_version_1_minus_one_means_none(tmp_path):
    base = "sys/fs/cgroup/cpu,cpuacct"
    limits = {f"{base}/cpu.cfs_quota_us": "-1", f"{base}/cpu.cfs_period_us": "100000"}
    assert host.cpu_quota(*fake_machine(tmp_path, "3:cpu,cpuacct:/\n", V1.format(root="/"), limits)) is None


def test_no_proc_at_all(tmp_path):
    assert host.cpu_quota(tmp_path, tmp_path) is None


def test_lists_of_cores():
    assert cores.parse_cores("0-2,8\n") == [0, 1, 2, 8]
    assert cores.parse_cores("5,") == [5] and cores.parse_cores("") == []
    with pytest.raises(ValueError):
        cores.parse_cores("many")


@pytest.mark.parametrize(("quota", "count"), [(None, 4), (9.0, 4), (2.7, 2), (0.3, 1)])
def test_cores_are_the_mask_cut_to_the_quota(monkeypatch, quota, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {8, 9, 10, 11})
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    monkeypatch.setattr(cores, "read_text", lambda path: None)
    assert host.available_cores() == (8, 9, 10, 11)[:count]


def test_a_quota_takes_hyperthreads_first(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(cores, "cpu_quota", lambda: 2.0)
    siblings = {"cpu0": "0-1", "cpu1": "0-1", "cpu2": "2,3", "cpu3": "2,3"}
    monkeypatch.setattr(cores, "read_text", lambda path: siblings.get(path.parts[-3]))
    assert host.available_cores() == (0, 2)
