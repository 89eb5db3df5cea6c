"""Shell completion: the script that bash would load, asked what it proposes."""

import subprocess

import pytest

from speedyfeed.cli.main import COMMANDS, main
from tests.cli.test_main import fails


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "speedyfeed.bash"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setattr("sys.stdout", file)
        main(["completion", "bash"])
    return path


def proposed(script, *words):
    """What bash proposes for the last of these words."""
    asked = "source $0; COMP_WORDS=($@ ''); COMP_CWORD=$(($# - 1)); _tyro_speedyfeed; echo ${COMPREPLY[@]}"
    done = subprocess.run(["bash", "-c", asked, script, *words], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_commands_options_and_values_are_proposed(script):
    assert proposed(script, "speedyfeed", "") >= set(COMMANDS)
    assert proposed(script, "speedyfeed", "tr") == {"train"}
    assert proposed(script, "speedyfeed", "train", "store", "run", "--epo") == {"--epochs"}
    assert proposed(script, "speedyfeed", "train", "--batch.max-clicks") >= {"--batch.max-clicks"}
    assert proposed(script, "speedyfeed", "prepare", "--spl") == {"--split"}  # its description has two lines
    assert proposed(script, "speedyfeed", "prepare", "--split", "") == {"time", "last", "None"}


def test_another_shell_is_refused(capsys):
    assert "expected bash or zsh" in fails(capsys, "completion", "nushell")
