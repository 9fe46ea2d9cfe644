"""Names of the user's own models, algorithms and so on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pmtl
from pmtl import plugins
from pmtl import storage as files
from pmtl.algorithms import FedAvg
from pmtl.cli.shell.completion import completer
from pmtl.errors import Interrupted, PmtlError, PmtlWarning
from pmtl.planning.sizes import parts_of

ALGORITHM = """
from dataclasses import dataclass
from typing import ClassVar
from pmtl.algorithms import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    name: ClassVar[str] = "mine"
    strength: float = 1.0
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module `own_plugin` of the user's, in the present folder."""
    (tmp_path / "own_plugin.py").write_text(ALGORITHM, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "own_plugin"
    sys.modules.pop("own_plugin", None)


def test_library_names_come_first():
    assert plugins.find("model", "a", {"a": 1}) == 1


def test_an_algorithm_is_found_by_its_path(module):
    found = pmtl.build_algorithm(f"{module}:Mine:strength=0.5")
    assert (found.name, found.strength) == ("mine", 0.5)


def test_a_run_with_it_can_be_resumed_by_name(module, tmp_path):
    run = pmtl.train(
        "synthetic:clients=4,samples=10",
        algorithm=f"{module}:Mine",
        privacy={"noise": 0.1, "rounds": 1},
        out=tmp_path / "run",
    )
    assert 'algorithm = "own_plugin:Mine:strength=1.0"' in (run.path / "config.toml").read_text()


ALL = """
import json
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from torch import nn
import pmtl
from pmtl.algorithms import FedAvg
from pmtl.privacy.sampling import SamplingScheme
from pmtl.privacy.schemes import Fixed

@dataclass(frozen=True)
class Mine(FedAvg):
    name: ClassVar[str] = "mine"

def model(input_shape, outputs):
    return nn.Linear(input_shape[0], outputs)

def right(y_true, y_pred):
    return np.mean(y_true == y_pred)

class Half(SamplingScheme):
    def draw(self, sampler, round):
        return Fixed().draw(sampler, round)
    def chance(self, rate):
        return rate

def read(path):
    return json.loads(path.read_text())

class Watch(pmtl.Callback):
    def on_round(self, event):
        print(f"heard of round {event.round}")
"""
KINDS = {"algorithms": "Mine", "models": "model", "metrics": "right"}
KINDS |= {"sampling": "Half", "readers": "read", "callbacks": "Watch"}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package as an installer leaves it, in a folder of the path; each entry point is `tiny`."""
    site = tmp_path / "site"
    (site / "tiny_pmtl-1.0.dist-info").mkdir(parents=True)
    (site / "tiny_pmtl.py").write_text(ALL, encoding="utf-8")
    about = "Metadata-Version: 2.1\nName: tiny-pmtl\nVersion: 1.0\n"
    (site / "tiny_pmtl-1.0.dist-info/METADATA").write_text(about, encoding="utf-8")
    entries = "".join(f"[pmtl.{k}]\ntiny = tiny_pmtl:{name}\n" for k, name in KINDS.items())
    (site / "tiny_pmtl-1.0.dist-info/entry_points.txt").write_text(entries, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.chdir(tmp_path)
    rows = {"x": [[k / 9, 1 - k / 9] for k in range(48)], "y": [0, 1] * 24}
    Path("d.tiny").write_text(json.dumps(rows | {"client": [f"c{k % 6}" for k in range(48)]}))
    yield
    sys.modules.pop("tiny_pmtl", None)


def test_an_installed_package_is_found_by_its_entry_points_everywhere(installed, pmtl_command):
    common = ["--data", "d.tiny", "--algorithm", "tiny", "--model", "tiny", "--rounds", "2"]
    common += ["--sampling", "tiny", "--cohort", "3", "--metric", "tiny", "--epsilon", "9"]
    done = pmtl_command("train", *common, "--callback", "tiny", "--out", "run")
    assert done.status == 0, done.err
    assert "heard of round 1\nheard of round 2" in done.out
    assert "tiny mean" in done.out
    done = pmtl_command("compare", *common, "--grid", "lr=0.1,0.2", "--seeds", "1", "--out", "c")
    assert done.status == 0, done.err
    with pytest.raises(PmtlError, match=r"Known: .*pmtl.*tiny.*own as package\.module:Name"):
        pmtl.build_algorithm("fedyours")


def test_two_packages_with_one_name_are_refused_where_it_is_used(installed, tmp_path):
    """Which of them is found would depend on the order of folders."""
    other = tmp_path / "site/other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[pmtl.algorithms]\ntiny = other:Mine\n")
    both = r"'tiny': other:Mine of other and tiny_pmtl:Mine of tiny-pmtl\. Write the one"
    with pytest.raises(PmtlError, match=both):
        pmtl.build_algorithm("tiny")
    assert pmtl.build_algorithm("tiny_pmtl:Mine").name == "mine"
    assert completer("algorithm")("tin") == ["tiny"]
    (other / "entry_points.txt").write_text("[pmtl.algorithms]\ntiny = tiny_pmtl:Mine\n")
    assert pmtl.build_algorithm("tiny").name == "mine"  # One package, found twice.


def test_completion_knows_the_entry_points_of_all_kinds(installed):
    for kind in ("algorithm", "model", "sampling", "metric", "callback"):
        assert completer(kind)("tin") == ["tiny"], kind
    assert completer("data")("d.") == ["d.tiny"]


def test_the_parameters_of_an_installed_model_are_asked_for(installed):
    with pytest.raises(PmtlError, match=r"'tiny' cannot be counted.*--parameters"):
        parts_of("tiny", 3, 2)


IN_ANOTHER_FOLDER = """
import sys
import pmtl

for path in sys.argv[1:]:
    run = pmtl.load_run(path)
    assert run.evaluate()["test"]["personal"]
    assert run.privacy.epsilon > 0
"""


def test_runs_with_the_users_own_modules_are_read_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    rows = {"x": [[k / 9, 1 - k / 9] for k in range(48)], "y": [0, 1] * 24}
    rows |= {"client": [f"c{k % 6}" for k in range(48)]}
    own = {
        "sampling": {"privacy": {"cohort": 3, "rounds": 1, "sampling": "own_sampling:Half"}},
        "metric": {"metric": "accuracy+own_metric:right"},
        "reader": {"data": "rows.json:reader=own_reader:read"},
        "algorithm": {"algorithm": "own_algorithm:Mine"},
        "model": {"model": "own_model:model"},
    }
    for kind, named in own.items():
        (tmp_path / kind).mkdir()
        monkeypatch.chdir(tmp_path / kind)
        Path(f"own_{kind}.py").write_text(ALL, encoding="utf-8")
        Path("rows.json").write_text(json.dumps(rows), encoding="utf-8")
        usual = {"data": "synthetic:clients=6,samples=20", "algorithm": "pmtl"}
        usual |= {"privacy": {"rounds": 1}, "local": {"steps": 1}}
        pmtl.train(**{**usual, **named}, out="run")
        sys.modules.pop(f"own_{kind}")
    _as_format_2(tmp_path / "model/run/run.json")
    runs = [str(tmp_path / kind / "run") for kind in own]
    (tmp_path / "elsewhere").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_FOLDER, *runs],
        cwd=tmp_path / "elsewhere",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _as_format_2(file):
    """The facts of a run as an earlier version wrote them."""
    values = files.read_json(file)
    files.write_json(file, values | {"format": 2, "model_folder": values.pop("plugin_folder")})


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere:Mine", "cannot be imported .ModuleNotFoundError"),
        ("own_plugin:Yours", r"has no 'Yours'\. It has: Mine\."),
        ("own_plugin:dataclass", "is not an algorithm"),
    ],
)
def test_what_cannot_be_found_is_said(module, name, sentence):
    with pytest.raises(PmtlError, match=sentence):
        pmtl.build_algorithm(name)


def test_where_the_library_has_none_nothing_is_listed():
    with pytest.raises(PmtlError, match=r"^There is no metric 'f1'\. Write your own as package"):
        plugins.find("metric", "f1", {})


@pytest.mark.parametrize(
    "file", ["run.json", "private/run.json", "public/plan.json", "plan.json", "comparison.json"]
)
@pytest.mark.parametrize("name", ["theirs.evil:Mine", "theirs.inner.evil:Mine", "evil:Mine"])
def test_code_in_a_folder_of_results_is_not_run(tmp_path, monkeypatch, file, name):
    """A run that somebody else made names its modules, and may bring them along."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    theirs = tmp_path / "theirs"
    (theirs / "inner").mkdir(parents=True)
    for place in (theirs, theirs / "inner"):
        (place / "evil.py").write_text("raise SystemExit('their code runs')")
    (theirs / file).parent.mkdir(exist_ok=True)
    files.write_json(theirs / file, {})
    plugins.add_folder(str(theirs))
    with pytest.raises(PmtlError, match="its code lies in a folder of results"):
        pmtl.build_algorithm(name)
    (theirs / "__init__.py").write_text("raise SystemExit('their code runs')")
    with pytest.raises(PmtlError, match="its code lies in a folder of results"):
        pmtl.build_algorithm(name)
    (theirs / file).write_text("{}")  # Another program's file.
    with pytest.raises(PmtlError, match="their code runs"):
        pmtl.build_algorithm(name)


def test_a_public_folder_runs_no_code_when_it_is_reported(tmp_path, monkeypatch, pmtl_command):
    monkeypatch.chdir(tmp_path)
    data, ledger = "synthetic:clients=12,samples=10", str(tmp_path / "l.db")
    assert pmtl_command("ledger", "create", ledger, "--data", data).status == 0
    pmtl.train(
        data,
        algorithm="fedavg",
        mode="production",
        ledger=ledger,
        privacy={"epsilon": 5.0, "rounds": 1},
        local={"steps": 1},
        out=tmp_path / "run",
    )
    (tmp_path / "run/public").rename(tmp_path / "theirs")
    Path("theirs/evil.py").write_text("raise SystemExit('their code runs')")
    values = files.read_json(tmp_path / "theirs/plan.json")
    values["plan"] |= {"sampling": "theirs.evil:S", "chance": 1.0}
    files.write_json(tmp_path / "theirs/plan.json", values)
    done = pmtl_command("report", "theirs", "--out", "report.html")
    assert (done.status, "their code runs" in done.err) == (0, False), done.err


def test_a_module_of_another_run_is_not_used_silently(tmp_path, monkeypatch):
    """Two runs, each with a module of the same name; one process reads both."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, value in (("one", 1.0), ("two", 2.0)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        Path("own_twin.py").write_text(f"def value(y_true, y_pred):\n    return {value}\n")
        pmtl.train(
            "synthetic:clients=4,samples=20",
            algorithm="pmtl",
            privacy={"noise": 1.0, "rounds": 1},
            local={"steps": 1},
            metric="own_twin:value",
            out="run",
        )
        sys.modules.pop("own_twin")
        monkeypatch.setattr(sys, "path", [path for path in sys.path if str(tmp_path) not in path])
    monkeypatch.chdir(tmp_path)
    one = pmtl.load_run(tmp_path / "one/run")
    assert one.evaluate()["test"]["personal"]["value_mean"] == 1.0
    with pytest.warns(PmtlWarning, match="The module 'own_twin' is read from .*one"):
        pmtl.load_run(tmp_path / "two/run")
    sys.modules.pop("own_twin")


class Raises(FedAvg):
    """An algorithm that raises what it is told to."""

    def bind(self, layout):
        raise layout


@pytest.mark.parametrize("error", [KeyError("such"), SystemExit(3)])
def test_an_error_of_own_code_is_told_with_its_place(error):
    sentence = (
        f"The algorithm {__name__}:Raises failed in bind (test_plugins.py, line LINE): "
        f"{type(error).__name__}: {error}."
    )
    pattern = re.escape(sentence).replace("LINE", r"\d+")
    with pytest.raises(PmtlError, match=pattern) as told, plugins.errors_of_own_code():
        Raises().bind(error)
    assert told.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        *(PmtlError("A sentence."), Interrupted("Stopped."), KeyboardInterrupt()),
        *(MemoryError(), RuntimeError("CUDA out of memory")),
    ],
)
def test_other_ends_of_own_code_stay_what_they_are(error):
    with pytest.raises(type(error)) as raised, plugins.errors_of_own_code():
        Raises().bind(error)
    assert raised.value is error


def test_an_error_of_the_library_keeps_its_traceback(monkeypatch):
    with pytest.raises(SystemExit), plugins.errors_of_own_code():
        sys.exit(0)
    with pytest.raises(AttributeError), plugins.errors_of_own_code():
        FedAvg().billboard_size(None)
    monkeypatch.setattr("pmtl.algorithms.base.convert_numbers", lambda made: 1 / 0)
    with pytest.raises(ZeroDivisionError), plugins.errors_of_own_code():
        FedAvg()


class TestRunsOfSomebodyElse:
    """A file may name any function of any module, so code is imported for one's own runs only."""

    MODEL = (
        "from torch import nn\ndef net(input_shape, outputs):\n    return nn.Linear(4, outputs)\n"
    )

    @pytest.fixture
    def path(self, small, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Path("signed_net.py").write_text(self.MODEL)
        given = {"privacy": {"noise": 1.0, "rounds": 1}, "local": {"steps": 1}, "out": "run"}
        pmtl.train(small, model="signed_net:net", algorithm="pmtl", **given)
        return tmp_path / "run"

    def test_ones_own_run_is_read_and_a_run_with_another_name_in_it_is_not(self, path, small):
        assert pmtl.load_run(path, small).evaluate()
        file = path / "run.json"
        values = files.read_json(file)
        for name in ("os:system:command=touch made", "runpy:run_path:path_name=x.py"):
            files.write_json(file, values | {"model": name})
            with pytest.raises(PmtlError, match=r"names code .*os:system|names code .*runpy"):
                pmtl.load_run(path, small)
        assert not Path("made").exists()
        for changed in ({"plugin_folder": "/tmp"}, {"code_signature": None}, {"metric": "os:nice"}):
            files.write_json(file, values | changed)
            with pytest.raises(PmtlError, match=r"PMTL_TRUST_CODE=1"):
                pmtl.load_run(path, small)
        files.write_json(file, values | {"state": "running", "code_signature": None})
        with pytest.raises(PmtlError, match=r"PMTL_TRUST_CODE=1"):
            pmtl.resume(path, data=small)

    def test_another_user_has_to_say_that_the_code_is_trusted(self, path, small, monkeypatch):
        monkeypatch.setenv("XDG_STATE_HOME", str(path.parent / "other"))
        with pytest.raises(PmtlError, match="You did not make it on this machine"):
            pmtl.load_run(path, small)
        monkeypatch.setenv("PMTL_TRUST_CODE", "1")
        assert pmtl.load_run(path, small).evaluate()

    def test_the_key_is_the_users_alone_and_a_user_without_a_home_has_none(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        assert plugins.signature("text") == plugins.signature("text") != plugins.signature("other")
        assert (tmp_path / "pmtl" / "key").stat().st_mode & 0o777 == 0o600
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
        assert plugins.signature("text") is None
        with pytest.raises(PmtlError, match="PMTL_TRUST_CODE"):
            plugins.check_signature("It names code", "text", None)


def test_the_statement_says_what_it_needs_of_an_algorithm_of_the_users(module, small):
    given = {"privacy": {"noise": 1.0, "rounds": 1}, "local": {"steps": 1}}
    own = pmtl.train(small, algorithm=f"{module}:Mine", **given)
    assert "own_plugin:Mine is code of the user's own" in " ".join(own.privacy.not_covered)
    librarys = pmtl.train(small, algorithm="fedavg", **given)
    assert "code of the user" not in " ".join(librarys.privacy.not_covered)
