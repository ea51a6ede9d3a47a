"""The command ``doctor``."""

import json

from hetero_tvm import doctor
from hetero_tvm.cli import doctor as findings


def test_report_and_exit_status(monkeypatch, capsys):
    one = findings.Finding("tools", "C++ compiler", "none", findings.MISSING, "apt install g++")
    monkeypatch.setattr(findings, "findings", lambda: [one])
    assert doctor.main([]) == 1
    said = capsys.readouterr().out
    assert "MISSING" in said and "apt install g++" in said and "1 thing is missing" in said
    monkeypatch.setattr(findings, "findings", lambda: [findings.Finding("machine", "CPU", "a CPU")])
    assert doctor.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"][0]["text"] == "a CPU"
